"""Verdicts about time: clock_jump, stalled, straggler."""

import re
import statistics
from collections import defaultdict

from course_lib.doctor.autopsy.events import Log
from course_lib.doctor.autopsy.findings import Finding, quote
from course_lib.doctor.autopsy.rows import number
from course_lib.doctor.autopsy.timing import Stall, Timing, ordinary_pace
from course_lib.units import human_seconds

JUMP_SECONDS = 300.0
JUMP_STEPS = 20
"""A leap worth fewer ordinary steps than this is a slow batch, not a clock."""
STALLED_SHARE = 1 / 3
STRAGGLER_RATIO = 1.25
STRAGGLER_ROWS = 3
STRAGGLER_SHARE = 0.15
"""What the slow rank loses must be at least this part of the longest time that is logged."""
WORK_TIME = re.compile(
    r"^(?:avg_|mean_)?(?:step|iter|iteration|forward|fwd|backward|bwd|compute|data|dataloader|data_load|batch|optimizer|train_step)"
    r"\w*?_?(?:time|seconds|secs|s|ms)$|^(?:seconds_per_step|s_per_step|time_per_step|elapsed_time_per_iteration|step_time)$"
)
STRAGGLER_NAMED = re.compile(
    r"straggler\w*\b.{0,40}?\brank[s :=\[]*(\d+)|\b(?:slow|slowest|lagging) rank[ :=]*(\d+)", re.I
)
WAIT_TIME = re.compile(r"(?:wait|comm|barrier|all_?reduce|all_?gather|collective|nccl|idle|sync)\w*$")


def detect_clock(log: Log, timing: Timing) -> Finding | None:
    """Time that runs backwards without a restart, or leaps where nothing was due."""
    leaps = [stall for stall in timing.stalls if not stall.reason and _is_leap(stall, timing)]
    periodic = len(leaps) > 2 or _same_distance(leaps)
    if not timing.backward and (not leaps or periodic):
        return None
    intervals = timing.backward or [stall.interval for stall in leaps]
    shown = [
        f"from step {i.first.step} to step {i.last.step} the clock moved {i.seconds:+.0f} s, "
        f"{i.steps} steps take about {(timing.seconds_per_step or 0) * i.steps:.0f} s"
        for i in intervals[:3]
    ]
    return Finding(
        verdict="clock_jump",
        cause="backward" if timing.backward else "forward",
        at_steps=[i.last.step for i in intervals],
        evidence=[quote(line) for i in intervals[:2] for line in (i.first.line, i.last.line)] + shown,
        numbers={"seconds": round(intervals[0].seconds, 3)},
        facts={},
    )


def _is_leap(stall: Stall, timing: Timing) -> bool:
    return stall.extra_seconds >= max(JUMP_SECONDS, JUMP_STEPS * (timing.seconds_per_step or 0))


def _same_distance(leaps: list[Stall]) -> bool:
    """Two leaps, the second as far from the first as the first from the start: a period, so a cause in the run."""
    return len(leaps) == 2 and leaps[1].at_step == 2 * leaps[0].at_step


def detect_stall(log: Log, timing: Timing) -> Finding | None:
    """Pauses that eat a third of the run or more."""
    if not timing.stalls or timing.stalled_share < STALLED_SHARE:
        return None
    steps = list(dict.fromkeys(stall.at_step for stall in timing.stalls))
    lost = sum(stall.extra_seconds for stall in timing.stalls)
    each = lost / len(timing.stalls)
    reasons = {stall.reason for stall in timing.stalls if stall.reason}
    shown = (
        f"{len(timing.stalls)} pauses of about {human_seconds(each)} at steps {', '.join(map(str, steps[:12]))}: "
        f"{100 * timing.stalled_share:.0f} % of the time; an ordinary step takes {timing.seconds_per_step:.3g} s"
    )
    quoted = [quote(line) for s in timing.stalls[:2] for line in (s.interval.first.line, s.interval.last.line)]
    return Finding(
        verdict="stalled",
        cause=" and ".join(name for name in ("save", "eval") if any(name in reason for reason in reasons)),
        at_steps=steps,
        evidence=[shown, *quoted],
        numbers={"stall_seconds": round(each, 3), "stalled_share": round(timing.stalled_share, 3)},
        facts={"each_seconds": each},
    )


