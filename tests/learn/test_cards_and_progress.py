"""What a learner sees: in a terminal, in a notebook, and from `course progress`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.learn import check, compare, cpu_op, environment, predict
from course_lib.learn.cards import Card, show
from course_lib.learn.exercise import lesson, lessons
from course_lib.learn.progress import progress_path
from course_lib.learn.summary import summary


def test_the_text_and_the_html_say_the_same():
    card = Card(
        kind="bad", headline="a < b", columns=("", "value"), rows=[("you & me", "4")], lines=["why"], code="x = 1"
    )
    for expected in ("✗ a < b", "you & me  4", "why", "x = 1"):
        assert expected in card.text()
    for expected in ("✗ a &lt; b", "you &amp; me", "<caption", 'scope="row"', "why", "x = 1"):
        assert expected in card.html()


def test_a_terminal_gets_a_table_and_no_markup_of_ours(capsys):
    show(Card(kind="note", headline="[bold]x[/bold]", columns=("", "value"), rows=[("[red]a", "1")]))
    printed = capsys.readouterr().out
    assert "[bold]x[/bold]" in printed
    assert "[red]a" in printed


def test_the_first_cell_names_versions_and_machine_without_importing_them():
    code = (
        "import sys; from course_lib.learn import environment; environment()\n"
        "print([m for m in ('torch', 'deepspeed', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for expected in ("torch", "Python", "processor cores", "memory", "GPU"):
        assert expected in done.stdout
    assert done.stdout.strip().endswith("[]")


def test_a_package_that_is_missing_is_said_to_be(cards, monkeypatch):
    monkeypatch.setattr("course_lib.learn.first_cell.PACKAGES", ("no-such-package",))
    environment()
    assert "no-such-package  not installed" in cards[0].text()


def solve(number: str) -> None:
    one = lesson(number)
    for name in one.predictions:
        predict(name, 1)
        compare(name, computed=1)
    for task in one.exercises:
        check(task.name, task.solution() if task.is_value else task.solution)


def test_a_notebook_is_done_when_all_is_compared_and_passed(capsys):
    assert summary()["done"] == 0
    number = lessons()[0].number
    solve(number)
    record = summary()
    assert record["done"] == 1
    assert [one["number"] for one in record["notebooks"] if one["done"]] == [number]


def test_a_prediction_that_was_never_compared_is_not_done(capsys):
    solve("00")
    stored = json.loads(progress_path().read_text())
    name = lesson("00").predictions[0]
    del stored["predictions"][name]["compared_at"]
    progress_path().write_text(json.dumps(stored))
    assert not summary()["notebooks"][0]["done"]


def test_course_progress_prints_a_table_and_json():
    course = [sys.executable, "-c", "from course_lib.cli import main; main()", "progress"]
    table = subprocess.run(course, capture_output=True, text=True, check=True).stdout
    assert "zero_stage_bytes" in table
    record = json.loads(subprocess.run([*course, "--json"], capture_output=True, text=True, check=True).stdout)
    assert record["notebooks"][0]["exercises"]["cards_needed"]["passed"] is False
    assert Path(record["file"]) == progress_path()


def test_no_compiler_is_one_line_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_op.sys, "platform", "linux")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(cpu_op.shutil, "which", lambda name: None)
    with pytest.raises(CourseError, match="apt-get install"):
        cpu_op.prepare_cpu_ranks()


def test_a_failed_or_endless_build_is_one_line(tmp_path, monkeypatch):
    log = tmp_path / "build.log"
    log.write_text("working\nfatal error: omp.h: No such file\n")
    failed = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"], start_new_session=True)
    with pytest.raises(CourseError, match=r"omp\.h"):
        cpu_op.OpBuild(process=failed, log=log).wait()
    endless = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    with pytest.raises(CourseError, match="the build was ended"):
        cpu_op.OpBuild(process=endless, log=log).wait(time_limit_seconds=0.5)
    assert endless.returncode is not None


def test_an_operator_counts_as_built_only_when_ninja_has_nothing_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    folder, name = tmp_path / cpu_op.OPERATOR, f"{cpu_op.OPERATOR}.so"
    folder.mkdir()
    (folder / "source.cpp").write_text("old")
    (folder / "build.ninja").write_text(
        f"rule copy\n command = cp $in $out\nbuild {name}: copy source.cpp\ndefault {name}\n"
    )
    assert not cpu_op.operator_built()
    environment = cpu_op.rank_environment(0, ranks=1, port=0)
    subprocess.run(["ninja"], cwd=folder, env=environment, check=True, capture_output=True)
    assert cpu_op.operator_built()
    (folder / "source.cpp").write_text("new")
    assert not cpu_op.operator_built()
