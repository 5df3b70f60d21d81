"""Lint: what a ds_config would really do, and what in it does not do what it says.

`lint` answers with findings alone; `examine` also says what became of every "auto" and what was not checked.
"""

from dataclasses import dataclass, field
from typing import Any

from course_lib.config.facts import Facts, Framework
from course_lib.config.findings import Finding, found, in_order
from course_lib.config.installed import deepspeed_version
from course_lib.config.model_facts import ModelFacts, model_facts
from course_lib.config.refusals import judge
from course_lib.config.resolved import Resolved, resolved_values
from course_lib.config.rules.batch import batch_findings
from course_lib.config.rules.keys import key_findings
from course_lib.config.rules.model import model_findings
from course_lib.config.rules.offload import offload_findings
from course_lib.config.rules.optimizer import optimizer_findings, scheduler_findings
from course_lib.config.rules.precision import precision_findings
from course_lib.config.rules.trainer import trainer_findings
from course_lib.config.rules.values import value_findings
from course_lib.config.rules.zero import zero_findings
from course_lib.config.schema import installed_schema
from course_lib.config.trainer_view import TrainerView, through_trainer
from course_lib.config.tree import without
from course_lib.errors import CourseError

RULES = (
    value_findings,
    batch_findings,
    precision_findings,
    zero_findings,
    offload_findings,
    optimizer_findings,
    scheduler_findings,
    trainer_findings,
    model_findings,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One ds_config, examined."""

    findings: list[Finding]
    resolved: dict[str, Resolved]
    """Dotted key → what became of it: every "auto", and the omitted keys whose default matters."""
    not_checked: list[str] = field(default_factory=list)


def lint(
    ds_config: dict,
    *,
    framework: Framework = "trainer",
    world_size: int | None = None,
    training_arguments: dict[str, Any] | None = None,
    model: Any = None,
    lora: dict[str, Any] | None = None,
    arguments_complete: bool = False,
) -> list[Finding]:
    """Findings for a ds_config, worst first.

    Args:
        ds_config: the parsed JSON; it is not changed.
        framework: "trainer" (HF Trainer fills "auto") or "raw" (a bare deepspeed.initialize).
        world_size: ranks; None leaves out what needs them.
        training_arguments: TrainingArguments by name, as many as are known.
        model: catalogue name, directory, or {"model_type": …, "config": {…}}. lora: peft LoraConfig fields.
        arguments_complete: arguments that are not given have their default (else: nothing is known of them).
    """
    return examine(
        ds_config,
        framework=framework,
        world_size=world_size,
        training_arguments=training_arguments,
        model=model,
        lora=lora,
        arguments_complete=arguments_complete,
    ).findings


def examine(
    ds_config: dict,
    *,
    framework: Framework = "trainer",
    world_size: int | None = None,
    training_arguments: dict[str, Any] | None = None,
    model: Any = None,
    lora: dict[str, Any] | None = None,
    arguments_complete: bool = False,
) -> Report:
    """As `lint`, with what every "auto" became. Raises CourseError for arguments it cannot work with."""
    _check_call(ds_config, framework, world_size)
    schema = installed_schema()
    shape, not_checked = _shape(model)
    if world_size is None:
        not_checked.append("the batch equation for a number of ranks: give --world-size")
    findings = key_findings(ds_config, schema)
    usable = without(ds_config, *(f.key for f in findings if f.level == "error"))
    ranks = world_size or _implied_ranks(usable)
    view = _trainer_view(usable, framework, training_arguments, ranks, shape)
    final = view.config if view is not None else usable
    verdict, refused = judge(_askable(final, view), schema, world_size=ranks)
    facts = Facts(
        written=ds_config,
        final=final,
        parsed=verdict.parsed,
        schema=schema,
        framework=framework,
        world_size=world_size,
        arguments=training_arguments,
        arguments_complete=arguments_complete,
        trainer=view,
        model=shape,
        lora=lora,
    )
    findings += refused
    for rule in RULES:
        findings += rule(facts)
    if verdict.parsed is None and not any(f.level == "error" for f in findings):
        text = f"DeepSpeed {deepspeed_version()} raises {type(verdict.error).__name__}: {verdict.error}"
        findings.append(found("refused", "error", "", text))
    return Report(findings=in_order(findings), resolved=resolved_values(facts), not_checked=not_checked)


def _check_call(ds_config: Any, framework: str, world_size: int | None) -> None:
    if not isinstance(ds_config, dict):
        raise CourseError(
            f"a ds_config must be a mapping, not {type(ds_config).__name__}", fix="See examples/*/ds_config.json"
        )
    if framework not in ("trainer", "raw"):
        raise CourseError(f"unknown framework '{framework}'", fix="One of: trainer, raw")
    if world_size is not None and (not isinstance(world_size, int) or world_size < 1):
        raise CourseError(f"world_size must be a whole number of ranks, at least 1, got {world_size!r}")


def _shape(model: Any) -> tuple[ModelFacts | None, list[str]]:
    if model is None:
        return None, ["checks against a model's shape: no model was given"]
    try:
        return model_facts(model), []
    except (CourseError, ImportError) as error:
        return None, [f"checks against the model's shape: {error}"]


def _trainer_view(
    usable: dict, framework: Framework, arguments: dict[str, Any] | None, ranks: int, shape: ModelFacts | None
) -> TrainerView | None:
    if framework == "raw":
        return None
    model_config = shape.config if shape is not None else None
    return through_trainer(usable, arguments, world_size=ranks, model_config=model_config)


def _askable(final: dict, view: TrainerView | None) -> dict:
    """Without the autos that the Trainer would still fill, or that accelerate raises on before DeepSpeed is asked."""
    if view is None:
        return final
    return without(final, *view.waiting, *view.leftover_autos)


def _implied_ranks(config: dict) -> int:
    """The number of ranks for which the batch equation holds, where all three numbers are written; else 1."""
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, steps = (config.get(key) for key in keys)
    if all(isinstance(v, int) and v > 0 for v in (total, micro, steps)) and total % (micro * steps) == 0:
        return total // (micro * steps)
    return 1
