"""What a detector hands back, and the words it is written in."""

import bisect
from dataclasses import dataclass, field
from typing import Any

from course_lib.doctor.autopsy.events import Event, Line, Log

VERDICTS = (
    "shm_too_small",
    "disk_full",
    "oom_gpu",
    "oom_host",
    "checkpoint_damaged",
    "collective_mismatch",
    "collective_timeout",
    "no_steps",
    "rank_died",
    "labels_all_masked",
    "nan_signature",
    "clock_jump",
    "straggler",
    "stalled",
    "early_stop_inactive",
    "healthy",
    "unknown",
)
"""All verdicts, in their order of precedence: a cause stands before what it causes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One verdict with its reasons."""

    verdict: str
    evidence: list[str]
    """Lines of the log, quoted; facts derived from them stand behind."""
    phase: str | None = None
    cause: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    at_steps: list[int] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What the advice texts fill in."""


def quote(line: Line) -> str:
    """A line as evidence: where it stands and what it says."""
    return f"{line.source}:{line.number}: {line.quoted[:500]}"


def went_on_after(log: Log, line: Line, steps: int = 2) -> bool:
    """Whether training made `steps` more steps after `line` in the same source: then it was survived."""
    numbers, reached = log.training_steps(line.source)
    position = bisect.bisect_left(numbers, line.number)
    # A restart prints steps again; only steps beyond the ones before count.
    highest = max(reached[:position], default=-1)
    beyond: set[int] = set()
    for step in reached[position:]:
        if step > highest:
            beyond.add(step)
        if len(beyond) >= steps:
            return True
    return False


def phase_at(log: Log, line: Line) -> str | None:
    """What the run was doing at `line`, from the bars, markers and rows before it in the same source (or rank)."""
    before = [e for e in log.events if e.line.source == line.source and e.line.number < line.number]
    # A launcher's log knows who died; what that rank was doing stands in its own log.
    rank = [e for e in log.events if e.line.source != line.source and e.line.rank == line.rank]
    own = [e for e in before if e.line.rank in (line.rank, None)] or before or rank or log.events
    return _phase_of(own[-1]) if own else None


def _phase_of(event: Event) -> str | None:
    if event.kind in ("train", "eval", "summary"):
        # An evaluation's numbers are written when it is over.
        return "train"
    done, total = event.values.get("done"), event.total
    if event.kind == "bar" and event.phase == "load" and done is not None and done == total:
        # All weights are read: what follows is placing them, wrapping them, partitioning them.
        return "init"
    return event.phase


def last_step_before(log: Log, line: Line) -> int | None:
    """The last training step seen before `line`, in its source or in any other one."""
    own = [
        e.step
        for e in log.events
        if e.step is not None and e.line.source == line.source and e.line.number < line.number
    ]
    return max(own, default=None) if own else log.last_step
