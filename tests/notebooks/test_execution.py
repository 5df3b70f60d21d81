"""Every solution runs within its time limit; the learner's copy runs to its end and passes nothing by itself."""

import json

import pytest

from course_lib.errors import CourseError
from course_lib.learn import notebooks, runner
from course_lib.learn.exercise import lesson
from course_lib.learn.runs import finished_run

pytestmark = [pytest.mark.slow, pytest.mark.notebook]


def require_its_run(path) -> None:
    """A notebook that reads a run needs one; the training tests and `make demo` leave it in runs/."""
    example = json.loads(path.read_text())["metadata"]["course"].get("reads_run")
    if example:
        try:
            finished_run(example)
        except CourseError as error:
            pytest.skip(error.line())


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", notebooks.solutions(), ids=lambda path: path.name[:2])
def test_the_solution_runs_in_time_and_every_check_passes(path):
    require_its_run(path)
    report = runner.run_notebook(path)
    assert report.failed_cell is None, f"cell {report.failed_cell}: {report.error}; see {report.executed}"
    one = lesson(path.name[:2])
    checked = {fact["exercise"]: fact["passed"] for fact in report.facts if "exercise" in fact}
    assert checked == {task.name: True for task in one.exercises}
    compared = {fact["comparison"] for fact in report.facts if "comparison" in fact and not fact.get("waiting")}
    assert compared == set(one.predictions)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", notebooks.solutions(), ids=lambda path: path.name[:2])
def test_the_learners_copy_runs_to_its_end_with_nothing_solved_and_nothing_given_away(path):
    require_its_run(path)
    report = runner.run_notebook(notebooks.learner_path(path), label="learner")
    assert report.failed_cell is None, f"cell {report.failed_cell}: {report.error}; see {report.executed}"
    one = lesson(path.name[:2])
    checked = {fact["exercise"]: fact["passed"] for fact in report.facts if "exercise" in fact}
    assert checked == {task.name: False for task in one.exercises}
    waiting = {fact["comparison"] for fact in report.facts if fact.get("waiting")}
    assert waiting == set(one.predictions)


def notebook_of(*sources: str, limit: float = 30) -> dict:
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for i, source in enumerate(sources)
    ]
    course = {"number": "00", "time_limit_seconds": limit}
    return {"cells": cells, "metadata": {"course": course}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "course_root", lambda: tmp_path)
    (tmp_path / "notebooks").mkdir()

    def execute(*sources: str, limit: float = 30):
        path = tmp_path / "00_try.ipynb"
        path.write_text(json.dumps(notebook_of(*sources, limit=limit)))
        return runner.run_notebook(path)

    return execute


def test_a_failing_cell_is_named_and_the_executed_copy_shows_everything_up_to_it(run):
    report = run("print('first')", "1 / 0", "print('never')")
    assert (report.failed_cell, report.error) == (1, "ZeroDivisionError: division by zero")
    kept = json.loads(report.executed.read_text())
    assert "first" in str(kept["cells"][0]["outputs"])
    assert kept["cells"][2]["outputs"] == []
    page = report.executed.with_suffix(".html").read_text()
    assert "ZeroDivisionError" in page
    assert "first" in page


def test_the_time_limit_is_for_all_cells_together(run):
    report = run("import time; time.sleep(1.5)", "time.sleep(1.5)", "time.sleep(60)", limit=5)
    assert (report.failed_cell, report.error) == (2, "the time limit passed")
    assert report.seconds < 30


def test_a_slow_machine_can_be_given_more_time(run, monkeypatch):
    monkeypatch.setenv("COURSE_TIME_FACTOR", "40")
    report = run("import time; time.sleep(2)", limit=0.5)
    assert (report.failed_cell, report.time_limit_seconds) == (None, 20)


def test_a_dead_kernel_is_reported(run):
    report = run("import os; os._exit(3)")
    assert (report.failed_cell, report.error) == (0, "the kernel died")


def test_a_run_does_not_touch_the_learners_progress(run, tmp_path, monkeypatch):
    mine = tmp_path / "mine.json"
    monkeypatch.setenv("COURSE_PROGRESS", str(mine))
    report = run("from course_lib.learn import predict; predict('x', 3)")
    assert report.failed_cell is None
    assert not mine.exists()
    assert report.facts == ({"prediction": "x", "value": 3},)
