"""Scores of temporal grounding: how well the answered intervals cover the true ones, and what a constant would get.

Not here: producing answers (course_lib.tasks) and their text (course_lib.data.intervals).
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from course_lib.data.intervals import DECIMAL_SECONDS, Interval, ParsedAnswer, format_intervals, merge_intervals

BOOTSTRAP_RESAMPLES = 2000
CONTROLS = ("before", "after", "best_constant", "shuffled", "blank")
"""The sets of answers that are compared, in the order in which they are always shown: the base model, the adapted
one, the best constant answer, and the adapted one with frames shuffled between clips and with blank frames."""

MIN_SAMPLES = 100
MIN_BASE_PARSE_RATE = 0.95
MIN_AFTER_IOU = 0.75
MIN_MARGIN_OVER_CONSTANT = 0.30
MAX_CONTROL_MARGIN = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class GroundingScores:
    """Scores of one set of answers. Rates are shares of the samples, from 0 to 1; the four rates sum to 1."""

    samples: int
    mean_iou: float
    low_iou: float
    """Lower end of the bootstrap 95 % interval of the mean."""
    high_iou: float
    parse_rate: float
    """Answers a cutter could use ("ok"). Every other answer scores 0."""
    repeated_rate: float
    truncated_rate: float
    unparseable_rate: float
    distinct_answers: int
    """Different answers among the usable ones; 1 means that the clip was not looked at."""
    ious: tuple[float, ...]
    """One per sample, in the order given."""

    def as_record(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "ious": list(self.ious)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstantAnswer:
    """The one answer that does best on the training set without looking at anything."""

    intervals: tuple[Interval, ...]
    """One interval, or none."""
    mean_iou: float
    """On the answers it was fitted on."""
    grid_seconds: float
    candidates: int
    """How many answers were compared; "none" is one of them."""

    @property
    def answer(self) -> ParsedAnswer:
        """As an answer that can be scored."""
        return ParsedAnswer(intervals=self.intervals, status="ok")

    def as_record(self) -> dict[str, Any]:
        """Plain JSON types, with the answer as text."""
        return {
            "answer": format_intervals(self.intervals),
            "mean_iou_on_training": self.mean_iou,
            "grid_seconds": self.grid_seconds,
            "candidates": self.candidates,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One thing that a run must show before "it learned from the pixels" may be said."""

    claim: str
    value: float
    bound: float
    reached: bool


def judge(scores: Mapping[str, GroundingScores]) -> tuple[Verdict, ...]:
    """What the scores of the CONTROLS prove, claim by claim. Raises KeyError when a control is missing."""
    before, after, constant, shuffled, blank = (scores[name] for name in CONTROLS)
    ceiling = constant.mean_iou + MAX_CONTROL_MARGIN
    at_least = (
        ("held-out samples", after.samples, MIN_SAMPLES),
        ("base answers that can be read", before.parse_rate, MIN_BASE_PARSE_RATE),
        ("mean IoU after", after.mean_iou, MIN_AFTER_IOU),
        ("mean IoU after, above the constant", after.mean_iou, constant.mean_iou + MIN_MARGIN_OVER_CONSTANT),
    )
    at_most = (
        ("mean IoU with shuffled frames, not above the constant", shuffled.mean_iou, ceiling),
        ("mean IoU with blank frames, not above the constant", blank.mean_iou, ceiling),
    )
    return (
        *(Verdict(claim=c, value=v, bound=b, reached=v >= b) for c, v, b in at_least),
        *(Verdict(claim=c, value=v, bound=b, reached=v <= b) for c, v, b in at_most),
    )


def measure_seconds(intervals: Sequence[Interval]) -> float:
    """Seconds that a set of intervals covers; overlaps count once."""
    return sum(end - start for start, end in merge_intervals(intervals))


def temporal_iou(truth: Sequence[Interval], answer: Sequence[Interval]) -> float:
    """Seconds in both sets over seconds in either; 1 when both are empty, 0 when one of them is.

    Raises ValueError for an interval that does not end after it starts.
    """
    truth, answer = merge_intervals(truth), merge_intervals(answer)
    if not truth and not answer:
        return 1.0
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in truth for b in answer)
    # Exactly 1 for equal sets: the sum below can differ from `both` in its last digit.
    return 1.0 if truth == answer else both / (measure_seconds(truth) + measure_seconds(answer) - both)


def answer_iou(truth: Sequence[Interval], answer: ParsedAnswer) -> float:
    """IoU of one answer; 0 unless its text could be read whole, also where the truth is "none"."""
    return temporal_iou(truth, answer.intervals) if answer.status == "ok" else 0.0


