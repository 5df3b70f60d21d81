"""A case: one training setting, whole, as `course plan --case` reads it and `course measure` runs it.

Not here: what the case costs (report.py), or which ds_config keys mean what (deepspeed_settings.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError, did_you_mean
from course_lib.files import read_json
from course_lib.shapes.build import ATTENTION, DTYPES

QUANTIZATIONS = ("nf4", "int8")
LOSSES = ("all_positions", "supervised_positions")
LOADS = ("materialised", "zero_init")
OPTIMIZERS = ("AdamW (torch)", "FusedAdam", "DeepSpeedCPUAdam", "SGD")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCase:
    """One training setting. Sizes are per GPU; `video_grids` are those of each sample."""

    model: str | dict[str, Any]
    """Catalogue name, directory, or {"model_type": …, "config": {…}}."""
    dtype: str = "bfloat16"
    quantization: str | None = None
    lora: dict[str, Any] | None = None
    """Fields of peft.LoraConfig; None trains every parameter."""
    optimizer: str = "AdamW (torch)"
    gradient_checkpointing: bool = True
    attention: str = "sdpa"
    micro_batch_size: int = 1
    sequence_length: int = 2048
    video_grids: tuple[tuple[int, int, int], ...] = ()
    loss: str = "all_positions"
    supervised_tokens: int | None = None
    """Positions per sample that carry a label; what supervised_positions computes logits for."""
    ds_config: dict[str, Any] = field(default_factory=dict)
    world_size: int = 1
    load: str = "materialised"
    outputs_kept: bool = False
    """The step's output object, logits included, lives until after the optimizer step."""

    @property
    def name(self) -> str:
        if isinstance(self.model, dict):
            return str(self.model.get("model_type", "model"))
        return str(self.model)


def read_case(path: Path | str) -> tuple[MemoryCase, dict[str, Any] | None]:
    """The case in a JSON file, and its `measured` block when the file wraps one. Raises CourseError."""
    values = read_json(Path(path))
    measured = None
    if isinstance(values, dict) and "case" in values:
        measured = values.get("measured")
        values = values["case"]
    return case_from(values, where=str(path)), measured


def case_from(values: Any, *, where: str = "case") -> MemoryCase:
    """A checked MemoryCase from plain JSON values. Raises CourseError naming the key and what is allowed."""
    if not isinstance(values, dict):
        raise CourseError("a case must be a JSON object", where=where)
    known = {f.name for f in fields(MemoryCase)}
    for key in values:
        if key not in known and not key.startswith("_"):
            raise CourseError(f"unknown key '{key}'", where=where, fix=did_you_mean(str(key), known))
    if "model" not in values:
        raise CourseError("key 'model' is missing", where=where)
    present = {k: v for k, v in values.items() if k in known}
    for key in ("ds_config", "video_grids"):
        if present.get(key, "absent") is None:
            present.pop(key)
    if "video_grids" in present:
        present["video_grids"] = _grids(present["video_grids"], where)
    case = MemoryCase(**present)
    _check(case, where)
    return case


def _grids(value: Any, where: str) -> tuple[tuple[int, int, int], ...]:
    try:
        grids = tuple(tuple(int(n) for n in grid) for grid in value)
    except (TypeError, ValueError) as error:
        raise CourseError("'video_grids' must be a list of [t, h, w]", where=where) from error
    for grid in grids:
        if len(grid) != 3 or min(grid) < 1:
            raise CourseError(f"video grid {list(grid)} must be three numbers above zero (t, h, w)", where=where)
        if grid[1] % 2 or grid[2] % 2:
            raise CourseError(
                f"video grid {list(grid)}: h and w must be even", where=where, fix="A token is a 2×2 block of patches"
            )
    return grids


def _check(case: MemoryCase, where: str) -> None:
    _one_of(where, "dtype", case.dtype, DTYPES)
    _one_of(where, "attention", case.attention, ATTENTION)
    _one_of(where, "loss", case.loss, LOSSES)
    _one_of(where, "load", case.load, LOADS)
    _one_of(where, "optimizer", case.optimizer, OPTIMIZERS)
    if not isinstance(case.ds_config, dict):
        raise CourseError("'ds_config' must be an object", where=where)
    if case.quantization is not None:
        _one_of(where, "quantization", case.quantization, QUANTIZATIONS)
        if case.lora is None:
            raise CourseError(
                f"{case.quantization} weights cannot be trained",
                where=where,
                fix="Add a lora section, or no quantization",
            )
        if (case.ds_config.get("zero_optimization") or {}).get("stage") == 3:
            raise CourseError(
                f"{case.quantization} weights under ZeRO stage 3 are not modelled",
                where=where,
                fix="Use stage 2: quantized weights are small enough to keep whole",
            )
    for key in ("micro_batch_size", "sequence_length", "world_size"):
        value = getattr(case, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CourseError(f"'{key}: {value}' must be a whole number above zero", where=where)
    if case.loss == "supervised_positions":
        count = case.supervised_tokens
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= case.sequence_length:
            raise CourseError(
                f"loss supervised_positions needs supervised_tokens from 1 to {case.sequence_length}, got {count}",
                where=where,
            )
    if case.lora is not None and not isinstance(case.lora, dict):
        raise CourseError("'lora' must be an object of LoraConfig fields, or null", where=where)


def _one_of(where: str, key: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise CourseError(f"'{key}: {value}' is not allowed", where=where, fix="One of: " + ", ".join(allowed))
