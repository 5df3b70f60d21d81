"""What a person sees while ranks run: each line once, whole, also when a run goes on."""

import json

import pytest

from course_lib.errors import CourseError
from course_lib.tasks import TASKS, task_module
from course_lib.tasks.run import Watch, _make_folder, _refuse_used_folder
from course_lib.train.journal import Journal
from course_lib.train.session import NOTE


@pytest.fixture
def run(tmp_path):
    class Run:
        said: list[str] = []  # noqa: RUF012
        notes, rows = tmp_path / "rank0.log", tmp_path / "train_log.jsonl"

        def watch(self, **named):
            self.said = []
            return Watch(tmp_path, self.said.append, **named)

    return Run()


def append(path, text):
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def row(step, **values):
    return json.dumps({"step": step, "max_steps": 10, "time": float(step), "loss": 1.0 / step, **values}) + "\n"


def test_nothing_there_yet_is_no_error(run):
    run.watch().look()
    assert run.said == []


def test_notes_are_said_once_and_other_lines_not_at_all(run):
    watch = run.watch()
    append(run.notes, f"a warning\n{NOTE}first\n")
    watch.look()
    watch.look()
    append(run.notes, f"{NOTE}second\nTraceback\n")
    watch.look()
    assert run.said == ["first", "second"]


def test_half_a_line_waits_for_its_other_half(run):
    watch = run.watch()
    append(run.notes, f"{NOTE}one\n{NOTE}tw")
    append(run.rows, row(1)[:20])
    watch.look()
    assert run.said == ["one"]
    append(run.notes, "o\n")
    append(run.rows, row(1)[20:])
    watch.look()
    assert run.said[1] == "two"
    assert run.said[2].startswith("step 1/10  loss 1.0000")
    assert len(run.said) == 3


def test_half_a_letter_waits_too(run):
    watch = run.watch()
    line = f"{NOTE}é\n".encode()
    for byte in line:
        with run.notes.open("ab") as file:
            file.write(bytes([byte]))
        watch.look()
    assert run.said == ["é"]


def test_rows_without_a_loss_are_not_progress(run):
    watch = run.watch()
    append(run.rows, json.dumps({"step": 3, "max_steps": 10, "time": 1.0, "train_runtime": 9.0}) + "\n")
    watch.look()
    assert run.said == []


def test_the_time_left_is_the_steps_left_at_the_pace_so_far(run):
    watch = run.watch()
    append(run.rows, row(2, time=100.0) + row(4, time=106.0))
    watch.look()
    assert "left" not in run.said[0]
    # 3 s a step, 6 steps to go.
    assert run.said[1].endswith("3.00 s/step, 18 s left")


def test_a_loss_that_is_no_number_is_shown(run):
    watch = run.watch()
    append(run.rows, row(1, loss=float("nan")))
    watch.look()
    assert "loss nan" in run.said[0]


def test_what_an_earlier_run_said_is_not_said_again(run):
    append(run.notes, f"{NOTE}old\n")
    append(run.rows, row(1))
    watch = run.watch()
    append(run.notes, f"{NOTE}new\n")
    append(run.rows, row(2))
    watch.look()
    assert run.said[0] == "new"
    assert [line.split()[1] for line in run.said[1:]] == ["2/10"]


def test_a_journal_that_was_written_anew_is_followed_from_its_new_rows(run):
    for step in range(1, 9):
        append(run.rows, row(step))
    watch = run.watch(after_step=5)
    # A resumed rank takes out what came after the checkpoint: the file is now shorter than what was read of it.
    journal = Journal(run.rows, resumed_at=5)
    watch.look()
    assert run.said == []
    for step in (6, 7):
        journal.write(step=step, max_steps=10, loss=0.5)
        watch.look()
    assert [line.split()[1] for line in run.said] == ["6/10", "7/10"]


@pytest.mark.parametrize("name", ["train_log.jsonl", "adapter"])
def test_a_folder_that_holds_a_run_is_refused_and_an_empty_one_is_not(tmp_path, name):
    _refuse_used_folder(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(CourseError, match=r"already holds a run.*--resume"):
        _refuse_used_folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    _make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CourseError, match="cannot be made"):
            _make_folder(path)


def test_every_task_offers_what_a_run_needs_and_another_is_refused():
    for name in TASKS:
        module = task_module(name)
        assert all(callable(getattr(module, function)) for function in ("check", "train_rank", "prove"))
    with pytest.raises(CourseError, match=r"task 'nonsense' cannot be trained yet.*video_text"):
        task_module("nonsense")
