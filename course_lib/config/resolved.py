"""What became of every "auto", and of the omitted keys whose default people should know."""

from dataclasses import asdict, dataclass
from typing import Any

from course_lib.config.facts import Facts
from course_lib.config.installed import deepspeed_version
from course_lib.config.schema import Block
from course_lib.config.trainer_view import HIDDEN_SIZE_KEYS
from course_lib.config.tree import get, has, paths

WORTH_SAYING = (
    "gradient_clipping",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
"""Top-level keys shown even when nobody wrote them: the batch, and a default that changed in 2026 (1.0, was off)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """One key on its way from the file to DeepSpeed."""

    written: Any
    """None when the key is not in the file."""
    value: Any
    """What DeepSpeed gets; "auto" when that waits for something not given here."""
    source: str

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


def resolved_values(facts: Facts) -> dict[str, Resolved]:
    answer = {dotted: _auto(facts, dotted) for dotted, value in paths(facts.written) if value == "auto"}
    for key in WORTH_SAYING:
        if key not in facts.written and facts.parsed is not None:
            value = facts.value(key, getattr(facts.parsed, key))
            added = facts.framework == "trainer" and has(facts.final, key)
            source = "accelerate" if added else "worked out by DeepSpeed" if "batch" in key else _default_source()
            answer[key] = Resolved(written=None, value=value, source=source)
    return answer


def _auto(facts: Facts, dotted: str) -> Resolved:
    if facts.is_open(dotted):
        rule = dict(zip(HIDDEN_SIZE_KEYS, _HIDDEN_RULES, strict=True)).get(dotted)
        source = f"Trainer: {rule}, needs --model" if rule else "Trainer: the number of steps, needs max_steps"
        return Resolved(written="auto", value="auto", source=source)
    if facts.framework == "trainer":
        value = get(facts.final, dotted, "auto")
        if value != "auto":
            return Resolved(written="auto", value=value, source=_trainer_source(facts, dotted))
        return Resolved(written="auto", value=None, source="nothing fills it: accelerate raises")
    default = facts.schema.default_of(dotted)
    if facts.schema.blocks.get(dotted.rpartition(".")[0], Block()).model is None:
        return Resolved(written="auto", value="auto", source="kept as text")
    shown = default if default is None or isinstance(default, bool | int | float | str) else str(default)
    return Resolved(written="auto", value=shown, source=_default_source())


_HIDDEN_RULES = ("hidden_size squared", "0.9 x hidden_size squared", "10 x hidden_size")

_FROM_ARGUMENT = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "train_batch_size": "per_device_train_batch_size",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.betas": "adam_beta1",
    "optimizer.params.eps": "adam_epsilon",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "scheduler.params.total_num_steps": "max_steps",
    "scheduler.params.warmup_num_steps": "warmup_steps",
    "fp16.enabled": "fp16",
    "bf16.enabled": "bf16",
}
"""For the words in the report only; the values come from the installed integration."""


def _trainer_source(facts: Facts, dotted: str) -> str:
    argument = _FROM_ARGUMENT.get(dotted)
    if argument is not None:
        given = facts.argument(argument) is not None
        return f"Trainer: {argument}" + ("" if given else " (not given: its default)")
    return "Trainer: the model's hidden_size" if dotted in HIDDEN_SIZE_KEYS else "Trainer or accelerate"


def _default_source() -> str:
    return f"DeepSpeed {deepspeed_version()} default"