def score_answers(
    truths: Sequence[Sequence[Interval]],
    answers: Sequence[ParsedAnswer],
    groups: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
) -> GroundingScores:
    """Score answers against the truth.

    Args:
        truths: events of each window. answers: what was answered; only "ok" can score, the rest is 0.
        groups: the clip that each window comes from. Windows of one clip are alike, so the bootstrap draws clips.
        seed: of the bootstrap.

    Returns: the scores. Raises ValueError for no samples, or lengths that differ.
    """
    if not truths or len(truths) != len(answers) or (groups is not None and len(groups) != len(truths)):
        lengths = f"{len(truths)} truths, {len(answers)} answers, {'no' if groups is None else len(groups)} groups"
        raise ValueError(f"as many answers as truths are needed, at least one: got {lengths}")
    ious = tuple(answer_iou(truth, answer) for truth, answer in zip(truths, answers, strict=True))
    low, high = bootstrap_interval(ious, groups, seed=seed)
    statuses = Counter(answer.status for answer in answers)
    return GroundingScores(
        samples=len(ious),
        mean_iou=sum(ious) / len(ious),
        low_iou=low,
        high_iou=high,
        parse_rate=statuses["ok"] / len(ious),
        repeated_rate=statuses["repeated"] / len(ious),
        truncated_rate=statuses["truncated"] / len(ious),
        unparseable_rate=statuses["unparseable"] / len(ious),
        distinct_answers=len({answer.intervals for answer in answers if answer.status == "ok"}),
        ious=ious,
    )


def bootstrap_interval(
    values: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    *,
    resamples: int = BOOTSTRAP_RESAMPLES,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap 95 % interval of the mean: groups are drawn with replacement, whole.

    Source: Efron & Tibshirani, An Introduction to the Bootstrap (1993), ch. 13; with groups, the cluster bootstrap.
    With one group there is nothing to draw from, and both ends are the mean.
    """
    import numpy as np

    groups = list(range(len(values))) if groups is None else list(groups)
    number = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    sums, counts = np.zeros(len(number)), np.zeros(len(number))
    for value, group in zip(values, groups, strict=True):
        sums[number[group]] += value
        counts[number[group]] += 1
    drawn = np.random.default_rng(seed).integers(0, len(number), size=(resamples, len(number)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def best_constant_answer(
    training_truths: Sequence[Sequence[Interval]], window_seconds: float, *, grid_seconds: float = DECIMAL_SECONDS
) -> ConstantAnswer:
    """The single interval (or "none") with the highest mean IoU over the training answers.

    The search is exact: every pair of grid points 0 ≤ a < b ≤ window_seconds is compared (the window's end is a grid
    point too). With C(x) = seconds of truth before x, the overlap with [a, b] is C(b) − C(a), so one pass over a with
    all b and all truths at once is enough. Answers of two intervals or more are not searched.
    Raises ValueError for no truths, or a grid that is not above zero.
    """
    import numpy as np

    if not training_truths or not (grid_seconds > 0 and window_seconds > 0):
        raise ValueError("best_constant_answer needs training answers, and a window and a grid above zero")
    truths = [merge_intervals(truth) for truth in training_truths]
    grid = np.arange(0.0, window_seconds - grid_seconds * 1e-6, grid_seconds)
    grid = np.append(np.round(grid, 6), window_seconds)
    before = np.array([_seconds_before(truth, grid) for truth in truths])
    lengths = np.array([measure_seconds(truth) for truth in truths])
    best = ((), float(np.mean(lengths == 0)))
    for index, start in enumerate(grid[:-1]):
        both = before[:, index + 1 :] - before[:, index : index + 1]
        either = (grid[index + 1 :] - start)[None, :] + lengths[:, None] - both
        means = (both / either).mean(axis=0)
        top = int(means.argmax())
        # The margin keeps the earlier, shorter candidate when two tie but for rounding.
        if means[top] > best[1] + 1e-12:
            best = (((float(start), float(grid[index + 1 + top])),), float(means[top]))
    return ConstantAnswer(
        intervals=best[0],
        mean_iou=best[1],
        grid_seconds=grid_seconds,
        candidates=1 + (len(grid) - 1) * len(grid) // 2,
    )


def _seconds_before(truth: Sequence[Interval], grid: Any) -> Any:
    """Seconds of `truth` before each grid point."""
    import numpy as np

    return sum((np.clip(grid - start, 0.0, end - start) for start, end in truth), np.zeros_like(grid))
