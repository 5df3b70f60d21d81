"""RunConfig: the one YAML file that every command and launcher reads.

Paths are relative to the file they stand in. Unknown keys are errors, with the nearest known key.
Not here: the DeepSpeed config it points to (ds_config.py) and anything that needs torch.
"""

import dataclasses
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from course_lib.errors import CourseError, did_you_mean
from course_lib.files import read_text

Task = Literal["video_text", "video_speech", "text"]
Loss = Literal["supervised_positions", "all_positions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraSection:
    """peft's LoraConfig, the part of it that people set."""

    r: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Module names that must match in the language model; zero matches is an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSection:
    """Where the samples are and how long clips become windows."""

    train: Path
    held_out: Path | None = None
    window_seconds: float = 8.0
    stride_seconds: float = 8.0
    """Distance between the starts of two training windows; held-out windows never overlap."""
    on_bad_file: Literal["stop", "skip"] = "stop"


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetSection:
    """What one clip may cost. Verified on every batch: what the processor made of it is what is logged."""

    frames: int = 16
    max_tokens_per_frame: int = 128
    min_tokens_per_frame: int = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSection:
    """Training arguments; the names are HF TrainingArguments' where it has them."""

    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    max_steps: int = 100
    learning_rate: float = 1e-4
    lr_scheduler_type: str = "cosine"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    bf16: bool = True
    gradient_checkpointing: bool = True
    loss: Loss = "supervised_positions"
    seed: int = 0
    dataloader_workers: int = 0
    """Processes per rank that decode ahead; 0 decodes in the rank itself, which is right for two cores."""
    logging_steps: int = 10
    save_steps: int = 0
    """0: save at the end only."""
    save_total_limit: int = 2
    smoke: bool = False
    """Repeat one sample world_size times: proves the path, teaches nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One run, whole. Every command that takes RUN reads this."""

    task: Task
    model: str
    """A directory (relative to the run config) or a catalogue name."""
    data: DataSection
    ds_config: Path
    output: Path
    lora: LoraSection = field(default_factory=LoraSection)
    budget: BudgetSection = field(default_factory=BudgetSection)
    train: TrainSection = field(default_factory=TrainSection)
    node: str = "cpu"
    """Catalogue name of the node that `course plan` and `course preflight` check against."""
    ranks: int = 2
    source: Path = Path()
    """The file this was read from; paths above are absolute after reading."""

    def as_record(self) -> dict[str, Any]:
        """Plain JSON types, for logs and provenance."""
        return _plain(dataclasses.asdict(self))


def load_run_config(path: Path | str, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read a run config.

    Args:
        path: YAML file. overrides: dotted key → value, applied over the file ({"train.max_steps": 3}).

    Returns: the RunConfig, paths absolute. Raises CourseError naming file, key and the nearest known key.
    """
    import yaml

    path = Path(path).resolve()
    try:
        values = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise CourseError(f"is not valid YAML{line}", where=str(path)) from error
    if not isinstance(values, dict):
        raise CourseError(
            "must be a mapping of keys to values", where=str(path), fix="See examples/video_text/run_cpu.yaml"
        )
    for key, value in (overrides or {}).items():
        _set_dotted(values, key, value, path)
    values.pop("source", None)
    config = _build(RunConfig, values, where=str(path), base=path.parent)
    config = dataclasses.replace(config, source=path, model=_model(config.model, path.parent))
    _check(config)
    return config


def _model(name: str, base: Path) -> str:
    """A directory beside the run config becomes absolute; anything else is a catalogue name and stays."""
    directory = (base / name).resolve()
    return str(directory) if directory.is_dir() or name.startswith((".", "/")) else name


def _set_dotted(values: dict, dotted: str, value: Any, path: Path) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise CourseError(f"override '{dotted}' goes through '{section}', which is not a section", where=str(path))
    values[last] = value


def _build(kind: type, values: Any, *, where: str, base: Path, prefix: str = "") -> Any:
    if not isinstance(values, dict):
        raise CourseError(f"'{prefix.rstrip('.')}' must be a section (key: value lines)", where=where)
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)} - {"source"}
    for key in values:
        if key not in known:
            raise CourseError(f"unknown key '{prefix}{key}'", where=where, fix=did_you_mean(str(key), known))
    for f in dataclasses.fields(kind):
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and f.name not in values:
            raise CourseError(f"key '{prefix}{f.name}' is missing", where=where)
    built = {
        key: _convert(hints[key], value, where=where, base=base, key=f"{prefix}{key}") for key, value in values.items()
    }
    return kind(**built)


def _convert(hint: Any, value: Any, *, where: str, base: Path, key: str) -> Any:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where=where, base=base, prefix=f"{key}.")
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        inner = next(a for a in typing.get_args(hint) if a is not type(None))
        return _convert(inner, value, where=where, base=base, key=key)
    if origin is Literal:
        if value not in typing.get_args(hint):
            allowed = ", ".join(map(str, typing.get_args(hint)))
            raise CourseError(f"'{key}: {value}' is not allowed", where=where, fix=f"One of: {allowed}")
        return value
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(inner, item, where=where, base=base, key=key) for item in items)
    if hint is Path:
        return (base / _scalar(str, value, where=where, key=key)).resolve()
    return _scalar(hint, value, where=where, key=key)


def _scalar(kind: type, value: Any, *, where: str, key: str) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
    elif kind is str:
        if isinstance(value, str):
            return value
    elif isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            # YAML 1.1 reads 1e-4 (no dot) as a string, which is what people write.
            number = float(value)
            if kind is float or number == int(number):
                return kind(number)
        except (ValueError, OverflowError):
            pass
    raise CourseError(f"'{key}: {value}' must be {_KINDS[kind]}", where=where)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _check(config: RunConfig) -> None:
    where = str(config.source)
    positive = {
        "ranks": config.ranks,
        "lora.r": config.lora.r,
        "lora.alpha": config.lora.alpha,
        "budget.frames": config.budget.frames,
        "budget.max_tokens_per_frame": config.budget.max_tokens_per_frame,
        "budget.min_tokens_per_frame": config.budget.min_tokens_per_frame,
        "data.window_seconds": config.data.window_seconds,
        "data.stride_seconds": config.data.stride_seconds,
        "train.micro_batch_size": config.train.micro_batch_size,
        "train.gradient_accumulation_steps": config.train.gradient_accumulation_steps,
        "train.max_steps": config.train.max_steps,
        "train.logging_steps": config.train.logging_steps,
    }
    for key, value in positive.items():
        if not value > 0 or value == float("inf"):
            raise CourseError(f"'{key}: {value}' must be above zero", where=where)
    for key in ("warmup_steps", "save_steps", "save_total_limit", "learning_rate", "weight_decay", "max_grad_norm"):
        value = getattr(config.train, key)
        # Written so that a nan is refused too.
        if not 0 <= value < float("inf"):
            raise CourseError(f"'train.{key}: {value}' must be a number that is not negative", where=where)
    if not 0 <= config.lora.dropout < 1:
        raise CourseError(f"'lora.dropout: {config.lora.dropout}' must be at least 0 and below 1", where=where)
    if not config.lora.targets:
        raise CourseError("'lora.targets' names no module", where=where, fix="For example [q_proj, v_proj]")
    if config.train.warmup_steps >= config.train.max_steps:
        raise CourseError(
            f"train.warmup_steps {config.train.warmup_steps} is not below max_steps {config.train.max_steps}",
            where=where,
            fix="The learning rate would never reach its value",
        )
    if config.budget.min_tokens_per_frame > config.budget.max_tokens_per_frame:
        raise CourseError(
            f"budget.min_tokens_per_frame {config.budget.min_tokens_per_frame} is above "
            f"max_tokens_per_frame {config.budget.max_tokens_per_frame}",
            where=where,
            fix="The floor would win over the cap",
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
