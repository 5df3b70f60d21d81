"""What notebook 22 shows of a run, on a simulated run folder; and its exercises against the library's own scores."""

import os

import pytest
import simulated_run
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.data.intervals import merge_intervals
from course_lib.errors import CourseError
from course_lib.evaluate import grounding
from course_lib.learn import runner
from course_lib.learn.exercise import exercise, lesson
from course_lib.learn.notebooks import solutions
from course_lib.learn.runs import finished_run, show_batch, show_films, show_run, show_scores, show_verdict


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    simulated_run.build(folder)
    return folder


@pytest.fixture
def run(runs, monkeypatch):
    monkeypatch.setenv("COURSE_RUNS", str(runs))
    return finished_run("video_text")


@pytest.fixture
def cards(monkeypatch):
    shown = []
    monkeypatch.setattr("course_lib.learn.runs.show", shown.append)
    return shown


def test_without_a_run_one_line_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path))
    with pytest.raises(CourseError, match="make demo"):
        finished_run("video_text")


def test_the_newest_finished_run_of_the_example_is_read(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path))
    report = (run.folder / "report" / "report.json").read_text()
    for age, name in enumerate(("video_text_new", "video_text_old", "video_speech")):
        path = tmp_path / name / "report" / "report.json"
        path.parent.mkdir(parents=True)
        path.write_text(report)
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "video_text_unfinished").mkdir()
    assert finished_run("video_text").folder.name == "video_text_new"


def test_the_scores_shown_are_those_of_the_report(run, cards):
    show_scores(run)
    for name, value in run.iou.items():
        assert value == run.report["scores"][name]["mean_iou"]
        assert f"{value:.2f}" in cards[0].text()
    assert list(run.iou) == list(grounding.CONTROLS)
    assert 'role="img"' in cards[0].html()


def test_the_films_play_from_the_notebook_itself_and_have_words_beside_them(run, cards):
    show_films(run, windows=3)
    page = cards[0].html()
    assert page.count("<video") == page.count("data:video/mp4;base64,") == 2
    assert "answers before training" in page
    assert cards[0].text().count("clip_") == 3


def test_a_missing_film_is_one_line(run, tmp_path):
    gone = type(run)(folder=tmp_path, report=run.report)
    with pytest.raises(CourseError, match=r"before\.mp4"):
        show_films(gone)


def test_facts_batch_and_losses_come_from_the_files(run, cards):
    show_run(run)
    show_batch(run)
    assert "none: simulated" in cards[0].text()
    assert "8×2×2" in cards[1].text()
    assert "supervised tokens  28" in cards[1].text()
    assert run.losses()[0] == (2, 2.0)


def test_the_verdict_is_bad_as_soon_as_one_claim_is_not_reached(run, cards):
    show_verdict(run)
    assert (cards[0].kind == "good") == all(v["reached"] for v in run.report["verdict"])
    broken = run.report | {"verdict": [*run.report["verdict"][1:], run.report["verdict"][0] | {"reached": False}]}
    show_verdict(type(run)(folder=run.folder, report=broken))
    assert cards[1].kind == "bad"
    assert "NO" in cards[1].text()


intervals = st.lists(
    st.tuples(st.integers(0, 70), st.integers(1, 20)).map(lambda pair: (pair[0] / 10, (pair[0] + pair[1]) / 10)),
    max_size=3,
).map(lambda found: list(merge_intervals(found)))


@settings(deadline=None)  # a busy machine is no finding
@given(truth=intervals, answer=intervals)
def test_the_exercises_iou_is_the_librarys(truth, answer):
    mine = exercise("temporal_iou").solution(truth, answer)
    assert mine == pytest.approx(grounding.temporal_iou(truth, answer), abs=1e-9)


def test_the_exercises_bounds_are_those_the_example_is_held_to():
    decide, margin = exercise("looked_at_pixels").solution, 1e-6
    iou = {"before": 0.0, "after": 0.9, "best_constant": 0.3, "shuffled": 0.2, "blank": 0.2}
    edge = 0.3 + grounding.MIN_MARGIN_OVER_CONSTANT
    assert decide(iou | {"after": edge + margin})
    assert not decide(iou | {"after": edge - margin})
    ceiling = 0.3 + grounding.MAX_CONTROL_MARGIN
    for control in ("shuffled", "blank"):
        assert decide(iou | {control: ceiling - margin})
        assert not decide(iou | {control: ceiling + margin})


@pytest.mark.slow
@pytest.mark.notebook
def test_notebook_22_runs_on_a_simulated_run(runs, monkeypatch):
    monkeypatch.setenv("COURSE_RUNS", str(runs))
    report = runner.run_notebook(solutions(["22"])[0], label="simulated")
    assert report.failed_cell is None, f"cell {report.failed_cell}: {report.error}; see {report.executed}"
    compared = {fact["comparison"]: fact["measured"] for fact in report.facts if "comparison" in fact}
    iou = finished_run("video_text").iou
    assert compared == {f"{name}_iou": iou[name] for name in ("best_constant", "after", "shuffled")}
    passed = [fact["exercise"] for fact in report.facts if fact.get("passed")]
    assert passed == [task.name for task in lesson("22").exercises]
