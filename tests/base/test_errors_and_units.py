"""The one-line error and the numbers people read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.errors import FINDING, USAGE, CourseError, did_you_mean, nearest
from course_lib.units import GB, GIB, KIB, MIB, ceil_div, gb, gib, human_bytes, human_seconds


def test_an_error_says_where_what_and_what_to_do_in_this_order():
    error = CourseError("is empty", where="a.jsonl:3", fix="Write a line")
    assert str(error) == error.line() == "a.jsonl:3: is empty. Write a line"


def test_parts_that_are_not_given_leave_no_mark():
    assert CourseError("is empty").line() == "is empty"
    assert CourseError("is empty", where="a").line() == "a: is empty"
    assert CourseError("is empty", fix="Go").line() == "is empty. Go"


@given(st.text(), st.text(), st.text())
def test_an_error_is_one_line_whatever_it_quotes(what, where, fix):
    assert len(CourseError(what, where=where, fix=fix).line().splitlines()) <= 1


def test_a_finding_ends_with_1_and_wrong_usage_with_2():
    assert CourseError("x").exit_code == USAGE == 2
    assert CourseError("x", exit_code=FINDING).exit_code == FINDING == 1


def test_the_nearest_name_comes_first_and_strangers_are_not_suggested():
    known = ["learning_rate", "logging_steps", "seed"]
    assert nearest("learningrate", known)[0] == "learning_rate"
    assert nearest("zzz", known) == []


def test_an_unknown_name_gets_its_neighbours_or_the_whole_list():
    assert did_you_mean("sed", ["seed", "bf16"]) == "Nearest: seed"
    assert did_you_mean("zzz", ["seed", "bf16"]) == "Known: bf16, seed"


@given(st.integers(0, 10**15), st.integers(1, 10**6))
def test_ceil_div_is_the_smallest_whole_share_that_holds_everything(value, divisor):
    share = ceil_div(value, divisor)
    assert (share - 1) * divisor < value <= share * divisor


def test_ceil_div_refuses_a_divisor_that_is_none():
    with pytest.raises(ValueError, match="got 0"):
        ceil_div(5, 0)


def test_binary_and_decimal_units_are_never_confused():
    assert gib(GIB) == "1.00 GiB"
    assert gb(GB) == "1.00 GB"
    assert gib(80 * GB) == "74.51 GiB"  # 80e9 / 2**30 = 74.5058
    assert (KIB, MIB, GIB) == (2**10, 2**20, 2**30)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (MIB, "1.00 MiB"),
        (-GIB, "-1.00 GiB"),
        (3 * GIB // 2, "1.50 GiB"),
    ],
)
def test_bytes_are_shown_in_the_largest_unit_that_fits(value, text):
    assert human_bytes(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (750, "12 min 30 s"),
        (3599.6, "1 h 00 min"),
        (11100, "3 h 05 min"),
    ],
)
def test_seconds_are_rounded_before_they_are_split(seconds, text):
    assert human_seconds(seconds) == text
