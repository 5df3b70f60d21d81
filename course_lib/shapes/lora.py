"""LoRA on the real module tree: attached by peft itself, so that what matches here is what matches in a run.

Not here: what adapters cost in memory (memory/).
"""

from __future__ import annotations

import difflib
import re
import warnings
from typing import TYPE_CHECKING, Any

from course_lib.errors import CourseError

if TYPE_CHECKING:
    from torch import nn

KNOWN_FIELDS = (
    "r",
    "lora_alpha",
    "target_modules",
    "target_parameters",
    "lora_dropout",
    "use_rslora",
    "use_dora",
    "bias",
    "modules_to_save",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "rank_pattern",
    "alpha_pattern",
    "task_type",
    "init_lora_weights",
)


def attach_lora(model: nn.Module, lora: dict[str, Any]) -> nn.Module:
    """peft's model around `model`; its base is frozen and adapters sit where `lora` says.

    Args:
        lora: fields of peft.LoraConfig (`r`, `lora_alpha`, `target_modules`, …).

    Raises CourseError when no module matches (with the nearest names of this model) or peft refuses the fields.
    """
    import peft

    fields = dict(lora)
    r = fields.get("r", 8)
    if not isinstance(r, int) or isinstance(r, bool) or r < 1:
        raise CourseError(f"lora r must be a whole number above zero, got {r!r}")
    if fields.get("target_modules") is None and not fields.get("target_parameters"):
        raise CourseError("lora names no target_modules", fix="Targets here: " + ", ".join(linear_names(model)[:12]))
    _check_targets(model, fields.get("target_modules"))
    try:
        with warnings.catch_warnings():
            # peft still asks transformers by names that are deprecated there.
            warnings.simplefilter("ignore", FutureWarning)
            return peft.get_peft_model(model, peft.LoraConfig(**fields))
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CourseError(f"peft refuses this LoRA config: {line}") from error


def linear_names(model: nn.Module) -> list[str]:
    """Last names of the linear modules of `model`, in the order of the tree, each once (peft's way of naming)."""
    from torch import nn

    names = [name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return list(dict.fromkeys(names))


def _check_targets(model: nn.Module, targets: Any) -> None:
    if targets is None or targets == "all-linear":
        return
    names = [name for name, _ in model.named_modules()]
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if isinstance(targets, str):
        if not any(re.fullmatch(targets, name) for name in names):
            raise CourseError(
                f"no module matches LoRA target '{targets}' in {kind}",
                fix="As a string it is a regular expression over full names; names here end in "
                + ", ".join(linear_names(model)[:12]),
            )
        return
    missing = [t for t in targets if not any(n == t or n.endswith(f".{t}") for n in names)]
    if len(missing) == len(list(targets)):
        linear = linear_names(model)
        near = [n for t in missing for n in difflib.get_close_matches(t, linear, n=4, cutoff=0.4)]
        near = list(dict.fromkeys(near)) or linear
        raise CourseError(
            f"no parameter matches LoRA target {', '.join(map(repr, missing))} in {kind}",
            fix="Nearest: " + ", ".join(near[:8]) + ". All linear names: " + ", ".join(linear[:16]),
        )
