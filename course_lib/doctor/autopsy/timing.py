"""Seconds per step without the stalls, the stalls, jumps of the clock, and the time that is left.

The ordinary pace is taken from the intervals near the lower quartile, so that saving and evaluating do not
count, however often they happen; they are added to the estimate at the rate at which they occur.
"""

import itertools
import statistics
from dataclasses import dataclass, field

from course_lib.doctor.autopsy.events import Event, Line, Log
from course_lib.doctor.autopsy.rows import number

STALL_SECONDS = 60.0
"""A pause shorter than this is nobody's problem."""
STALL_TIMES_PACE = 3.0
BAR_RESOLUTION_SECONDS = 3.0
"""tqdm writes whole seconds: shorter intervals say little about the pace."""
RESTART_SLACK_SECONDS = 120.0
CLOCKS = ("row", "bar", "wall")
EPOCH_SECONDS = 1e8
"""Above this a 'time' is a date (seconds since 1970), not a duration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    step: int
    seconds: float
    line: Line


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """From one logged step to the next, within one start of the run."""

    first: Point
    last: Point

    @property
    def steps(self) -> int:
        return self.last.step - self.first.step

    @property
    def seconds(self) -> float:
        return self.last.seconds - self.first.seconds

    @property
    def pace(self) -> float:
        return self.seconds / self.steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """An interval that took much longer than its steps explain."""

    interval: Interval
    extra_seconds: float
    at_step: int
    reason: str
    """'save', 'eval', 'save and eval', or '' when nothing was due."""


@dataclass(kw_only=True, slots=True)
class Timing:
    """What the times of a log say; `seconds_per_step` is None when they say nothing."""

    intervals: list[Interval] = field(default_factory=list)
    seconds_per_step: float | None = None
    stalls: list[Stall] = field(default_factory=list)
    backward: list[Interval] = field(default_factory=list)
    elapsed_seconds: float = 0.0
    last_step: int | None = None

    @property
    def stalled_share(self) -> float:
        """Part of the elapsed time that was spent in stalls."""
        lost = sum(stall.extra_seconds for stall in self.stalls)
        return lost / self.elapsed_seconds if self.elapsed_seconds else 0.0


def measure(log: Log) -> Timing:
    """Timing of the clock that has the most points (one rank's, when several ranks logged the same)."""
    timing = Timing(last_step=log.last_step, seconds_per_step=_stated_pace(log))
    points = _points(log)
    if not points:
        return timing
    runs = [_without_skip(run, log.resumed_from) for run in _starts(points, log, timing)]
    last_run: list[Interval] = []
    for run in runs:
        last_run = _intervals(run)
        timing.intervals += last_run
    if not timing.intervals and log.resumed_from is not None:
        timing.intervals = _intervals(_with_origin(runs[-1], log.resumed_from))
    if not timing.intervals:
        timing.intervals = _intervals(_with_origin(runs[-1], 0))
    due = due_steps(log)
    found_pace = ordinary_pace(_undisturbed(last_run, due)) or ordinary_pace(_undisturbed(timing.intervals, due))
    timing.seconds_per_step = found_pace or timing.seconds_per_step
    timing.elapsed_seconds = sum(i.seconds for i in timing.intervals)
    if timing.seconds_per_step:
        found = [_stall(interval, timing.seconds_per_step, due) for interval in timing.intervals]
        # The first interval is slow in every run (compiling, warming caches) unless something was due in it.
        timing.stalls = [s for n, s in enumerate(found) if s and (n or s.reason)]
    return timing


def _stated_pace(log: Log) -> float | None:
    """The median of the step times that rows state themselves, for logs without a clock."""
    names = ("step_time", "step_seconds", "seconds_per_step", "elapsed_time_per_iteration")
    stated = [value for row in log.train_rows for name in names if (value := number(row.values.get(name)))]
    return statistics.median(stated) if stated else None


def _points(log: Log) -> list[Point]:
    """(step, seconds) of the best clock, first sight of each step, in file order."""
    by_clock: dict[tuple[str, str, int | None], list[Event]] = {}
    for event in log.events:
        timed = event.step is not None and event.seconds is not None
        if timed and (event.kind == "train" or (event.kind == "bar" and event.phase == "train")):
            by_clock.setdefault((event.clock, event.line.source, event.line.rank), []).append(event)
    if not by_clock:
        return []
    # Rows carry fractions of a second and bars whole ones; a stamp may stand minutes after its step.
    best = max(by_clock.items(), key=lambda item: (min(len(item[1]), 3), -CLOCKS.index(item[0][0]), len(item[1])))
    return [Point(step=e.step, seconds=e.seconds, line=e.line) for e in best[1]]


def _starts(points: list[Point], log: Log, timing: Timing) -> list[list[Point]]:
    """Split at restarts; note where the clock ran backwards without one."""
    starts = [e for e in log.of("marker", "bar") if e.values.get("resume") or e.phase in ("load", "init")]
    resumes = [(e.line.source, e.line.number) for e in starts]
    pace = _rough_pace(points)
    runs: list[list[Point]] = [[points[0]]]
    for point in points[1:]:
        before = runs[-1][-1]
        if point.step == before.step:
            continue
        marked = any(s == point.line.source and before.line.number < n < point.line.number for s, n in resumes)
        if point.step < before.step or marked or before.step == log.resumed_from:
            runs.append([point])
        elif point.seconds < before.seconds:
            fresh = point.seconds <= min(
                before.seconds / 2, STALL_TIMES_PACE * pace * (point.step - before.step) + RESTART_SLACK_SECONDS
            )
            if not fresh:
                timing.backward.append(Interval(first=before, last=point))
            runs.append([point])
        else:
            runs[-1].append(point)
    return [_merged(run) for run in runs]


def _rough_pace(points: list[Point]) -> float:
    paces = sorted(
        (b.seconds - a.seconds) / (b.step - a.step)
        for a, b in itertools.pairwise(points)
        if b.step > a.step and b.seconds > a.seconds
    )
    return paces[len(paces) // 4] if paces else 0.0


def _merged(run: list[Point]) -> list[Point]:
    """Points far enough apart for whole seconds to be exact enough; rows with fractions stay as they are."""
    if any(point.seconds != int(point.seconds) for point in run):
        return run
    kept = [run[0]]
    for point in run[1:]:
        if point.seconds - kept[-1].seconds >= BAR_RESOLUTION_SECONDS:
            kept.append(point)
    return kept


def _without_skip(run: list[Point], resumed_from: int | None) -> list[Point]:
    """Without a resumed bar's leap over the steps that an earlier run did: 0/1000 [00:00], then 501/1000 [00:09]."""
    if resumed_from is not None and run[0].step < resumed_from <= run[-1].step:
        later = [point for point in run if point.step > resumed_from]
        return _with_origin(later, resumed_from) if later else run[-1:]
    if len(run) > 2 and run[0].step == 0 and run[1].step > 10 * (run[2].step - run[1].step):
        return run[1:]
    return run


def _with_origin(run: list[Point], origin_step: int) -> list[Point]:
    """With so few points that the start of the run must serve as one (durations only, not dates)."""
    if run[0].step > origin_step and 0 < run[0].seconds < EPOCH_SECONDS:
        return [Point(step=origin_step, seconds=0.0, line=run[0].line), *run]
    return run


def _intervals(run: list[Point]) -> list[Interval]:
    return [Interval(first=a, last=b) for a, b in itertools.pairwise(run) if b.step > a.step and b.seconds >= a.seconds]


def ordinary_pace(intervals: list[Interval]) -> float | None:
    """Seconds per step over the intervals whose pace is within 1.5 of the lower quartile."""
    paces = sorted(i.pace for i in intervals)
    if not paces:
        return None
    quartile = paces[len(paces) // 4]
    ordinary = [i for i in intervals if i.pace <= 1.5 * quartile]
    pace = sum(i.seconds for i in ordinary) / sum(i.steps for i in ordinary)
    return pace or None


def _undisturbed(intervals: list[Interval], due: dict[str, set[int] | int]) -> list[Interval]:
    """Intervals in which nothing was due, when there are enough of them to tell the pace."""
    calm = [i for i in intervals if all(_due_in(when, i.first.step, i.last.step) is None for when in due.values())]
    return calm if len(calm) >= 3 else intervals


def due_steps(log: Log) -> dict[str, set[int] | int]:
    """For 'save' and 'eval': the period when the settings give it, else the steps at which the log shows one."""
    due: dict[str, set[int] | int] = {}
    for name in ("save", "eval"):
        period = log.settings.get(f"{name}_steps")
        if isinstance(period, float | int) and period >= 1:
            due[name] = int(period)
            continue
        seen = {e.step for e in log.events if e.step and (e.phase == name or (name == "eval" and e.kind == "eval"))}
        if seen:
            due[name] = _period_of(seen) or seen
    return due


def _period_of(seen: set[int]) -> int | None:
    """The period that steps follow which are all multiples of the first one, one after the other; None otherwise."""
    first = min(seen)
    return first if sorted(seen) == [first * n for n in range(1, len(seen) + 1)] else None


def _due_in(due: set[int] | int, first: int, last: int) -> int | None:
    """The step in [first, last] at which it was due: the last one if it is, else the first, else one between."""
    if isinstance(due, int):
        if last % due == 0:
            return last
        return first if first and first % due == 0 else (last // due * due if last // due * due > first else None)
    inside = [step for step in due if first <= step <= last]
    return max(inside, default=None)


def _stall(interval: Interval, pace: float, due: dict[str, set[int] | int]) -> Stall | None:
    extra = interval.seconds - pace * interval.steps
    if extra < STALL_SECONDS or interval.seconds < STALL_TIMES_PACE * pace * interval.steps:
        return None
    found = {
        name: step
        for name, when in due.items()
        if (step := _due_in(when, interval.first.step, interval.last.step)) is not None
    }
    at_step = max(found.values(), default=interval.last.step)
    reason = " and ".join(name for name in ("save", "eval") if found.get(name) == at_step)
    return Stall(interval=interval, extra_seconds=extra, at_step=at_step, reason=reason)


def eta_seconds(log: Log, timing: Timing) -> float | None:
    """Seconds until max_steps: ordinary steps, and the pauses that are still due at what they cost so far.

    None when the run is over, or when the log does not say how many steps there are or how long one takes.
    """
    total, step, pace = log.total_steps, timing.last_step, timing.seconds_per_step
    # A summary is written when training ends; a resumed run appends rows below it.
    last = log.of("train", "summary")[-1:]
    if not total or step is None or pace is None or step >= total or (last and last[0].kind == "summary"):
        return None
    return (total - step) * pace + _pauses_to_come(log, timing, step, total)


def _pauses_to_come(log: Log, timing: Timing, step: int, total: int) -> float:
    """Seconds of saving and evaluating from `step` to `total`, each at what its kind has cost so far."""
    due = due_steps(log)
    spent = _spent_at(timing, due, step)
    unexplained = [stall.extra_seconds for stall in timing.stalls if not stall.reason]
    seen = sum(interval.steps for interval in timing.intervals) or 1
    # One unexplained leap is an accident; several are a habit.
    other = sum(unexplained) / seen * (total - step) if len(unexplained) > 1 else 0.0
    costs = {reason: sum(values.values()) / len(values) for reason, values in spent.items()}
    if not costs:
        return other
    periods = {name: when for name, when in due.items() if isinstance(when, int)}
    if not periods:
        return other + sum(sum(values.values()) for values in spent.values()) / seen * (total - step)
    usual = sum(costs.values()) / len(costs)
    shown = {at for values in spent.values() for at in values}
    pending = step if step not in shown and any(step % period == 0 for period in periods.values()) else step + 1
    for at in range(pending, total + 1):
        reason = tuple(name for name, period in periods.items() if at % period == 0)
        if reason:
            other += costs.get(reason, usual)
    return other


def _spent_at(
    timing: Timing, due: dict[str, set[int] | int], last_step: int
) -> dict[tuple[str, ...], dict[int, float]]:
    """Extra seconds around each step at which something was due, by what was due there."""
    extra: dict[int, float] = {}
    for interval in timing.intervals:
        at = [s for w in due.values() if (s := _due_in(w, interval.first.step, interval.last.step)) is not None]
        if at:
            extra[max(at)] = extra.get(max(at), 0.0) + interval.seconds - timing.seconds_per_step * interval.steps
    spent: dict[tuple[str, ...], dict[int, float]] = {}
    for at, seconds in extra.items():
        # The row of the last step may have been written before its pause: then it has cost nothing yet.
        if at == last_step and seconds < STALL_SECONDS:
            continue
        reason = tuple(n for n, w in due.items() if (at % w == 0 if isinstance(w, int) else at in w))
        spent.setdefault(reason, {})[at] = max(0.0, seconds)
    return spent
