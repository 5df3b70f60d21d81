"""What happened in a log: training rows, evaluation rows, progress bars, phase markers, each with its line.

Made by reader.py; failures (out of memory, exit codes, timeouts) are searched by their detectors among `notable`.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from course_lib.doctor.autopsy.sources import Source

Kind = Literal["train", "eval", "summary", "bar", "marker"]
Phase = Literal["load", "init", "train", "eval", "save"]

RANK_PREFIX = re.compile(
    # A host or a line number may stand before it: 'gpu-7: [rank3]: …', '[80746] [rank0]: …'.
    r"^\s*(?:\[\d+\]\s*|[\w.-]+:\s+|\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\s+)?"
    r"(?:\[(?:rank|default|Rank )\s?(\d+)\]:?|\[\d+,(\d+)\]<std\w+>:?)\s?|^(\d{1,4}): ",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line and where it stands; `text` is without its rank prefix."""

    source: str
    number: int
    rank: int | None
    text: str
    quoted: str
    """The line as it stood, for evidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that happened. `seconds` runs on `clock`: a row's own time, a bar's elapsed time, or wall time."""

    kind: Kind
    line: Line
    step: int | None = None
    seconds: float | None = None
    clock: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    phase: Phase | None = None
    total: int | None = None


@dataclass(kw_only=True, slots=True)
class Log:
    """Everything the detectors read."""

    events: list[Event] = field(default_factory=list)
    notable: list[Line] = field(default_factory=list)
    """Lines that may speak of a failure, in file order."""
    settings: dict[str, Any] = field(default_factory=dict)
    states: list[dict[str, Any]] = field(default_factory=list)
    damaged_files: list[str] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    last_lines: dict[str, Line] = field(default_factory=dict)
    total_steps: int | None = None
    resumed_from: int | None = None
    ranks: set[int] = field(default_factory=set)
    """Every rank that any line or file names as its own."""
    _steps: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)

    def training_steps(self, source: str) -> tuple[list[int], list[int]]:
        """Line numbers of a source's training rows and bars, in order, and the step that each reached."""
        if source not in self._steps:
            found = [e for e in self.events if e.line.source == source and e.step is not None]
            found = [e for e in found if e.kind == "train" or e.phase == "train"]
            self._steps[source] = ([e.line.number for e in found], [e.step for e in found])
        return self._steps[source]

    def of(self, *kinds: Kind) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    @property
    def train_rows(self) -> list[Event]:
        return self.of("train")

    @property
    def last_step(self) -> int | None:
        """The highest step that any row or bar of training reached."""
        steps = [
            e.step for e in self.events if e.step is not None and (e.kind in ("train", "eval") or e.phase == "train")
        ]
        return max(steps, default=None)

    @property
    def is_training_log(self) -> bool:
        return bool(self.events)
