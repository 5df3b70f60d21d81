"""One logged row: HF's dicts, JSON lines, 'step 10 loss 1.2' texts, DeepSpeed's and Megatron's own lines."""

import ast
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|NaN|inf|Infinity)"
STEP_KEYS = ("step", "global_step", "current_steps", "iteration", "iter", "_step", "trainer/global_step")
TOTAL_KEYS = ("max_steps", "total_steps")
TIME_KEYS = (
    "time",
    "elapsed",
    "elapsed_seconds",
    "time_seconds",
    "seconds",
    "wall_time",
    "timestamp",
    "_timestamp",
    "_runtime",
    "elapsed_time",
)
LOSS_KEYS = ("loss", "train_loss", "train/loss", "lm_loss", "training_loss")
TRAIN_MARKS = (*LOSS_KEYS, "grad_norm", "train/grad_norm", "reward")
BARE_NON_NUMBER = re.compile(r"(?<=[:\s\[,])(-?)(nan|NaN|inf|Infinity)(?=\s*[,}\]])")
ROW_HINT = re.compile(r"loss|step|iteration|train_runtime|eval_|reward|_seconds|_time", re.I)
TEXT_STEP = re.compile(r"\b(?:global[_ ]?step|step|iteration|iter|it)\b\s*[:=#]?\s*\[?\s*(\d+)(?:\s*/\s*(\d+))?", re.I)
PAIR = re.compile(rf"([A-Za-z][A-Za-z_/.() -]{{0,60}}?)\s*[:=]\s*({NUMBER})\s?(ms\b)?")
SPACED_PAIR = re.compile(rf"\b(loss|grad[_ ]norm|lr|rank|[a-z]+_(?:time|seconds|s|ms))\s+({NUMBER})\s?(ms\b)?", re.I)
TIMED = re.compile(
    r"\b(step|iter\w*|forward|fwd|backward|bwd|compute|data\w*|batch|wait\w*|comm\w*|all_?reduce|barrier|took)"
    rf"\s*[:=]?\s*({NUMBER})\s?(ms|s|sec|seconds)\b",
    re.I,
)
PER_STEP = re.compile(rf"({NUMBER})\s*(?:s|secs?|seconds)/(?:step|it|iter)\b")
DURATION = re.compile(r"(?:(\d+)d\s*)?(?:(\d+)h\s*)?(?:(\d+)m\s*)?(?:(\d+(?:\.\d+)?)s)?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Numbers that were logged together."""

    kind: Literal["train", "eval", "summary"]
    step: int | None
    total: int | None
    seconds: float | None
    values: dict[str, Any]


def row_in(found: str | dict[str, Any]) -> Row | None:
    """The row in a line (or an already parsed record); None when it holds none."""
    if isinstance(found, dict):
        return _row(found)
    if not ROW_HINT.search(found):
        return None
    if "{" in found:
        record = record_in(found)
        if record is not None:
            return _row(record)
    return _text_row(found)


def number(value: Any) -> float | None:
    """A float from a number or from the strings that HF's progress bar writes ('1.834', 'nan')."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def is_bad(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def record_in(text: str) -> dict[str, Any] | None:
    """The dict that a line holds, as JSON or as Python prints it; None when there is none."""
    start, end = text.find("{"), text.rfind("}")
    if end <= start:
        return None
    body = text[start : end + 1]
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        try:
            record = ast.literal_eval(BARE_NON_NUMBER.sub(r"'\1\2'", body))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return record if isinstance(record, dict) and all(isinstance(key, str) for key in record) else None


def _row(record: dict[str, Any]) -> Row | None:
    if "log_history" in record:
        return None
    step = total = None
    if isinstance(record.get("global_step/max_steps"), str):
        step, total = _fraction(record["global_step/max_steps"])
    for key in STEP_KEYS:
        if step is None and number(record.get(key)) is not None:
            step = int(float(record[key]))
    for key in TOTAL_KEYS:
        if total is None and number(record.get(key)):
            total = int(float(record[key])) or None
    kind = _kind(record, step)
    if kind is None:
        return None
    return Row(kind=kind, step=step, total=total, seconds=_seconds(record), values=record)


def _kind(record: dict[str, Any], step: int | None) -> Literal["train", "eval", "summary"] | None:
    if "train_runtime" in record:
        return "summary"
    if any(key in record for key in ("loss", "grad_norm", "train/loss")):
        return "train"
    if any(key.startswith(("eval_", "eval/", "val_", "valid")) for key in record):
        return "eval"
    if any(key in record for key in TRAIN_MARKS):
        return "train"
    # A rank's timing row: {"step": 10, "rank": 3, "step_seconds": 4.2}
    if step is not None and ("rank" in record or any(key.endswith(("_seconds", "_time", "_ms")) for key in record)):
        return "train"
    return None


def _fraction(text: str) -> tuple[int | None, int | None]:
    match = re.match(r"\s*(\d+)\s*/\s*(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (None, None)


def _seconds(record: dict[str, Any]) -> float | None:
    for key in TIME_KEYS:
        if key not in record:
            continue
        value = number(record[key])
        if value is not None:
            return value if math.isfinite(value) else None
        if isinstance(record[key], str):
            return _duration(record[key])
    return None


def _duration(text: str) -> float | None:
    """'0:02:01' (LLaMA-Factory) or '1h 2m 3s' (ms-swift) in seconds; a date and time in epoch seconds."""
    text = text.strip()
    if re.fullmatch(r"(?:\d+ days?, )?\d+(?::\d\d){1,2}(?:\.\d+)?", text):
        days, _, clock = text.rpartition("days, ") if "days" in text else text.rpartition("day, ")
        seconds = 0.0
        for part in clock.split(":"):
            seconds = seconds * 60 + float(part)
        return seconds + 86400 * int(days or 0)
    match = DURATION.match(text)
    if match and any(match.groups()):
        d, h, m, s = (float(part or 0) for part in match.groups())
        return ((d * 24 + h) * 60 + m) * 60 + s
    try:
        from datetime import datetime

        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _text_row(text: str) -> Row | None:
    """'step 10/100 | loss 1.23 | grad norm 0.4', DeepSpeed's 'step=10, skipped=0, lr=[..]', Megatron's 'iteration'."""
    match = TEXT_STEP.search(text)
    if not match:
        return None
    values = _pairs(text)
    if re.search(r"\beval|\bvalid", text, re.I) and "loss" in values and "eval_loss" not in values:
        values["eval_loss"] = values.pop("loss")
    total = int(match[2]) if match[2] else None
    step = int(match[1])
    deepspeed_line = re.search(r"\bstep=\d+, skipped=", text) is not None
    if (
        not deepspeed_line
        and not any(key in values for key in ("loss", "eval_loss", "grad_norm"))
        and not any(_is_timing(key) for key in values)
    ):
        return None
    kind = "eval" if "eval_loss" in values and "loss" not in values else "train"
    values["step"] = step
    return Row(kind=kind, step=step, total=total or None, seconds=None, values=values)


def _pairs(text: str) -> dict[str, Any]:
    """'name: 1.2', 'name=1.2' and 'loss 1.2' pairs; names in one spelling, times in seconds."""
    values: dict[str, Any] = {}
    for pattern in (PAIR, SPACED_PAIR):
        for name, value, unit in pattern.findall(text):
            key = re.sub(r"[ .-]+", "_", name.strip().lower())
            in_ms = unit or key.endswith(("(ms)", "_ms"))
            key = re.sub(r"_?\(ms\)$|_ms$", "_time" if "time" not in key else "", key)
            values.setdefault(_canonical(key), float(value) / 1000 if in_ms else value)
    for name, value, unit in TIMED.findall(text):
        name = "step" if name.lower() == "took" else name.lower()
        values.setdefault(f"{name}_time", float(value) / (1000 if unit == "ms" else 1))
    speed = PER_STEP.search(text)
    if speed:
        values.setdefault("step_time", speed[1])
    return values


def _canonical(name: str) -> str:
    if name in ("lm_loss", "train_loss", "training_loss", "avg_loss"):
        return "loss"
    return {"gradnorm": "grad_norm", "grad-norm": "grad_norm", "gnorm": "grad_norm", "lr": "learning_rate"}.get(
        name, name
    )


def _is_timing(name: str) -> bool:
    return bool(re.search(r"(?:time|seconds|secs|_ms|_s)\b|time_per_iteration|samplespersec", name))
