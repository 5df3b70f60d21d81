"""A number first, the answer afterwards, and never the other way round."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import CourseError
from course_lib.learn import compare, predict, progress
from course_lib.learn.quantities import argument, ratio, say, short


def test_without_a_prediction_the_answer_is_not_given_away(cards):
    compare("tokens", computed=11_520)
    assert cards[0].kind == "ask"
    assert "11" not in cards[0].text()
    assert "predict('tokens', …)" in cards[0].text()


def test_three_numbers_stand_side_by_side_with_the_ratio_in_words(cards):
    predict("tokens", 2_880, unit="tokens")
    compare("tokens", computed=11_520, measured=11_520)
    text = cards[-1].text()
    for expected in ("2,880 tokens", "11,520 tokens", "It is 4 times what you said.", "are equal"):
        assert expected in text
    assert cards[-1].facts == {"comparison": "tokens", "predicted": 2_880, "computed": 11_520, "measured": 11_520}


def test_the_guess_is_held_against_the_measured_value_not_the_formula(cards):
    predict("seconds", 10)
    compare("seconds", computed=20, measured=10)
    assert "You said exactly that." in cards[-1].text()
    assert "differ by 100 %" in cards[-1].text()


def test_a_second_thought_before_the_answer_counts_and_after_it_does_not(cards):
    predict("x", 1)
    predict("x", 2)
    compare("x", computed=8)
    predict("x", 8)
    assert "first prediction stays: 2" in cards[-1].text()
    compare("x", computed=8)
    assert cards[-1].facts["predicted"] == 2


@pytest.mark.parametrize("nothing", [..., None])
def test_three_dots_are_asked_about_and_not_kept(cards, nothing):
    predict("x", nothing)
    assert cards[0].kind == "ask"
    assert progress.load()["predictions"] == {}


@pytest.mark.parametrize("wrong", ["12", True, math.nan, math.inf, [1]])
def test_a_prediction_is_one_finite_number(wrong):
    with pytest.raises(CourseError, match="a prediction is one number"):
        predict("x", wrong)


def test_compare_needs_something_to_compare_with():
    with pytest.raises(CourseError, match="needs computed="):
        compare("x")


def test_a_misspelt_name_is_recognised(cards):
    predict("tokens_32_frames", 5)
    compare("tokens_32_frame", computed=7)
    assert "'tokens_32_frames' (5)" in cards[-1].text()


@settings(deadline=None)  # a busy machine is no finding
@given(yours=st.floats(-1e12, 1e12), truth=st.floats(-1e12, 1e12))
def test_every_pair_of_numbers_gets_one_plain_sentence(yours, truth):
    sentence = ratio(yours, truth)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert ("exactly" in sentence) == (yours == truth)


@pytest.mark.parametrize(
    ("yours", "truth", "said"),
    [
        (4, 16, "It is 4 times what you said."),
        (16, 4, "You said 4 times as much as it is."),
        (100, 101, "You were within 2 %."),
        (90, 120, "You were 25 % too low."),
        (100, 80, "You were 25 % too high."),
        (0.25, 0.351, "You were 29 % too low."),
        (120, 60, "You said 2 times as much as it is."),
        (-4, -16, "It is 4 times what you said."),
        (0, 5, "You said 0; it is 5."),
    ],
)
def test_the_ratio_is_said_the_right_way_round(yours, truth, said):
    assert ratio(yours, truth) == said


def test_numbers_carry_their_units():
    assert say(2**31, "bytes") == "2.00 GiB (2,147,483,648 bytes)"
    assert say(1, "tokens") == "1 token"
    assert short(52.5e9, "bytes") == "48.9 GiB (52.5 GB)"
    assert argument(7_500_000_000) == "7.5e9"
    assert argument(2_135_104) == "2135104" or float(argument(2_135_104)) == 2_135_104
    assert argument("text") == "'text'"


def test_a_file_that_cannot_be_read_is_kept_aside(progress_file, capsys):
    progress_file.write_text('{"format": 1, "predictions": [')
    predict("x", 1)
    aside = list(progress_file.parent.glob("progress.json.unreadable-*"))
    assert len(aside) == 1
    assert aside[0].read_text() == '{"format": 1, "predictions": ['
    assert json.loads(progress_file.read_text())["predictions"]["x"]["value"] == 1
    assert "is kept as" in capsys.readouterr().out


@pytest.mark.parametrize("other", ["[]", "null", '{"format": 2, "predictions": {}, "exercises": {}}', '{"format": 1}'])
def test_another_kind_of_json_is_not_taken_for_progress(progress_file, other):
    progress_file.write_text(other)
    assert progress.load()["predictions"] == {}


def test_two_kernels_at_once_lose_nothing(progress_file):
    code = (
        "import sys, time, pathlib; from course_lib.learn import progress\n"
        "here = pathlib.Path(sys.argv[2]); (here / ('ready-' + sys.argv[1])).touch()\n"
        "while len(list(here.glob('ready-*'))) < 2: time.sleep(0.001)\n"
        "for i in range(100):\n"
        "    with progress.changing() as record:\n"
        "        record['predictions'][sys.argv[1] + str(i)] = {'value': i}\n"
    )
    here = str(progress_file.parent)
    writers = [subprocess.Popen([sys.executable, "-c", code, name, here]) for name in ("a", "b")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert len(json.loads(progress_file.read_text())["predictions"]) == 200


def test_a_folder_that_cannot_be_written_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "file" / "progress.json"))
    with pytest.raises(CourseError, match="COURSE_PROGRESS"):
        predict("x", 1)
