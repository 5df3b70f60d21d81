"""Annotations of long clips become windows: events re-based to the window's start and clipped to it.

A model that sees seconds 16 to 24 of a clip sees them as 0 to 8, so its answer must count from there too.
Not here: reading the frames (course_lib.media) and the text of an answer (intervals.py).
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from course_lib.data.intervals import Interval, format_intervals, merge_intervals
from course_lib.errors import CourseError, did_you_mean
from course_lib.files import read_text

KEYS = ("video", "duration_seconds", "question", "events")
ROUNDING_SECONDS = 1e-3
"""Containers give durations such as 9.99999 s: a difference below one millisecond is no difference."""
_DIGITS = 6
"""Re-based times are rounded to microseconds: 16.3 − 16.0 should be 0.3, not 0.3000000000000007."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Annotation:
    """One clip and its events, in seconds of the source video."""

    video: Path
    duration_seconds: float
    question: str
    events: tuple[Interval, ...]
    where: str = ""
    """File and line this came from, for messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Seconds [start, end) of one clip with its question; `events` count from the window's start."""

    video: Path
    question: str
    start_seconds: float
    end_seconds: float
    events: tuple[Interval, ...]
    index: int
    """Position in its WindowSet."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end_seconds - self.start_seconds

    @property
    def answer(self) -> str:
        """The events as the text a model is trained to answer with."""
        return format_intervals(self.events)


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowCounts:
    """What cutting kept, changed and lost. An event counts once in each window it reaches into."""

    clips: int = 0
    windows: int = 0
    """Windows kept."""
    empty_windows_dropped: int = 0
    """Windows without an event, left out because `keep_empty` was false."""
    events: int = 0
    """Events in the annotations, overlapping ones merged."""
    events_merged: int = 0
    """Events that overlapped or touched an earlier one of their clip and became part of it."""
    pieces_whole: int = 0
    """Events that lie whole in a window."""
    pieces_clipped: int = 0
    """Parts of an event that reaches over the edge of a window."""
    pieces_too_short: int = 0
    """Parts that were dropped because they last less than `min_event_seconds` within the window."""
    events_in_no_window: int = 0
    """Events of which no window has a part: too short everywhere, in a gap, or in the clip's tail."""
    uncovered_seconds: float = 0.0
    """Seconds of the clips that no window covers: tails, and gaps where the stride exceeds the window."""

    def describe(self) -> str:
        """One line for the log."""
        return (
            f"{self.windows} windows from {self.clips} clips; left out {self.empty_windows_dropped} windows without "
            f"an event; events {self.events}: {self.pieces_whole} whole and {self.pieces_clipped} clipped in windows, "
            f"{self.pieces_too_short} parts too short, {self.events_in_no_window} in no window; "
            f"{self.uncovered_seconds:.1f} s covered by no window"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowSet:
    """Windows in the order of the annotations, and the counts of what did not make it."""

    windows: tuple[Window, ...]
    counts: WindowCounts

    def as_record(self) -> dict[str, Any]:
        """The counts as plain JSON types."""
        return asdict(self.counts)


def read_annotations(
    path: Path | str, *, on_missing_video: Callable[[CourseError], None] | None = None
) -> tuple[Annotation, ...]:
    """Read an annotation file: one JSON object per line with the keys in KEYS.

    Args:
        path: JSONL file; video paths are relative to it.
        on_missing_video: called with the finding for each line whose video is missing or empty; the line is left
            out. Without it the first such line stops the reading.

    Returns: the annotations in file order, at least one. Raises CourseError that names file, line and what is wrong.
    """
    path = Path(path).resolve()
    annotations, left_out = [], 0
    # Not str.splitlines: a question may hold U+2028, which is no end of line in JSON.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        annotation = _annotation(_json(line, f"{path}:{number}"), path.parent, f"{path}:{number}")
        finding = _video_finding(annotation)
        if finding is None:
            annotations.append(annotation)
        elif on_missing_video is None:
            raise finding
        else:
            left_out += 1
            on_missing_video(finding)
    if not annotations:
        what = f"has no line left: {left_out} lines name a missing video" if left_out else "is empty"
        raise CourseError(f"annotation file {what}", where=str(path), fix="One JSON object per clip is needed")
    return tuple(annotations)


def cut_windows(
    annotations: Iterable[Annotation],
    window_seconds: float,
    stride_seconds: float,
    keep_empty: bool = False,
    *,
    min_event_seconds: float = 0.2,
) -> WindowSet:
    """Cut clips into windows [k·stride, k·stride + window) that lie whole in the clip.

    Args:
        annotations: clips and their events. window_seconds: length of every window.
        stride_seconds: distance between two starts. keep_empty: keep windows without an event (answer "none").
        min_event_seconds: a part of an event shorter than this within a window is dropped, and counted.

    Returns: windows with events re-based and clipped, and counts. Raises CourseError when a clip is shorter than a
    window, or when nothing is left.
    """
    for name, value in (("window_seconds", window_seconds), ("stride_seconds", stride_seconds)):
        if not (math.isfinite(value) and value > 0):
            raise CourseError(f"{name} {value} must be above zero", where="windows")
    windows: list[Window] = []
    tally = dict.fromkeys(WindowCounts.__dataclass_fields__, 0)
    for annotation in annotations:
        starts = _starts(annotation, window_seconds, stride_seconds)
        events = merge_intervals(annotation.events)
        tally["clips"] += 1
        tally["events"] += len(events)
        tally["events_merged"] += len(annotation.events) - len(events)
        tally["uncovered_seconds"] += _uncovered_seconds(annotation.duration_seconds, starts, window_seconds)
        reached: set[Interval] = set()
        for start in starts:
            pieces = _pieces(events, start, window_seconds, min_event_seconds, tally, reached)
            if not pieces and not keep_empty:
                tally["empty_windows_dropped"] += 1
                continue
            windows.append(
                Window(
                    video=annotation.video,
                    question=annotation.question,
                    start_seconds=start,
                    end_seconds=round(start + window_seconds, _DIGITS),
                    events=pieces,
                    index=len(windows),
                )
            )
        tally["events_in_no_window"] += len(set(events) - reached)
    if not windows:
        raise CourseError(
            f"no window of {window_seconds:g} s has an event ({tally['clips']} clips, {tally['events']} events)",
            where="windows",
            fix="Keep empty windows, or choose a shorter stride or a smaller min_event_seconds",
        )
    tally["windows"] = len(windows)
    tally["uncovered_seconds"] = round(tally["uncovered_seconds"], _DIGITS)
    return WindowSet(windows=tuple(windows), counts=WindowCounts(**tally))


def _pieces(
    events: Sequence[Interval], start: float, length: float, shortest: float, tally: dict, reached: set[Interval]
) -> tuple[Interval, ...]:
    """The parts of `events` inside [start, start + length), counted from `start`; updates tally and reached."""
    pieces = []
    for event in events:
        piece = (
            round(max(event[0] - start, 0.0), _DIGITS),
            round(min(event[1] - start, length), _DIGITS),
        )
        seconds = piece[1] - piece[0]
        if seconds <= 0:
            continue
        if seconds < shortest - 1e-9:
            tally["pieces_too_short"] += 1
            continue
        whole = start <= event[0] + 1e-9 and event[1] - start <= length + 1e-9
        tally["pieces_whole" if whole else "pieces_clipped"] += 1
        reached.add(event)
        pieces.append(piece)
    return tuple(pieces)


def _starts(annotation: Annotation, window_seconds: float, stride_seconds: float) -> list[float]:
    room = annotation.duration_seconds - window_seconds
    if room < -ROUNDING_SECONDS:
        raise CourseError(
            f"clip {annotation.video.name} lasts {annotation.duration_seconds:g} s, "
            f"shorter than a window of {window_seconds:g} s",
            where=annotation.where or str(annotation.video),
            fix="Choose a smaller data.window_seconds or leave the clip out",
        )
    count = math.floor((max(room, 0.0) + ROUNDING_SECONDS) / stride_seconds) + 1
    # k·stride, not a running sum: a thousand additions of 0.1 are not 100.
    return [round(k * stride_seconds, _DIGITS) for k in range(count)]


def _uncovered_seconds(duration_seconds: float, starts: Sequence[float], window_seconds: float) -> float:
    covered = sum(end - start for start, end in merge_intervals((s, s + window_seconds) for s in starts))
    return max(duration_seconds - covered, 0.0)


def _json(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise CourseError(f"is not valid JSON: {error.msg}", where=where) from error


def _annotation(record: Any, folder: Path, where: str) -> Annotation:
    if not isinstance(record, dict):
        raise CourseError("must be a JSON object", where=where, fix=f"Keys: {', '.join(KEYS)}")
    for key in record:
        if key not in KEYS:
            raise CourseError(f"unknown key '{key}'", where=where, fix=did_you_mean(key, KEYS))
    for key in KEYS:
        if key not in record:
            raise CourseError(f"key '{key}' is missing", where=where)
    for key in ("video", "question"):
        if not isinstance(record[key], str) or not record[key].strip():
            raise CourseError(f"'{key}' must be a text that is not empty, got {record[key]!r}", where=where)
    duration = record["duration_seconds"]
    if not _is_number(duration) or duration <= 0:
        raise CourseError(f"'duration_seconds' must be a number above zero, got {duration!r}", where=where)
    return Annotation(
        video=(folder / record["video"]).resolve(),
        duration_seconds=float(duration),
        question=record["question"],
        events=_events(record["events"], float(duration), where),
        where=where,
    )


def _events(events: Any, duration_seconds: float, where: str) -> tuple[Interval, ...]:
    if not isinstance(events, list):
        raise CourseError(f"'events' must be a list of [start, end] pairs, got {events!r}", where=where)
    checked = []
    for event in events:
        if not (isinstance(event, list) and len(event) == 2 and all(_is_number(time) for time in event)):
            raise CourseError(f"event {event!r} must be a pair [start_seconds, end_seconds]", where=where)
        start, end = map(float, event)
        if end <= start:
            raise CourseError(f"event [{start:g}, {end:g}] does not end after it starts", where=where)
        if start < 0 or end > duration_seconds + ROUNDING_SECONDS:
            raise CourseError(
                f"event [{start:g}, {end:g}] lies outside its clip of {duration_seconds:g} s",
                where=where,
                fix="Times are seconds in the source video",
            )
        checked.append((start, end))
    return tuple(checked)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _video_finding(annotation: Annotation) -> CourseError | None:
    video = annotation.video
    if not video.is_file():
        return CourseError(f"video {video} is missing", where=annotation.where, fix="Paths are relative to this file")
    if video.stat().st_size == 0:
        return CourseError(f"video {video} is an empty file", where=annotation.where, fix="Copy it again")
    return None
