"""Temporal IoU and the constant answer, against counting and brute force."""

import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.data.intervals import ParsedAnswer, parse_intervals
from course_lib.evaluate.grounding import (
    best_constant_answer,
    bootstrap_interval,
    measure_seconds,
    score_answers,
    temporal_iou,
)

tenths = st.integers(0, 80)
interval_sets = st.lists(
    st.tuples(tenths, tenths).filter(lambda p: p[0] < p[1]).map(lambda p: (p[0] / 10, p[1] / 10)), max_size=5
)


def cells(intervals):
    """The tenths of a second that a set covers, by their midpoints."""
    return {t for t in range(80) if any(start < (t + 0.5) / 10 < end for start, end in intervals)}


@given(interval_sets, interval_sets)
def test_iou_is_what_counting_tenths_of_a_second_gives(truth, answer):
    a, b = cells(truth), cells(answer)
    expected = len(a & b) / len(a | b) if a | b else 1.0
    assert temporal_iou(truth, answer) == pytest.approx(expected, abs=1e-9)
    assert temporal_iou(truth, answer) == pytest.approx(temporal_iou(answer, truth), abs=1e-12)


@given(interval_sets)
def test_an_answer_equal_to_the_truth_scores_exactly_one(intervals):
    assert temporal_iou(intervals, list(reversed(intervals))) == 1.0
    assert measure_seconds(intervals) == pytest.approx(len(cells(intervals)) / 10)


def test_empty_against_empty_is_one_and_against_something_zero():
    assert temporal_iou([], []) == 1.0
    assert temporal_iou([(1.0, 2.0)], []) == temporal_iou([], [(1.0, 2.0)]) == 0.0


def test_two_truths_answered_by_the_span_around_both_is_no_full_score():
    assert temporal_iou([(0.0, 1.0), (3.0, 4.0)], [(0.0, 4.0)]) == 0.5


def test_only_usable_answers_score_even_where_the_truth_is_none():
    answers = [parse_intervals(text, 8.0) for text in ("1.0-2.0", "gibberish", "1.0-2.0, 1.0-2.0", "1.0-2.0, 3.")]
    scores = score_answers([[(1.0, 2.0)], [], [(1.0, 2.0)], [(1.0, 2.0)]], answers)
    assert scores.ious == (1.0, 0.0, 0.0, 0.0)
    assert scores.mean_iou == 0.25
    rates = (scores.parse_rate, scores.unparseable_rate, scores.repeated_rate, scores.truncated_rate)
    assert rates == (0.25, 0.25, 0.25, 0.25)


def test_a_model_that_does_not_look_has_one_distinct_answer():
    answers = [parse_intervals("1.0-2.0", 8.0)] * 3
    assert score_answers([[(1.0, 2.0)], [(4.0, 5.0)], []], answers).distinct_answers == 1


def test_scores_become_plain_json():
    record = score_answers([[(1.0, 2.0)]], [parse_intervals("1.0-2.0", 8.0)]).as_record()
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize(("truths", "answers", "groups"), [(0, 0, None), (2, 1, None), (2, 2, [1])])
def test_lengths_that_do_not_match_are_refused(truths, answers, groups):
    with pytest.raises(ValueError, match="as many answers as truths"):
        score_answers([[]] * truths, [ParsedAnswer(intervals=(), status="ok")] * answers, groups)


def test_the_bootstrap_interval_of_a_sample_agrees_with_the_normal_one():
    values = [random.Random(i).random() for i in range(400)]
    mean = sum(values) / len(values)
    error = (sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)) ** 0.5
    low, high = bootstrap_interval(values)
    # 1.96 standard errors to either side; the tolerance is the noise of 2,000 resamples.
    assert low == pytest.approx(mean - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(mean + 1.96 * error, abs=0.15 * error)


def test_the_bootstrap_covers_the_true_mean_about_as_often_as_it_says():
    rng = random.Random(0)
    covered = 0
    for trial in range(200):
        low, high = bootstrap_interval([rng.random() for _ in range(50)], resamples=400, seed=trial)
        covered += low <= 0.5 <= high
    assert 180 <= covered <= 199


def test_windows_of_one_clip_are_drawn_together():
    values = [0.0] * 10 + [1.0] * 10
    clips = ["a"] * 10 + ["b"] * 10
    assert bootstrap_interval(values, clips) == (0.0, 1.0)
    low, high = bootstrap_interval(values)
    assert 0.2 < low < high < 0.8


def test_one_clip_has_an_interval_of_no_width():
    assert bootstrap_interval([0.25, 0.75], ["a", "a"]) == (0.5, 0.5)


def brute_force(truths, window_seconds, grid_seconds):
    points = [i * grid_seconds for i in range(round(window_seconds / grid_seconds) + 1)]
    candidates = [(), *(((a, b),) for a, b in itertools.combinations(points, 2))]
    return max(sum(temporal_iou(t, c) for t in truths) / len(truths) for c in candidates), len(candidates)


@given(st.lists(interval_sets, min_size=1, max_size=6))
def test_the_constant_answer_is_the_best_of_all_on_the_grid(truths):
    best = best_constant_answer(truths, 8.0, grid_seconds=0.5)
    expected, candidates = brute_force(truths, 8.0, 0.5)
    assert best.mean_iou == pytest.approx(expected, abs=1e-9)
    assert best.candidates == candidates
    assert score_answers(truths, [best.answer] * len(truths)).mean_iou == pytest.approx(expected, abs=1e-9)


def test_the_grid_reaches_the_end_of_a_window_that_is_no_multiple_of_it():
    assert best_constant_answer([[(0.0, 0.75)]], 0.75, grid_seconds=0.5).intervals == ((0.0, 0.75),)


def test_where_most_windows_are_empty_the_best_constant_is_none():
    best = best_constant_answer([[], [], [(1.0, 2.0)]], 8.0)
    assert best.intervals == ()
    assert best.mean_iou == pytest.approx(2 / 3)
    assert best.as_record()["answer"] == "none"


def test_a_constant_needs_something_to_be_fitted_on():
    with pytest.raises(ValueError, match="needs training answers"):
        best_constant_answer([], 8.0)
