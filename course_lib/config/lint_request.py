"""What `course lint` was asked: a ds_config file, a run config, or a case file, and how it is used."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.config.ds_file import read_ds_config
from course_lib.config.facts import Framework
from course_lib.config.findings import Finding, in_order
from course_lib.config.lint import Report, examine
from course_lib.config.run_config import RunConfig, load_run_config
from course_lib.errors import CourseError
from course_lib.files import read_json, read_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One ds_config to lint."""

    source: Path
    """The file that was named."""
    ds_path: Path
    """The file that holds the ds_config: the source, the one a run config points to, or the case file."""
    ds_config: dict
    framework: Framework = "trainer"
    world_size: int | None = None
    training_arguments: dict[str, Any] | None = None
    arguments_complete: bool = False
    model: Any = None
    lora: dict[str, Any] | None = None
    file_findings: tuple[Finding, ...] = ()
    case: dict | None = None
    """The whole case, when the ds_config stands inside one."""

    def examine(self, ds_config: dict | None = None) -> Report:
        """Lint this request, or another ds_config in its place (then without the findings about the file)."""
        report = examine(
            self.ds_config if ds_config is None else ds_config,
            framework=self.framework,
            world_size=self.world_size,
            training_arguments=self.training_arguments,
            model=self.model,
            lora=self.lora,
            arguments_complete=self.arguments_complete,
        )
        if ds_config is not None:
            return report
        return dataclasses.replace(report, findings=in_order([*self.file_findings, *report.findings]))


def from_file(
    path: Path,
    *,
    framework: Framework = "trainer",
    world_size: int | None = None,
    arguments: Path | None = None,
    model: str | None = None,
) -> Request:
    """A ds_config JSON, or a run config (YAML), whose ds_config, ranks, model and arguments are then used."""
    given = read_arguments(arguments) if arguments is not None else None
    if path.suffix.lower() in (".yaml", ".yml"):
        run = load_run_config(path)
        ds_config, wrong = read_ds_config(run.ds_config, framework=framework)
        return Request(
            source=path,
            ds_path=run.ds_config,
            ds_config=ds_config,
            framework=framework,
            world_size=world_size or run.ranks,
            training_arguments={**run_arguments(run), **(given or {})},
            model=model or run.model,
            lora=run_lora(run),
            file_findings=tuple(wrong),
        )
    ds_config, wrong = read_ds_config(path, framework=framework)
    return Request(
        source=path,
        ds_path=path,
        ds_config=ds_config,
        framework=framework,
        world_size=world_size,
        training_arguments=given,
        arguments_complete=given is not None,
        model=model,
        file_findings=tuple(wrong),
    )


def from_case(path: Path) -> Request:
    """A case file: ds_config with framework, world_size, training_arguments, model and lora."""
    case = read_json(path)
    if not isinstance(case, dict) or not isinstance(case.get("ds_config"), dict):
        raise CourseError("has no mapping 'ds_config'", where=str(path), fix="A case wraps a ds_config and its use")
    return Request(
        source=path,
        ds_path=path,
        ds_config=case["ds_config"],
        framework=case.get("framework") or "trainer",
        world_size=case.get("world_size"),
        training_arguments=case.get("training_arguments"),
        model=case.get("model"),
        lora=case.get("lora"),
        case=case,
    )


def read_arguments(path: Path) -> dict[str, Any]:
    """Training arguments from a YAML or JSON file of names and values."""
    import yaml

    try:
        values = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise CourseError(f"is not valid YAML{f' in line {mark.line + 1}' if mark else ''}", where=str(path)) from error
    if not isinstance(values, dict):
        raise CourseError("must be a mapping of argument names to values", where=str(path))
    return {key: _number(value) for key, value in values.items()}


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-4 (no dot) as text; TrainingArguments means the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def run_arguments(run: RunConfig) -> dict[str, Any]:
    """The TrainingArguments that a run config stands for, by HF's names."""
    names = ("gradient_accumulation_steps", "max_steps", "learning_rate", "lr_scheduler_type", "warmup_steps")
    names += ("weight_decay", "max_grad_norm", "bf16")
    return {name: getattr(run.train, name) for name in names} | {
        "per_device_train_batch_size": run.train.micro_batch_size
    }


def run_lora(run: RunConfig) -> dict[str, Any]:
    """The peft LoraConfig fields of a run config."""
    return {"r": run.lora.r, "lora_alpha": run.lora.alpha, "target_modules": list(run.lora.targets)}
