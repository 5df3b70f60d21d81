"""Windows: events end up at the right second of the right window, and what is lost is counted."""

import json
import random
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.data.intervals import merge_intervals, parse_intervals
from course_lib.data.windows import Annotation, cut_windows, read_annotations
from course_lib.errors import CourseError


def clip(duration_seconds=48.0, events=(), name="a.mp4"):
    return Annotation(
        video=Path("/clips") / name, duration_seconds=duration_seconds, question="when?", events=tuple(events)
    )


def event_lists(duration_seconds):
    times = st.integers(0, int(duration_seconds * 10))
    pairs = st.tuples(times, times).filter(lambda p: p[0] < p[1]).map(lambda p: (p[0] / 10, p[1] / 10))
    return st.lists(pairs, max_size=5)


def test_an_event_is_rebased_to_the_start_of_its_window():
    (window,) = cut_windows([clip(events=[(17.5, 19.0)])], 8.0, 8.0).windows
    assert (window.start_seconds, window.end_seconds) == (16.0, 24.0)
    assert window.events == ((1.5, 3.0),)
    assert window.answer == "1.5-3.0"


def test_an_event_over_an_edge_is_clipped_in_both_windows():
    result = cut_windows([clip(events=[(6.0, 11.0)])], 8.0, 8.0)
    assert [w.events for w in result.windows] == [((6.0, 8.0),), ((0.0, 3.0),)]
    assert (result.counts.pieces_whole, result.counts.pieces_clipped) == (0, 2)


def test_a_sliver_at_an_edge_is_dropped_and_counted():
    result = cut_windows([clip(events=[(6.0, 8.1)])], 8.0, 8.0)
    assert [w.start_seconds for w in result.windows] == [0.0]
    assert (result.counts.pieces_clipped, result.counts.pieces_too_short) == (1, 1)


def test_an_event_too_short_for_any_window_is_said_to_be_in_none():
    result = cut_windows([clip(events=[(1.0, 1.1), (3.0, 4.0)])], 8.0, 8.0)
    assert result.counts.events_in_no_window == 1
    assert "1 in no window" in result.counts.describe()


def test_the_tail_of_a_clip_is_counted_and_so_is_its_event():
    counts = cut_windows([clip(20.0, events=[(1.0, 2.0), (17.0, 19.0)])], 8.0, 8.0).counts
    assert counts.uncovered_seconds == 4.0
    assert counts.events_in_no_window == 1


def test_a_stride_above_the_window_leaves_gaps_that_are_counted():
    assert cut_windows([clip(20.0, [(1.0, 2.0)])], 4.0, 8.0).counts.uncovered_seconds == 8.0


def test_empty_windows_are_kept_only_when_asked():
    kept = cut_windows([clip(events=[(1.0, 2.0)])], 8.0, 8.0, keep_empty=True)
    assert [w.answer for w in kept.windows] == ["1.0-2.0"] + ["none"] * 5
    left = cut_windows([clip(events=[(1.0, 2.0)])], 8.0, 8.0)
    assert (left.counts.windows, left.counts.empty_windows_dropped) == (1, 5)


def test_overlapping_events_become_one():
    result = cut_windows([clip(events=[(1.0, 3.0), (2.0, 4.0)])], 8.0, 8.0)
    assert result.windows[0].events == ((1.0, 4.0),)
    assert (result.counts.events, result.counts.events_merged) == (1, 1)


def test_indices_count_the_windows_over_all_clips():
    result = cut_windows([clip(16.0, name="a.mp4"), clip(8.0, name="b.mp4")], 8.0, 8.0, keep_empty=True)
    assert [(w.video.name, w.index) for w in result.windows] == [("a.mp4", 0), ("a.mp4", 1), ("b.mp4", 2)]


def test_a_thousand_windows_start_where_multiplication_says():
    windows = cut_windows([clip(100.5)], 0.5, 0.1, keep_empty=True).windows
    assert [w.start_seconds for w in windows] == [round(k * 0.1, 6) for k in range(1001)]


def test_a_millisecond_of_container_rounding_costs_no_window():
    assert len(cut_windows([clip(15.9995)], 8.0, 8.0, keep_empty=True).windows) == 2


@given(event_lists(48.0), st.integers(5, 480), st.integers(5, 200))
def test_every_window_holds_exactly_the_seconds_of_the_events_inside_it(events, window_tenths, stride_tenths):
    window_seconds, stride_seconds = window_tenths / 10, stride_tenths / 10
    result = cut_windows([clip(events=events)], window_seconds, stride_seconds, True, min_event_seconds=0.0)
    # Checked on the midpoints of all tenths of a second of the source, independently of interval arithmetic.
    for window in result.windows:
        for tenth in range(round(window.start_seconds * 10), round(window.end_seconds * 10)):
            time = (tenth + 0.5) / 10
            in_source = any(start < time < end for start, end in events)
            in_window = any(start < time - window.start_seconds < end for start, end in window.events)
            assert in_source == in_window


@given(event_lists(48.0))
def test_windows_side_by_side_lose_no_second_and_account_for_every_event(events):
    result = cut_windows([clip(events=events)], 8.0, 8.0, True, min_event_seconds=0.0)
    total = sum(end - start for start, end in merge_intervals(events))
    assert sum(end - start for w in result.windows for start, end in w.events) == pytest.approx(total, abs=1e-6)
    assert result.counts.events_in_no_window == 0
    assert result.counts.pieces_whole + result.counts.pieces_clipped == sum(len(w.events) for w in result.windows)


@given(event_lists(48.0))
def test_the_answer_of_a_window_can_be_read_back_within_it(events):
    for window in cut_windows([clip(events=events)], 8.0, 4.0, True).windows:
        answer = parse_intervals(window.answer, window.seconds)
        assert answer.status == "ok"
        assert answer.intervals == merge_intervals(window.events)


