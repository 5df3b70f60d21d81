"""What fits: the cheapest setting of a model on a node, and the longest sequence or clip it allows.

Settings are tried from the fastest to the slowest; each is predicted by plan_case, so a fit rests on the same
numbers as `course plan`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from course_lib.catalog import catalogue
from course_lib.errors import CourseError
from course_lib.hardware import Node
from course_lib.memory.report import plan_case
from course_lib.memory.requests import ModelRequest, case_for_model, grid_for
from course_lib.shapes.config import load_config, max_positions, vision_config
from course_lib.units import gib

LONGEST_FRAMES = 4096
TEXT_TOKENS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One way to train, with why it costs time."""

    name: str
    changes: dict[str, Any]
    price: str

    def of(self, request: ModelRequest) -> ModelRequest:
        return dataclasses.replace(request, **self.changes)


def ladder(gpus: int) -> tuple[Setting, ...]:
    """LoRA settings from the fastest to the slowest on a node with `gpus` GPUs."""
    keep = {"stage": 2 if gpus > 1 else 0}
    steps = [
        Setting(name="LoRA, no checkpointing", changes={**keep, "gradient_checkpointing": False}, price="fastest"),
        Setting(name="LoRA, checkpointing", changes={**keep}, price="one more forward per step"),
    ]
    if gpus > 1:
        steps.append(
            Setting(name="LoRA, ZeRO-3, checkpointing", changes={"stage": 3}, price="weights gathered over the link")
        )
    steps += [
        Setting(
            name="QLoRA (nf4), checkpointing",
            changes={**keep, "quantization": "nf4"},
            price="weights dequantized in every product",
        ),
        Setting(
            name="LoRA, ZeRO-3, parameters and optimizer on the host",
            changes={"stage": 3, "offload_param": True, "offload_optimizer": True},
            price="every weight over PCIe, three times a step",
        ),
    ]
    return tuple(steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A setting and how it ended at the length asked for."""

    setting: Setting
    verdict: dict[str, Any] | None
    reason: str
    """Why it does not fit, or why it cannot be predicted; empty when it fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The answer: the first setting that fits, how far it reaches, and what failed before it."""

    model: str
    node: str
    chosen: Tried | None
    tried: tuple[Tried, ...]
    most: int
    """Longest sequence in tokens, or most frames when `unit` is frames."""
    unit: str
    would_help: tuple[str, ...]
    smaller: str | None
    """A catalogue model that does fit in the same setting, when nothing else does."""

    def as_record(self) -> dict[str, Any]:
        """Plain JSON for `course fit --json`."""
        rows = [
            {"setting": t.setting.name, "price": t.setting.price, "reason": t.reason, **(t.verdict or {})}
            for t in self.tried
        ]
        return {
            "model": self.model,
            "node": self.node,
            "fits": self.chosen is not None,
            "setting": self.chosen.setting.name if self.chosen else None,
            "changes": self.chosen.setting.changes if self.chosen else None,
            "margin_bytes": self.chosen.verdict["margin_bytes"] if self.chosen else None,
            "most": self.most,
            "unit": self.unit,
            "tried": rows,
            "would_help": list(self.would_help),
            "smaller_model": self.smaller,
            "label": "predicted",
        }


def fit(request: ModelRequest, node: Node, *, frames: int | None = None, tokens_per_step: int = 180) -> Fit:
    """Find the cheapest setting that fits and the longest input it allows.

    Args:
        request: model, LoRA, micro batch, loss and the sequence length that must fit at least.
        frames: for a clip, the frames that must fit at least; the sequence length follows from them.
        tokens_per_step: visual tokens of one grid step (two frames).
    """
    request = dataclasses.replace(request, ranks=node.gpus)
    if frames is not None and vision_config(load_config(request.model)) is None:
        raise CourseError(
            f"{request.model} takes no video", fix="Leave out --frames, or choose a vision-language model"
        )
    size = frames if frames is not None else request.sequence_length
    tried = []
    chosen = None
    for setting in ladder(node.gpus):
        outcome = _try(setting, request, node, size, frames is not None, tokens_per_step)
        tried.append(outcome)
        if not outcome.reason:
            chosen = outcome
            break
    most = 0
    smaller = None
    if chosen:
        most = _longest(chosen.setting, request, node, size, frames is not None, tokens_per_step)
    else:
        smaller = _smaller(request, node, size, frames is not None, tokens_per_step)
    return Fit(
        model=str(request.model),
        node=node.name,
        chosen=chosen,
        tried=tuple(tried),
        most=most,
        unit="tokens" if frames is None else "frames",
        would_help=() if chosen else _help(tried, node),
        smaller=smaller,
    )


def sized(request: ModelRequest, size: int, video: bool, tokens_per_step: int) -> ModelRequest:
    """`request` with `size` tokens, or with a clip of `size` frames and text around it."""
    if not video:
        return dataclasses.replace(request, sequence_length=size)
    grid = grid_for(size, tokens_per_step)
    t, h, w = grid
    length = t * ((h // 2) * (w // 2) + 8) + TEXT_TOKENS
    return dataclasses.replace(request, video_grids=(grid,), sequence_length=length)


def _try(setting: Setting, request: ModelRequest, node: Node, size: int, video: bool, tokens_per_step: int) -> Tried:
    try:
        case = case_for_model(sized(setting.of(request), size, video, tokens_per_step))
        verdict = node.verdict(plan_case(case, capability=node.gpu.capability))
    except CourseError as error:
        if setting is ladder(node.gpus)[0]:
            raise
        return Tried(setting=setting, verdict=None, reason=error.what)
    return Tried(setting=setting, verdict=verdict, reason="" if verdict["fits"] else _why(verdict))


def _why(verdict: dict[str, Any]) -> str:
    over = verdict["at_least_bytes"] - verdict["card_bytes"]
    if over > 0:
        return f"{gib(over)} too much on each GPU"
    return f"{gib(verdict['host_bytes'] - verdict['host_limit_bytes'])} too much on the host"


def _longest(setting: Setting, request: ModelRequest, node: Node, fits: int, video: bool, tokens_per_step: int) -> int:
    """Largest size that fits, to 1/16 of itself: doubled until it fails, then halved in between."""
    positions = max_positions(load_config(request.model)) or 2**20
    limit = min(LONGEST_FRAMES, 2 * positions // (tokens_per_step + 8)) if video else positions
    low, high = fits, None
    while high is None and low < limit:
        size = min(limit, 2 * low)
        if _try(setting, request, node, size, video, tokens_per_step).reason:
            high = size
        else:
            low = size
    while high is not None and high - low > max(1, low // 16):
        middle = (low + high) // 2
        if _try(setting, request, node, middle, video, tokens_per_step).reason:
            high = middle
        else:
            low = middle
    return low


def _smaller(request: ModelRequest, node: Node, size: int, video: bool, tokens_per_step: int) -> str | None:
    """The largest catalogue model of the same kind that fits in some setting."""
    own = load_config(request.model)
    needs_vision = vision_config(own) is not None
    sizes = sorted(((entry.checkpoint_parameters or 0, name) for name, entry in catalogue().items()), reverse=True)
    for parameters, name in sizes:
        if not parameters or parameters > 15e9 or name == str(request.model):
            continue
        if (vision_config(load_config(name)) is not None) != needs_vision:
            continue
        other = dataclasses.replace(request, model=name, lora_targets=())
        for setting in ladder(node.gpus)[1:-1]:
            if not _try(setting, other, node, size, video, tokens_per_step).reason:
                return name
    return None


def _help(tried: list[Tried], node: Node) -> tuple[str, ...]:
    """What would turn the no into a yes, from the setting that came nearest."""
    known = [t for t in tried if t.verdict]
    if not known:
        return ()
    nearest = min(known, key=lambda t: t.verdict["at_least_bytes"])
    lines = []
    over = nearest.verdict["at_least_bytes"] - nearest.verdict["card_bytes"]
    if over > 0:
        lines.append(f"{gib(over)} more on each GPU ({nearest.setting.name}), or a shorter input")
    host = nearest.verdict["host_bytes"] - nearest.verdict["host_limit_bytes"]
    if host > 0:
        lines.append(f"{gib(host)} more host RAM ({nearest.setting.name})")
    if over > 0 and node.gpus < 8:
        lines.append(f"more GPUs: under ZeRO-3 {2 * node.gpus} of them halve what each keeps")
    return tuple(lines)
