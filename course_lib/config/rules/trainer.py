"""The JSON against the training arguments: who wins, who raises, and when."""

from typing import Any

from course_lib.config.facts import Facts
from course_lib.config.findings import Finding, delete, found, set_to
from course_lib.config.trainer_view import Arguments, Mismatch, trainer_defaults
from course_lib.config.tree import get

_SAME_SHAPE = {
    "linear": "WarmupDecayLR",
    "cosine": "WarmupCosineLR",
    "constant_with_warmup": "WarmupLR",
}
"""lr_scheduler_type → the DeepSpeed scheduler that draws the same curve."""
_OPTIMIZER_ARGUMENTS = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay"}


def trainer_findings(facts: Facts) -> list[Finding]:
    """Nothing for a raw deepspeed.initialize."""
    findings = [*_warmup(facts)]
    if facts.trainer is None:
        return findings
    arguments = Arguments(facts.arguments, facts.world_size or 1, {})
    for mismatch in facts.trainer.mismatches:
        findings += _mismatch(facts, mismatch, given=arguments.gives(mismatch.argument))
    for key, text in facts.trainer.refusals:
        text = f"the Trainer's integration refuses this: {text}"
        fix = f"Change {key}" if facts.writes(key) else f"Add {key}"
        edit = None if facts.writes(key) else set_to(key, {"stage": 0})
        findings.append(found("refused", "error", key, text, fix if key else "See the message", edit if key else None))
    return [
        *findings,
        *_checkpointing(facts),
        *_clipping(facts),
        *_accumulation(facts),
        *_two_schedulers(facts),
        *_two_optimizers(facts),
    ]


def _mismatch(facts: Facts, mismatch: Mismatch, *, given: bool) -> list[Finding]:
    key = mismatch.key
    differs = f"{mismatch.written} here, {mismatch.argument} = {mismatch.argument_value}"
    fix = 'Write "auto": the Trainer fills it in'
    if given:
        text = (
            f"{differs} in the training arguments: the Trainer raises ValueError in train(), after the model is loaded"
        )
        return [found("trainer_mismatch", "error", key, text, fix, set_to(key, "auto"))]
    if facts.arguments_complete:
        text = f"{differs} by default: the Trainer raises ValueError in train() unless the argument is given elsewhere"
        return [found("trainer_default_differs", "warning", key, text, fix, set_to(key, "auto"))]
    return []


def _clipping(facts: Facts) -> list[Finding]:
    """Left out of the JSON, gradient_clipping is DeepSpeed's default: the Trainer fills only what says auto."""
    wanted = facts.argument("max_grad_norm")
    default = facts.schema.default_of("gradient_clipping")
    if facts.writes("gradient_clipping") or wanted is None or wanted == default:
        return []
    text = f"not in the JSON, so DeepSpeed clips at its default {default}; max_grad_norm {wanted} is not used"
    edit = set_to("gradient_clipping", "auto")
    return [found("argument_not_used", "error", "gradient_clipping", text, 'Add "gradient_clipping": "auto"', edit)]


def _checkpointing(facts: Facts) -> list[Finding]:
    """Only a model that calls deepspeed.checkpointing reads this block; transformers' models do not."""
    block = facts.written.get("activation_checkpointing")
    if not isinstance(block, dict) or not any(block.values()):
        return []
    text = "transformers' models checkpoint by gradient_checkpointing and do not read this block"
    fix = "Set gradient_checkpointing: true in the training arguments"
    return [found("no_effect", "note", "activation_checkpointing", text, fix, delete("activation_checkpointing"))]


def _accumulation(facts: Facts) -> list[Finding]:
    key, wanted = "gradient_accumulation_steps", facts.argument("gradient_accumulation_steps")
    if facts.writes(key) or wanted in (None, 1):
        return []
    text = f"not in the JSON, so accelerate puts 1 there; the Trainer accumulates {wanted}: DeepSpeed counts wrong"
    return [found("argument_not_used", "warning", key, text, f'Add "{key}": "auto"', set_to(key, "auto"))]


def _two_schedulers(facts: Facts) -> list[Finding]:
    block = facts.written.get("scheduler")
    asked = facts.argument("lr_scheduler_type")
    if asked is None and facts.arguments_complete:
        asked = trainer_defaults().get("lr_scheduler_type")
    if not isinstance(block, dict) or asked is None:
        return []
    name = block.get("type")
    same = _SAME_SHAPE.get(str(asked)) == name
    text = f"{name} in the JSON replaces lr_scheduler_type '{asked}' without a word"
    if same:
        text = f"{name} in the JSON stands in for lr_scheduler_type '{asked}': two places that say one thing"
    fix = "Delete the scheduler block, or the argument"
    return [found("two_schedulers", "note" if same else "warning", "scheduler", text, fix, delete("scheduler"))]


def _two_optimizers(facts: Facts) -> list[Finding]:
    block = facts.written.get("optimizer")
    if not isinstance(block, dict):
        return []
    findings = []
    asked, name = facts.argument("optim"), block.get("type")
    if asked is not None:
        same = str(asked).lower().startswith("adamw") and str(name).lower() in ("adam", "adamw")
        text = f"{name} in the JSON replaces optim '{asked}' without a word"
        fix = "Delete the optimizer block, or the argument"
        findings.append(found("two_optimizers", "note" if same else "warning", "optimizer", text, fix))
    params = block.get("params") if isinstance(block.get("params"), dict) else {}
    for key, argument in _OPTIMIZER_ARGUMENTS.items():
        findings += _not_passed_on(facts, f"optimizer.params.{key}", key in params, argument)
    return findings


def _not_passed_on(facts: Facts, key: str, written: bool, argument: str) -> list[Finding]:
    """The Trainer replaces "auto"; a key that is not there keeps the class's default."""
    value = facts.argument(argument)
    if written or value is None or (argument != "learning_rate" and value == trainer_defaults().get(argument)):
        return []
    text = f"not in the JSON, so the optimizer's own default is used; {argument} {value} is not"
    return [found("argument_not_used", "error", key, text, 'Write "auto"', set_to(key, "auto"))]


def _warmup(facts: Facts) -> list[Finding]:
    """warmup_num_steps against total_num_steps and max_steps; the learning rate would not reach its value."""
    key = "scheduler.params.warmup_num_steps"
    warmup = get(facts.final, key, None)
    if not _counts(warmup):
        return []
    limits = {
        "scheduler.params.total_num_steps": get(facts.final, "scheduler.params.total_num_steps", None),
        "max_steps": facts.argument("max_steps"),
    }
    for name, steps in limits.items():
        if _counts(steps) and steps > 0 and warmup > steps:
            text = f"{warmup} warm-up steps in a run of {steps} ({name}): the learning rate never reaches its value"
            fix = f"Write fewer than {steps}"
            return [found("warmup_too_long", "warning", key, text, fix, set_to(key, max(1, steps // 10)))]
    return []


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
