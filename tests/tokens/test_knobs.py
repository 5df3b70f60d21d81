"""The audit finds every setting that does nothing, and the pairs without which a setting seems to do nothing.

The expected words for transformers 5.24 were measured by hand before this code existed; another version may differ, so
those cases name their version.
"""

import json

import pytest

from course_lib.errors import CourseError
from course_lib.tokens import judge
from course_lib.tokens.families import video_model
from course_lib.tokens.knobs import audit_environment, audit_knobs, judge_knob, parse_knobs
from course_lib.tokens.routes import PROBES, Bench

pytestmark = pytest.mark.slow

MEASURED_WITH = "5.24"


@pytest.fixture(scope="module")
def qwen3():
    with Bench(video_model("qwen3-vl-4b")) as bench:
        yield bench


@pytest.fixture(scope="module")
def qwen2():
    with Bench(video_model("qwen2-vl-7b")) as bench:
        yield bench


def of_version(route_words):
    if not judge.library_version().startswith(MEASURED_WITH):
        pytest.skip(f"measured with transformers {MEASURED_WITH}")
    return route_words


@pytest.mark.parametrize(
    ("knob", "route", "words"),
    [
        ("max_pixels", "call", "error (TypeError)"),
        ("max_pixels", "constructor", "does nothing"),
        ("max_pixels", "attribute", "does nothing"),
        ("max_pixels", "from_pretrained", "does nothing"),
        ("min_frames", "call", "does nothing"),
        ("max_frames", "call", "does nothing"),
        ("max_frames", "constructor", "works"),
        ("num_frames", "call", "only together with fps=null (alone: ValueError)"),
        ("max_video_tokens", "call", "does nothing"),
        ("max_video_tokens", "constructor", "only together with cap_pixels_per_frame=true"),
        ("size", "call", "works (whole video)"),
        ("fps", "call", "works"),
        ("total_pixels", "constructor", "does nothing"),
    ],
)
def test_qwen3_settings_do_what_was_measured(qwen3, knob, route, words):
    assert judge_knob(qwen3, knob, route=route).words() == of_version(words)


def test_qwen3_full_processor_takes_max_pixels_in_silence_and_changes_nothing(qwen3):
    base = qwen3.observe("full_processor", {}, PROBES[0])
    assert base.thw == (10, 72, 40)
    assert qwen3.observe("full_processor", {"max_pixels": 50_000}, PROBES[0]) == of_version(base)


@pytest.mark.parametrize(
    ("knob", "route", "words"),
    [
        ("max_pixels", "call", "works (per frame)"),
        ("max_pixels", "from_pretrained", "works (per frame)"),
        ("size", "call", "works (per frame)"),
        ("num_frames", "call", "only together with do_sample_frames=true"),
        ("max_frames", "constructor", "only together with do_sample_frames=true and fps=2.0"),
    ],
)
def test_qwen2_settings_do_what_was_measured(qwen2, knob, route, words):
    assert judge_knob(qwen2, knob, route=route).words() == of_version(words)


def test_a_knob_that_works_beside_its_partner_is_not_inert(qwen3):
    beside = {"cap_pixels_per_frame": True}
    verdict = judge_knob(qwen3, "max_video_tokens", route="constructor", values=(64,), beside=beside)
    assert verdict.outcome == "works"


def test_one_word_counts_frames_here_and_whole_videos_there(qwen2, qwen3):
    size = ({"shortest_edge": 16_384, "longest_edge": 204_800},)
    meanings = [judge_knob(bench, "size", route="call", values=size).meaning for bench in (qwen2, qwen3)]
    assert meanings == ["per frame", "whole video"]


def test_an_unknown_knob_is_inert_not_forgiven(qwen3):
    assert judge_knob(qwen3, "max_tokens_pre_frame", route="constructor", values=(64,)).outcome == "does nothing"


def _records(knobs, info, route="all", model="qwen3-vl-4b"):
    return {line["name"]: line for line in audit_knobs(video_model(model), knobs, info=info, route=route)}


def test_the_records_of_the_command(portrait):
    lines = _records({"max_pixels": 200_704}, portrait)
    assert lines["max_pixels"]["inert"] is True
    assert set(lines["max_pixels"]["routes"]) >= {"constructor", "call", "full_processor"}
    both = _records({"cap_pixels_per_frame": True, "max_video_tokens": 64}, portrait, route="constructor")
    assert [line["inert"] for line in both.values()] == [False, False]
    alone = _records({"max_video_tokens": 64}, portrait, route="constructor")
    assert alone["max_video_tokens"]["inert"] is True
    assert "only together with cap_pixels_per_frame=true" in alone["max_video_tokens"]["sentence"]


def test_a_value_that_changes_nothing_here_is_told_from_an_inert_knob(portrait):
    line = _records({"max_frames": 700}, portrait, route="constructor")["max_frames"]
    assert (line["inert"], line["moves_this_clip"]) == (False, False)
    assert "this value changes nothing on this clip" in line["sentence"]
    line = _records({"max_frames": 6}, portrait, route="constructor")["max_frames"]
    assert (line["inert"], line["moves_this_clip"]) == (False, True)


def test_a_value_that_the_library_refuses_is_inert_whatever_other_values_do(portrait):
    line = _records({"size": {"height": 224, "width": 224}}, portrait, route="call")["size"]
    assert (line["inert"], line["verdict"]) == (True, "error (ValueError)")


@pytest.mark.slow
def test_no_environment_variable_moves_the_processor():
    assert not any(audit_environment(video_model("qwen3-vl-4b")).values())


@pytest.mark.parametrize(
    ("pair", "value"),
    [("max_pixels=200704", 200_704), ("cap_pixels_per_frame=True", True), ("fps=null", None), ("fps=None", None),
     ('size={"shortest_edge": 1, "longest_edge": 2}', {"shortest_edge": 1, "longest_edge": 2}),
     ("backend=pyav", "pyav")],
)  # fmt: skip
def test_knobs_are_read_as_json_or_text(pair, value):
    assert parse_knobs([pair]) == {pair.partition("=")[0]: value}


@pytest.mark.parametrize("pair", ["max_pixels", "=3", "fps="])
def test_a_knob_without_a_value_is_refused(pair):
    with pytest.raises(CourseError, match="is not NAME=VALUE"):
        parse_knobs([pair])


def test_an_unknown_route_is_refused(portrait):
    with pytest.raises(CourseError, match="unknown route 'prayer'"):
        audit_knobs(video_model("qwen3-vl-4b"), json.loads('{"fps": 1}'), info=portrait, route="prayer")