def detect_straggler(log: Log, timings: dict[int, Timing]) -> Finding | None:
    """One rank that works longer than the others do, or that the others wait for."""
    times = _times_by_rank(log)
    for rank, timing in timings.items():
        pace = ordinary_pace(timing.intervals)
        if pace and len(timing.intervals) >= STRAGGLER_ROWS:
            times["seconds per step"][rank] = [pace] * STRAGGLER_ROWS
    # (is working time, factor, name, rank, medians): how long a rank works says more than how long others wait.
    named = _named(log)
    if named:
        return named
    worst: tuple[bool, float, str, int, dict[int, float]] | None = None
    by_name = {name: _medians(by_rank) for name, by_rank in times.items()}
    step = max((value for medians in by_name.values() for value in medians.values()), default=0.0)
    for name, medians in by_name.items():
        # Two milliseconds against one are a factor of two that nobody waits for.
        if len(medians) < 2 or max(medians.values()) - min(medians.values()) < STRAGGLER_SHARE * step:
            continue
        waits = WAIT_TIME.search(name) is not None
        rank, ratio = _outlier(medians, waits=waits)
        if ratio >= STRAGGLER_RATIO and (worst is None or (not waits, ratio) > worst[:2]):
            worst = (not waits, ratio, name, rank, medians)
    if worst is None:
        return None
    works, ratio, name, rank, medians = worst
    shown = f"median {name} by rank: " + ", ".join(f"rank {r}: {medians[r]:.3g} s" for r in sorted(medians))
    rows = [e.line for e in log.train_rows if _rank_of(e) == rank][:2]
    return Finding(
        verdict="straggler",
        ranks=[rank],
        evidence=[shown, *(quote(line) for line in rows)],
        numbers={"ratio": round(ratio, 3), "median_seconds": {str(r): round(v, 4) for r, v in sorted(medians.items())}},
        facts={"name": name, "works": works},
    )


def _medians(by_rank: dict[int, list[float]]) -> dict[int, float]:
    return {rank: statistics.median(values) for rank, values in by_rank.items() if len(values) >= STRAGGLER_ROWS}


def _named(log: Log) -> Finding | None:
    """A rank that the log itself calls slow."""
    for line in log.notable:
        match = STRAGGLER_NAMED.search(line.text)
        if match:
            rank = int(match[1] or match[2])
            facts = {"name": "named in the log", "works": False}
            return Finding(
                verdict="straggler", ranks=[rank], evidence=[quote(line)], numbers={"ratio": None}, facts=facts
            )
    return None


def _outlier(medians: dict[int, float], *, waits: bool) -> tuple[int, float]:
    """The rank that stands out and by which factor; among waiting times it is the one that waits least."""
    pick = min if waits else max
    rank = pick(medians, key=medians.get)
    others = statistics.median(value for r, value in medians.items() if r != rank)
    own = medians[rank]
    if waits:
        # Everybody waits a little; only waiting that is long against the one who never waits tells anything.
        return rank, (others / own if own > 0 else float("inf")) / 2 if others > 0.05 else 0.0
    return rank, own / others if others > 0 else 0.0


def _times_by_rank(log: Log) -> dict[str, dict[int, list[float]]]:
    times: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for event in log.train_rows:
        rank = _rank_of(event)
        if rank is None:
            continue
        for name, value in event.values.items():
            key = str(name).lower()
            # The first steps compile and warm up.
            if (WORK_TIME.match(key) or WAIT_TIME.search(key)) and (seconds := number(value)) is not None:
                times[key][rank].append(seconds)
    return times


def _rank_of(event) -> int | None:
    stated = number(event.values.get("rank"))
    return int(stated) if stated is not None else event.line.rank
