"""Answer text to intervals and back: what a cutter may use, and what it must not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.data.intervals import format_intervals, merge_intervals, parse_intervals

WINDOW_SECONDS = 8.0
tenths = st.integers(0, 80)
intervals_in_tenths = st.lists(
    st.tuples(tenths, tenths).filter(lambda pair: pair[0] < pair[1]).map(lambda pair: (pair[0] / 10, pair[1] / 10)),
    max_size=6,
)
any_intervals = st.lists(
    st.tuples(st.floats(0, 7.9), st.floats(0.001, 8.0)).map(lambda p: (p[0], min(p[0] + p[1], 8.0))), max_size=6
).filter(lambda pairs: all(start < end for start, end in pairs))


@given(intervals_in_tenths)
def test_what_is_written_is_read_back(intervals):
    answer = parse_intervals(format_intervals(intervals), WINDOW_SECONDS)
    assert answer.status == "ok"
    assert answer.intervals == merge_intervals(intervals)


@given(any_intervals)
def test_rounding_moves_no_boundary_by_more_than_a_tenth_and_loses_no_event(intervals):
    answer = parse_intervals(format_intervals(intervals), WINDOW_SECONDS + 0.1)
    assert answer.status == "ok"
    for start, end in intervals:
        assert any(a - 0.1001 <= start and end <= b + 0.1001 for a, b in answer.intervals)


@given(intervals_in_tenths.filter(bool), st.data())
def test_a_cut_in_the_middle_of_a_pair_is_truncated(intervals, data):
    text = format_intervals(intervals)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    whole_pairs = {", ".join(text.split(", ")[:count]) for count in range(1, text.count(",") + 1)}
    answer = parse_intervals(cut, WINDOW_SECONDS)
    # After a whole pair only the missing end-of-sequence token tells.
    assert answer.status == ("ok" if cut in whole_pairs else "truncated")
    assert parse_intervals(cut, WINDOW_SECONDS, ended=False).status == "truncated"


@given(st.text(max_size=60))
def test_any_text_has_a_status_and_usable_intervals(text):
    answer = parse_intervals(text, WINDOW_SECONDS)
    assert answer.intervals == merge_intervals(answer.intervals)
    assert all(0 <= start < end <= WINDOW_SECONDS for start, end in answer.intervals)


@pytest.mark.parametrize(
    ("text", "status", "intervals"),
    [
        ("1.5-3.0, 5.0-7.5", "ok", ((1.5, 3.0), (5.0, 7.5))),
        ("none", "ok", ()),
        (" None\n", "ok", ()),
        ("5.0-7.5,1.5 - 3.0", "ok", ((1.5, 3.0), (5.0, 7.5))),
        ("1-3", "ok", ((1.0, 3.0),)),
        ("1.0-3.0, 2.0-4.0", "ok", ((1.0, 4.0),)),
        ("6.0-9.5", "ok", ((6.0, 8.0),)),
        ("9.0-9.5", "unparseable", ()),
        ("3.0-1.5", "unparseable", ()),
        ("2.0-2.0", "unparseable", ()),
        ("", "unparseable", ()),
        ("the ball is red", "unparseable", ()),
        ("<argmax>11</argmax>", "unparseable", ()),
        ("1.5-3.0 and more", "unparseable", ((1.5, 3.0),)),
        ("-1.0-3.0", "unparseable", ()),
        ("1.5-3.0, none", "unparseable", ((1.5, 3.0),)),
        ("1.5-3.0, no", "unparseable", ((1.5, 3.0),)),
        ("no", "truncated", ()),
        ("1.5-3.0, 5.", "truncated", ((1.5, 3.0),)),
        ("1.5-3.0,", "truncated", ((1.5, 3.0),)),
        ("1.5-3", "truncated", ((1.5, 3.0),)),
        ("<1.0><1.0><1.0><1.0>", "repeated", ()),
        ("1.0-2.0, 1.0-2.0, 1.0-2.0, 1.", "repeated", ((1.0, 2.0),)),
        ("1.0-2.0, 1.0-2.0", "repeated", ((1.0, 2.0),)),
    ],
)
def test_answers_as_models_give_them(text, status, intervals):
    answer = parse_intervals(text, WINDOW_SECONDS)
    assert (answer.status, answer.intervals) == (status, intervals)


def test_a_complete_looking_answer_that_hit_the_token_limit_is_truncated():
    assert parse_intervals("1.5-3.0", WINDOW_SECONDS, ended=False).status == "truncated"
    assert parse_intervals("none", WINDOW_SECONDS, ended=False).status == "truncated"


def test_rounded_neighbours_become_one_interval():
    assert format_intervals([(1.0, 2.04), (2.06, 3.0)]) == "1.0-2.0, 2.1-3.0"
    assert format_intervals([(1.0, 2.02), (2.04, 3.0)]) == "1.0-3.0"


@pytest.mark.parametrize("bad", [(3.0, 3.0), (3.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_an_interval_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="must end after it starts"):
        format_intervals([bad])


def test_an_event_before_its_window_is_refused():
    with pytest.raises(ValueError, match="before the window"):
        format_intervals([(-0.5, 1.0)])
