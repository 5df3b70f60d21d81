"""Parameters by part, read off a short meta model and given their real number of layers.

Not here: bytes of a sharded or offloaded run (memory/), activations (memory/trace).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_lib.errors import CourseError
from course_lib.shapes.build import build_model
from course_lib.shapes.config import load_config
from course_lib.shapes.lora import attach_lora
from course_lib.shapes.stacks import Stack, shorten

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

PARTS = (
    "embeddings",
    "attention",
    "mlp",
    "experts",
    "router",
    "norms",
    "lm_head",
    "vision",
    "connector",
    "audio",
    "speech",
    "adapters",
    "other",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One parameter of the real model, in the order of `model.parameters()`."""

    name: str
    numel: int
    dtype_bytes: int
    part: str
    trainable: bool
    linear: bool
    """The weight of an nn.Linear, which bitsandbytes quantizes (all but lm_head)."""
    template: int
    """Index of the short model's parameter that it is a copy of."""
    layer: int | None = None
    """Index in its stack, None outside of stacks."""
    stack: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A model as it would stand in memory, and the short model that it was read off."""

    config: PretrainedConfig
    short: nn.Module
    stacks: tuple[Stack, ...]
    parameters: tuple[Parameter, ...]
    tied: tuple[str, ...]
    """Names that share another parameter's memory (counted once)."""

    @property
    def total(self) -> int:
        """Ψ: elements of all parameters, tied ones once."""
        return sum(p.numel for p in self.parameters)

    @property
    def trainable(self) -> int:
        """T: elements of the parameters that are trained."""
        return sum(p.numel for p in self.parameters if p.trainable)

    def by_part(self) -> dict[str, int]:
        """Elements of each part; the values sum to `total`."""
        sums = dict.fromkeys(PARTS, 0)
        for parameter in self.parameters:
            sums[parameter.part] += parameter.numel
        return {part: numel for part, numel in sums.items() if numel}

    def stack_path(self, name: str) -> str | None:
        """Dotted name of the ModuleList of a stack in the short model."""
        return find_stack(self.short, name, next((s for s in self.stacks if s.name == name), None))


def read_shape(
    model: str | dict[str, Any],
    *,
    lora: dict[str, Any] | None = None,
    dtype: str = "bfloat16",
    attention: str = "sdpa",
    thinker_only: bool = False,
) -> ModelShape:
    """The shape of a model, with adapters when `lora` is given (then only they are trainable).

    `thinker_only` leaves out the speech half of an omni model, which no transformers loss trains.

    Raises CourseError for an unknown model, a config without a causal LM, or targets that match nothing.
    """
    config = load_config(model)
    if thinker_only:
        config = getattr(config, "thinker_config", None) or config
    singled_out = bool(lora and (lora.get("layers_to_transform") is not None or lora.get("rank_pattern")))
    short_config, stacks = shorten(config, whole=singled_out)
    short = build_model(short_config, dtype=dtype, attention=attention)
    if lora is not None:
        short = attach_lora(short, lora)
    return ModelShape(
        config=config,
        short=short,
        stacks=tuple(stacks),
        parameters=tuple(_expand(short, stacks)),
        tied=_tied_names(short),
    )


def part_of(name: str) -> str:
    """The part a parameter belongs to, by its dotted name (transformers' naming)."""
    if "lora_" in name or "modules_to_save" in name:
        return "adapters"
    for pattern, part in _PATTERNS:
        if re.search(pattern, name):
            return part
    return "other"


_PATTERNS = tuple(
    (re.compile(pattern), part)
    for pattern, part in (
        (r"(^|\.)(talker|code2wav|token2wav|depth_decoder|codec)\.", "speech"),
        (r"(^|\.)(audio_tower|audio_encoder)\.", "audio"),
        (r"(visual|vision\w*)\..*(merger|projector)|multi_modal_projector", "connector"),
        (r"(^|\.)(visual|vision_tower|vision_model)\.", "vision"),
        (r"(^|\.)(embed_tokens|wte|embed_positions)\.", "embeddings"),
        (r"(^|\.)lm_head\.", "lm_head"),
        (r"\.(shared_expert|shared_experts)\.", "mlp"),
        (r"\.experts(\.|$)", "experts"),
        (r"\.(gate|router|shared_expert_gate)\.(?!.*proj)", "router"),
        (r"norm", "norms"),
        (r"\.(self_attn|attn|linear_attn|attention)\.", "attention"),
        (r"\.mlps?\.", "mlp"),
    )
)


def find_stack(model: nn.Module, name: str, stack: Stack | None) -> str | None:
    """Dotted name of the ModuleList that holds a stack's layers in `model`, or None."""
    from torch import nn

    if stack is None:
        return None
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) != len(stack.chosen):
            continue
        in_vision = re.search(r"(^|\.)(visual|vision\w*)(\.|$)", path) is not None
        elsewhere = re.search(r"(talker|audio|code2wav|token2wav|mtp)", path) is not None
        wanted = ("blocks", "layers") if name == "vision" else ("layers",)
        if in_vision == (name == "vision") and not elsewhere and path.rsplit(".", 1)[-1] in wanted:
            return path
    raise CourseError(f"no stack of {len(stack.chosen)} {name} layers found in {type(model).__name__}")


def _expand(short: nn.Module, stacks: list[Stack]) -> Iterator[Parameter]:
    """Parameters of the real model from those of the short one: layers repeated as their stack says."""
    linears = _linear_weights(short)
    prefixes = [(stack, find_stack(short, stack.name, stack) + ".") for stack in stacks]
    pending: dict[int, list[tuple[int, str, Any]]] = {}
    current: tuple[Stack, str] | None = None
    for template, (name, parameter) in enumerate(short.named_parameters()):
        owner = next(((s, p) for s, p in prefixes if name.startswith(p)), None)
        if current is not None and owner != current:
            yield from _layers(*current, pending, linears)
            pending = {}
        current = owner
        if owner is None:
            yield _record(name, parameter, template, linears)
        else:
            at = int(name[len(owner[1]) :].split(".", 1)[0])
            pending.setdefault(at, []).append((template, name, parameter))
    if current is not None:
        yield from _layers(*current, pending, linears)


def _linear_weights(short: nn.Module) -> frozenset[int]:
    """ids of the weights of nn.Linear modules, lm_head and adapters left out."""
    from torch import nn

    return frozenset(
        id(module.weight)
        for name, module in short.named_modules()
        if isinstance(module, nn.Linear) and "lora_" not in name and not name.endswith("lm_head")
    )


def _layers(
    stack: Stack, prefix: str, members: dict[int, list[tuple[int, str, Any]]], linears: frozenset[int]
) -> Iterator[Parameter]:
    for layer, at in enumerate(stack.stands_for):
        for template, name, parameter in members[at]:
            rest = name[len(prefix) :].split(".", 1)[1]
            yield _record(f"{prefix}{layer}.{rest}", parameter, template, linears, layer=layer, stack=stack.name)


def _record(
    name: str,
    parameter: Any,
    template: int,
    linears: frozenset[int],
    layer: int | None = None,
    stack: str | None = None,
) -> Parameter:
    return Parameter(
        name=name,
        numel=parameter.numel(),
        dtype_bytes=parameter.element_size(),
        part=part_of(name),
        trainable=parameter.requires_grad,
        linear=id(parameter) in linears,
        template=template,
        layer=layer,
        stack=stack,
    )


def _tied_names(short: nn.Module) -> tuple[str, ...]:
    seen = {name for name, _ in short.named_parameters()}
    every = {name for name, _ in short.named_parameters(remove_duplicate=False)}
    return tuple(sorted(every - seen))
