"""LoRA on the language model of a video-text model: its targets named, counted, everything else frozen.

The vision encoder and the connector stay frozen, as in the practitioner's recipe. Not here: peft's own fields
(course_lib.shapes.lora attaches) and saving (train/adapter_files.py).
"""

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from course_lib.config.run_config import LoraSection
from course_lib.errors import CourseError, nearest
from course_lib.shapes.lora import attach_lora

VISION_PARTS = ("visual", "vision_tower", "vision_model")
"""What transformers' classes call the vision encoder (the connector lives inside it)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainableCount:
    """Logical elements (ds_numel under ZeRO-3, where a shard shows fewer)."""

    trainable: int
    frozen: int
    modules: int
    """Linear layers that carry an adapter."""

    def describe(self) -> str:
        whole = self.trainable + self.frozen
        share = self.trainable / whole
        return f"{self.trainable:,} of {whole:,} parameters train ({share:.2%}), in {self.modules} LoRA layers"


def language_targets(model: nn.Module, names: tuple[str, ...]) -> str:
    """A regular expression over full module names: `names` anywhere but in the vision part.

    Raises CourseError for a name that no linear layer outside the vision part has, with the nearest ones.
    """
    outside = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not any(part in VISION_PARTS for part in name.split("."))
    ]
    known = sorted({name.rsplit(".", 1)[-1] for name in outside})
    for name in names:
        if name not in known:
            near = nearest(name, known) or known
            kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
            raise CourseError(
                f"no parameter matches LoRA target '{name}' in {kind}",
                where="lora.targets",
                fix=f"Nearest: {', '.join(near)}",
            )
    wanted = [name for name in outside if name.rsplit(".", 1)[-1] in names]
    return "|".join(re.escape(name) for name in wanted)


def add_language_lora(model: nn.Module, lora: LoraSection) -> nn.Module:
    """peft's model around `model` with adapters on the language model alone; the base is frozen."""
    fields: dict[str, Any] = {
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": language_targets(model, lora.targets),
        "task_type": "CAUSAL_LM",
    }
    return attach_lora(model, fields)


def count_trainable(model: nn.Module) -> TrainableCount:
    """Trainable and frozen elements of a model, sharded or not."""
    sizes = [(p.requires_grad, getattr(p, "ds_numel", p.numel())) for p in model.parameters()]
    return TrainableCount(
        trainable=sum(size for trains, size in sizes if trains),
        frozen=sum(size for trains, size in sizes if not trains),
        modules=sum(hasattr(module, "lora_A") for module in model.modules()),
    )
