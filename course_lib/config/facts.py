"""Everything that the lint rules look at, worked out once."""

from dataclasses import dataclass
from typing import Any, Literal

from course_lib.config.model_facts import ModelFacts
from course_lib.config.schema import Schema
from course_lib.config.trainer_view import TrainerView
from course_lib.config.tree import MISSING, get, has

Framework = Literal["trainer", "raw"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """One ds_config and the way it is used."""

    written: dict
    """As it stands in the file."""
    final: dict
    """As it would reach DeepSpeed: autos replaced, keys that nobody reads left out."""
    parsed: Any
    """DeepSpeed's own DeepSpeedConfig of `final` without what it refuses, or None when it accepts nothing of it."""
    schema: Schema
    framework: Framework
    world_size: int | None
    arguments: dict[str, Any] | None
    """TrainingArguments by name, as far as given; None when nothing is known of them."""
    arguments_complete: bool
    """Whether an argument that is not given has its default (a file of arguments) or is unknown (a case)."""
    trainer: TrainerView | None
    model: ModelFacts | None
    lora: dict[str, Any] | None

    @property
    def stage(self) -> int:
        """The ZeRO stage that DeepSpeed ends up with."""
        if self.parsed is not None:
            return int(self.parsed.zero_optimization_stage)
        stage = get(self.final, "zero_optimization.stage", 0)
        return stage if isinstance(stage, int) else 0

    def writes(self, dotted: str) -> bool:
        return has(self.written, dotted)

    def value(self, dotted: str, default: Any = MISSING) -> Any:
        """The value that reaches DeepSpeed."""
        return get(self.final, dotted, default)

    def zero(self, field: str) -> Any:
        """A field of the parsed zero_optimization block, defaults included; None without a parsed config."""
        return getattr(self.parsed.zero_config, field, None) if self.parsed is not None else None

    def device(self, block: str) -> str:
        """none, cpu or nvme: where "offload_param" or "offload_optimizer" goes."""
        config = self.zero(block)
        return str(getattr(config, "device", "none") or "none") if config is not None else "none"

    def argument(self, name: str) -> Any:
        """A training argument if it was given, else None."""
        return (self.arguments or {}).get(name)

    def is_open(self, dotted: str) -> bool:
        """Whether the value waits for a model or a step count that was not given here."""
        return self.trainer is not None and dotted in self.trainer.waiting

    @property
    def precision_bytes(self) -> int:
        """Bytes of one element in the training precision: 2 for bf16 and fp16, 4 for fp32."""
        if self.parsed is None:
            return 2
        half = self.parsed.bfloat16_config.enabled or self.parsed.float16_config.enabled
        undecided = self.framework == "trainer" and get(self.written, "bf16.enabled", None) == "auto"
        return 2 if half or (undecided and self.argument("bf16") is None) else 4