def test_a_window_cannot_be_changed():
    window = cut_windows([clip(events=[(1.0, 2.0)])], 8.0, 8.0).windows[0]
    with pytest.raises(FrozenInstanceError):
        window.index = 3


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_window_or_stride_that_is_no_length_is_refused(seconds):
    with pytest.raises(CourseError, match="window_seconds"):
        cut_windows([clip()], seconds, 8.0)
    with pytest.raises(CourseError, match="stride_seconds"):
        cut_windows([clip()], 8.0, seconds)


def test_a_clip_shorter_than_a_window_is_one_clear_line():
    with pytest.raises(CourseError, match=r"a\.mp4 lasts 5 s, shorter than a window of 8 s"):
        cut_windows([clip(5.0)], 8.0, 8.0)


def test_no_window_left_says_what_was_there():
    with pytest.raises(CourseError, match="no window of 8 s has an event"):
        cut_windows([clip(events=[(1.0, 1.1)])], 8.0, 8.0)


# Reading the file.


GOOD = {"video": "clips/a.mp4", "duration_seconds": 48.0, "question": "when?", "events": [[1.0, 2.0]]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "clips").mkdir()
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / "clips" / name).write_bytes(b"not empty")
    return tmp_path


def write(folder, *records):
    path = folder / "train.jsonl"
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in records))
    return path


def test_annotations_are_read_with_paths_relative_to_their_file(folder):
    records = [GOOD, "", GOOD | {"video": str(folder / "clips" / "b.mp4"), "events": [], "duration_seconds": 8}]
    first, second = read_annotations(write(folder, *records))
    assert (first.video, first.events) == (folder / "clips" / "a.mp4", ((1.0, 2.0),))
    assert (second.video.name, second.events, second.duration_seconds) == ("b.mp4", (), 8.0)
    assert second.where.endswith("train.jsonl:3")


def test_a_question_may_hold_a_line_separator(folder):
    (annotation,) = read_annotations(write(folder, GOOD | {"question": "red\u2028or blue?"}))
    assert annotation.question == "red\u2028or blue?"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"events": [[47.0, 49.0]]}, r"event \[47, 49\] lies outside its clip of 48 s"),
        ({"events": [[-1.0, 2.0]]}, r"event \[-1, 2\] lies outside its clip"),
        ({"events": [[3.0, 2.0]]}, "does not end after it starts"),
        ({"events": [[3.0, 3.0]]}, "does not end after it starts"),
        ({"events": [[1.0]]}, "must be a pair"),
        ({"events": [["1.0", 2.0]]}, "must be a pair"),
        ({"events": [[True, 2.0]]}, "must be a pair"),
        ({"events": [[1.0, float("nan")]]}, "must be a pair"),
        ({"events": "none"}, "must be a list"),
        ({"events": None}, "must be a list"),
        ({"duration_seconds": 0}, "above zero"),
        ({"duration_seconds": "48"}, "above zero"),
        ({"duration_seconds": float("inf")}, "above zero"),
        ({"question": " "}, "'question' must be a text"),
        ({"video": 3}, "'video' must be a text"),
        ({"video": "clips/c.mp4"}, r"c\.mp4 is missing"),
        ({"video": "clips"}, "is missing"),
        ({"durration_seconds": 3}, "unknown key 'durration_seconds'. Nearest: duration_seconds"),
    ],
)
def test_a_bad_line_is_named_with_its_number(folder, change, message):
    path = write(folder, GOOD, "", GOOD | change)
    with pytest.raises(CourseError, match=message) as error:
        read_annotations(path)
    assert "train.jsonl:3" in error.value.line()
    assert "\n" not in error.value.line()


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_missing_key_is_named(folder, key):
    with pytest.raises(CourseError, match=f"'{key}' is missing"):
        read_annotations(write(folder, {k: v for k, v in GOOD.items() if k != key}))


@pytest.mark.parametrize(("line", "message"), [("{", "not valid JSON"), ("[1]", "JSON object"), ("\ufeff{}", "BOM")])
def test_a_line_that_is_no_object_is_named(folder, line, message):
    with pytest.raises(CourseError, match=message):
        read_annotations(write(folder, line))


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_annotation_file_is_one_clear_line(folder, text):
    with pytest.raises(CourseError, match="annotation file is empty"):
        read_annotations(write(folder, text))


def test_a_missing_annotation_file_is_one_clear_line(tmp_path):
    with pytest.raises(CourseError, match="No such file"):
        read_annotations(tmp_path / "nowhere.jsonl")


def test_an_empty_video_file_is_found(folder):
    (folder / "clips" / "a.mp4").write_bytes(b"")
    with pytest.raises(CourseError, match="is an empty file"):
        read_annotations(write(folder, GOOD))


def test_lines_with_a_missing_video_are_left_out_when_asked(folder):
    findings = []
    path = write(folder, GOOD | {"video": "gone.mp4"}, GOOD)
    assert len(read_annotations(path, on_missing_video=findings.append)) == 1
    assert "gone.mp4 is missing" in findings[0].line()
    with pytest.raises(CourseError, match="has no line left: 1 lines name a missing video"):
        read_annotations(write(folder, GOOD | {"video": "gone.mp4"}), on_missing_video=findings.append)


def test_the_windows_do_not_depend_on_the_order_of_events():
    events = [(1.0, 2.0), (9.0, 12.0), (30.0, 33.3)]
    shuffled = random.Random(0).sample(events, len(events))
    assert cut_windows([clip(events=events)], 8.0, 8.0) == cut_windows([clip(events=shuffled)], 8.0, 8.0)
