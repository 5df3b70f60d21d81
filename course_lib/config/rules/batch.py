"""train_batch_size = micro batch x accumulation steps x data-parallel ranks (DeepSpeedConfig._batch_assertion)."""

from typing import Any

from course_lib.config.facts import Facts
from course_lib.config.findings import Finding, delete, found, set_to
from course_lib.config.numbers import is_number, is_whole, whole_near

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def batch_findings(facts: Facts) -> list[Finding]:
    if not facts.writes(TOTAL) and not facts.writes(MICRO):
        text = f"neither {TOTAL} nor {MICRO} is given; DeepSpeed asserts that one of them is"
        value = "auto" if facts.framework == "trainer" else 1
        return [found("missing_key", "error", TOTAL, text, f"Set {MICRO}", set_to(MICRO, value))]
    findings = []
    for key in (TOTAL, MICRO, STEPS):
        value = facts.written.get(key)
        if is_number(value) and not is_whole(value):
            right = max(1, whole_near(value, otherwise=1))
            text = f"{value} is no count of samples"
            findings.append(found("fractional_number", "error", key, text, f"Write {right}", set_to(key, right)))
        elif isinstance(value, bool):
            text = f"{str(value).lower()} counts as {int(value)} here"
            findings.append(found("wrong_type", "note", key, text, f"Write {int(value)}", set_to(key, int(value))))
        elif isinstance(value, int | float) and value < 1:
            findings.append(
                found("out_of_range", "error", key, f"{value} is below 1", "Write 1 or more", set_to(key, 1))
            )
    return findings or _equation(facts)


def data_parallel_ranks(facts: Facts) -> int | None:
    """Ranks that see different samples: all of them, less tensor and sequence parallelism."""
    if facts.world_size is None:
        return None
    tensor = facts.value("tensor_parallel.autotp_size", 0)
    sequence = facts.value("sequence_parallel_size", 1)
    shared = (tensor if _counts(tensor) else 1) * (sequence if _counts(sequence) else 1)
    return max(1, facts.world_size // shared)


def _equation(facts: Facts) -> list[Finding]:
    total, micro, steps = (facts.value(key, None) for key in (TOTAL, MICRO, STEPS))
    ranks = data_parallel_ranks(facts)
    if not _counts(total) or any(value is not None and not _counts(value) for value in (micro, steps)):
        return []
    known = (micro or 1) * (steps or 1)
    if ranks is None:
        fits, product = total % known == 0, f"{micro or '?'} x {steps or '?'} x ranks"
    elif micro and steps:
        fits, product = total == known * ranks, f"{micro} x {steps} x {ranks} = {known * ranks}"
    else:
        fits, product = total % (known * ranks) == 0, f"a multiple of {micro or steps or 1} x {ranks} = {known * ranks}"
    if fits:
        return []
    text = f"{total} is not micro batch x accumulation steps x ranks: {product}"
    if facts.framework == "trainer":
        edit, fix = set_to(TOTAL, "auto"), 'Write "auto", or delete it'
    elif micro and ranks:
        right = known * ranks
        edit, fix = set_to(TOTAL, right), f"Write {right}, or delete it: DeepSpeed works it out"
    elif micro:
        edit, fix = delete(TOTAL), f"Delete it: DeepSpeed works it out from {MICRO}"
    else:
        right = known * (ranks or 1)
        edit, fix = set_to(TOTAL, right), f"Write a multiple of {right}"
    return [found("batch_equation", "error", _written_key(facts), text, fix, edit)]


def _written_key(facts: Facts) -> str:
    return next((key for key in (TOTAL, MICRO, STEPS) if facts.writes(key)), TOTAL)


def _counts(value: Any) -> bool:
    return is_whole(value) and value >= 1
