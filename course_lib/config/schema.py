"""Which keys the installed DeepSpeed reads, found out by watching it read.

A recording mapping is handed to DeepSpeed's own constructor. What it looks up by name, with which default,
what it unpacks into a pydantic model (then the model's fields are the schema), and what it copies whole
(then nobody can say which keys are known) is written down. Nothing here is a list of key names.
"""

import ast
import contextlib
import functools
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.config.installed import deepspeed_config_module, judging, standing_in
from course_lib.config.tree import join

NO_DEFAULT = object()
"""Marks a key that is looked up without a default."""
FREE_FORM = ("optimizer.params", "scheduler.params")
"""Blocks that are handed to a constructor as they are: their schema is that constructor's signature."""
_PROBE = "__probe__"
_DEPTH = 5


@dataclass(slots=True)
class Block:
    """One nested mapping of a ds_config."""

    keys: dict[str, Any] = field(default_factory=dict)
    """Known name → default (NO_DEFAULT where DeepSpeed names none)."""
    model: type | None = None
    """The pydantic model it is unpacked into; unknown keys then raise. None: read key by key, unknown keys ignored."""
    open: bool = False
    """Copied whole: any key may mean something to somebody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """Blocks by dotted path; "" is the top level."""

    blocks: dict[str, Block]
    removed: dict[str, str]
    """Dotted key → DeepSpeed's own words, for features that raise on mere presence."""

    def known(self, block: str) -> dict[str, Any]:
        return self.blocks[block].keys if block in self.blocks else {}

    def knows(self, dotted: str) -> bool:
        """Whether DeepSpeed reads this key, or hands it to an optimizer or a scheduler as it is."""
        block, _, name = dotted.rpartition(".")
        return name in self.known(block) or block in FREE_FORM

    def homes_of(self, name: str) -> list[str]:
        """Dotted keys under which `name` is known, the shallowest first."""
        homes = [join(path, name) for path, block in self.blocks.items() if name in block.keys]
        return sorted(homes, key=lambda dotted: (dotted.count("."), dotted))

    def default_of(self, dotted: str) -> Any:
        block, _, name = dotted.rpartition(".")
        return self.known(block).get(name, NO_DEFAULT)


class _Recorder(dict):
    """A mapping that writes down what is asked of it. Blocks given inside it are recorders of their own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: dict[str, Any] = {}
        self.taken_whole = False

    def get(self, key: str, default: Any = None) -> Any:
        if self.asked.get(key, NO_DEFAULT) is NO_DEFAULT:
            self.asked[key] = default
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.setdefault(key, NO_DEFAULT)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.setdefault(str(key), NO_DEFAULT)
        return super().__contains__(key)

    def keys(self) -> "_Recorder":  # type: ignore[override]  # `X in d.keys()` must be seen too
        return self

    def items(self) -> Any:
        self.taken_whole = True
        return super().items()

    def __copy__(self) -> "_Recorder":
        self.taken_whole = True
        return self

    def __deepcopy__(self, memo: dict) -> "_Recorder":
        self.taken_whole = True
        return self


@functools.cache
def installed_schema() -> Schema:
    """The schema of the DeepSpeed that is installed; worked out once per process (about 0.3 s)."""
    module = deepspeed_config_module()
    top = _watch({})[0]
    top.keys.update({name: NO_DEFAULT for name in _read_by_initialize() if name not in top.keys})
    # `zero_optimization: true` is an old form, and it alone makes DeepSpeed read one more key.
    top.keys.update({k: v for k, v in _watch({"zero_optimization": True})[0].keys.items() if k not in top.keys})
    top.open = False
    blocks = {"": top}
    for name in list(top.keys):
        _explore(name, blocks, depth=1)
    removed = dict(module._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    removed |= {f"zero_optimization.{key}": text for key, text in module._REMOVED_ZERO_CONFIG_KEYS.items()}
    for dotted in removed:
        block, _, name = dotted.rpartition(".")
        blocks[block].keys.pop(name, None)
    return Schema(blocks=blocks, removed=removed)


def _explore(dotted: str, blocks: dict[str, Block], depth: int) -> None:
    """Add the block at `dotted`, if it is one, and the blocks in it."""
    block, model = _watch_at(dotted)
    if model is not None:
        _add_model(dotted, model, blocks)
        return
    if not (block.keys or block.open):
        return
    blocks[dotted] = block
    # Some keys are read only when another one is there or on ("params" only with "type").
    for placeholder in ("probe", True, 1):
        filled, _ = _watch_at(dotted, dict.fromkeys(block.keys, placeholder))
        block.open |= filled.open
        block.keys.update({k: v for k, v in filled.keys.items() if k not in block.keys})
    if depth < _DEPTH:
        for name in list(block.keys):
            _explore(join(dotted, name), blocks, depth + 1)


def _add_model(dotted: str, model: type, blocks: dict[str, Block]) -> None:
    """Fields and aliases of a pydantic model, and the models of its fields."""
    keys: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        default = NO_DEFAULT if info.is_required() else info.get_default(call_default_factory=True)
        keys |= dict.fromkeys((name, info.alias or name), default)
        for inner in _models_in(info.annotation):
            for alias in dict.fromkeys((name, info.alias or name)):
                _add_model(join(dotted, alias), inner, blocks)
    blocks[dotted] = Block(keys=keys, model=model)


def _models_in(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and hasattr(annotation, "model_fields"):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in _models_in(inner)]


def _watch(config: dict) -> tuple[Block, list[tuple[type, dict]]]:
    """What is read of a top level that holds `config`, and every pydantic model that is built meanwhile."""
    module = deepspeed_config_module()
    base = module.DeepSpeedConfigModel
    plain_init = base.__init__
    built: list[tuple[type, dict]] = []

    def watching_init(self: Any, *args: Any, **data: Any) -> None:
        built.append((type(self), data))
        plain_init(self, *args, **data)

    recorder = _Recorder({"train_batch_size": 1, **config})
    # A placeholder may trip any reader; what was read before that counts.
    with judging(world_size=1), standing_in(base, "__init__", watching_init), contextlib.suppress(Exception):
        module.DeepSpeedConfig(recorder)
    return Block(keys=recorder.asked, open=recorder.taken_whole), built


def _watch_at(dotted: str, content: dict | None = None) -> tuple[Block, type | None]:
    """What is read of a block at `dotted`, or the model it is unpacked into."""
    leaf = _Recorder(content if content is not None else {_PROBE: 1})
    config: Any = leaf
    first, *inner = dotted.split(".")
    for part in reversed(inner):
        config = _Recorder({part: config})
    _, built = _watch({first: config})
    model = next((kind for kind, data in built if _PROBE in data), None)
    return Block(keys={k: v for k, v in leaf.asked.items() if k != _PROBE}, open=leaf.taken_whole), model


def _read_by_initialize() -> set[str]:
    """Keys that `deepspeed.initialize` itself reads from its `config`, before the constructor does (by AST)."""
    import deepspeed

    tree = ast.parse(Path(deepspeed.__file__).read_text())
    initialize = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "initialize")
    found = set()
    for node in ast.walk(initialize):
        match node:
            case ast.Compare(left=ast.Constant(value=str(key)), ops=[ast.In()], comparators=[ast.Name(id="config")]):
                found.add(key)
            case ast.Subscript(value=ast.Name(id="config"), slice=ast.Constant(value=str(key))):
                found.add(key)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="config"), attr="get"), args=[ast.Constant(key), *_]):
                found.add(key)
    return found
