"""The frame of the `course` command: exit codes, one-line errors, speed, JSON."""

import json
import subprocess
import sys

import pytest
import typer

import course_lib.cli as cli
from course_lib.cli.output import print_json, print_table
from course_lib.cli.train import parse_overrides
from course_lib.errors import FINDING, CourseError


def run_main(monkeypatch, capsys, action):
    """Exit code and standard error of `course probe` when the command does `action`."""
    app = typer.Typer()

    @app.callback()
    def frame() -> None:
        pass

    @app.command("probe")
    def probe() -> None:
        action()

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(cli, "load_commands", lambda: None)
    monkeypatch.setattr(sys, "argv", ["course", "probe"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code or 0, capsys.readouterr().err


def failing(error):
    def action():
        raise error

    return action


def test_a_command_that_ends_well_ends_with_0(monkeypatch, capsys):
    assert run_main(monkeypatch, capsys, lambda: None) == (0, "")


@pytest.mark.parametrize(
    ("error", "code"), [(CourseError("no", where="a"), 2), (CourseError("no", exit_code=FINDING), 1)]
)
def test_an_error_is_one_line_that_begins_with_the_command(monkeypatch, capsys, error, code):
    assert run_main(monkeypatch, capsys, failing(error)) == (code, f"course probe: {error.line()}\n")


def test_a_fault_of_ours_is_one_line_too_and_says_so(monkeypatch, capsys):
    monkeypatch.delenv("COURSE_TRACEBACK", raising=False)
    code, said = run_main(monkeypatch, capsys, failing(RuntimeError("first\nsecond")))
    assert code == 2
    assert said.startswith("course probe: unexpected RuntimeError: first. This is a fault of the course")
    assert said.count("\n") == 1


def test_a_fault_of_ours_shows_its_traceback_when_asked(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="first"):
        run_main(monkeypatch, capsys, failing(RuntimeError("first")))


def test_a_finding_may_end_a_command_by_its_exit_code(monkeypatch, capsys):
    assert run_main(monkeypatch, capsys, failing(typer.Exit(FINDING))) == (1, "")


def course(*arguments):
    return subprocess.run(
        [sys.executable, "-c", "from course_lib.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", [("nonsense",), ("train",), ("train", "a.yaml", "--nonsense")])
def test_wrong_usage_ends_with_2_and_no_traceback(arguments):
    done = course(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_help_lists_the_commands_in_their_order_and_imports_nothing_heavy():
    code = (
        "import sys, course_lib.cli as cli; cli.load_commands()\n"
        "heavy = {'torch', 'transformers', 'deepspeed', 'peft', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "print([c.name for c in cli.app.registered_commands]); print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    commands, heavy = done.stdout.splitlines()
    names = [name for name in cli.ORDER if f"'{name}'" in commands]
    assert commands == str(names)
    assert {"check", "train", "lint"} <= set(names)
    assert heavy == "[]"


def test_importing_the_package_takes_under_half_a_second():
    code = "import time; t = time.process_time(); import course_lib; print(time.process_time() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5


SPEAKING = """
from course_lib import cli
from course_lib.cli.output import print_json, print_table

@cli.app.command("speak")
def speak(kind: str) -> None:
    for _ in range(4000):
        print_json({"line": "x" * 80}) if kind == "json" else print_table("T", ["a"], [["x" * 60]])

cli.main()
"""


@pytest.mark.parametrize("kind", ["json", "table"])
def test_a_reader_that_stops_reading_is_no_finding(kind):
    command = '"$0" -c "$1" speak "$2" | head -n 1 >/dev/null; echo "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, SPEAKING, kind], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0"
    assert done.stderr == ""


def test_overrides_are_read_as_yaml():
    given = parse_overrides(["train.max_steps=3", "train.bf16=false", "lora.targets=[q_proj]", "task=a=b", "node="])
    assert given == {
        "train.max_steps": 3,
        "train.bf16": False,
        "lora.targets": ["q_proj"],
        "task": "a=b",
        "node": None,
    }


def test_a_path_typed_as_an_override_counts_from_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my model").mkdir()
    given = parse_overrides(["output=runs/a", "model=my model", "data.train=/x/y.jsonl"])
    assert given == {
        "output": str(tmp_path / "runs" / "a"),
        "model": str(tmp_path / "my model"),
        "data.train": "/x/y.jsonl",
    }
    assert parse_overrides(["model=qwen3-vl-4b"]) == {"model": "qwen3-vl-4b"}


@pytest.mark.parametrize(
    ("pair", "said"), [("max_steps", "not KEY=VALUE"), ("=3", "not KEY=VALUE"), ("a=[", "not valid YAML")]
)
def test_an_override_that_cannot_be_read_is_quoted(pair, said):
    with pytest.raises(CourseError, match=said) as caught:
        parse_overrides([pair])
    assert f"'{pair}'" in caught.value.line()


def test_json_keeps_letters_and_writes_what_it_does_not_know_as_text(capsys, tmp_path):
    print_json({"name": "Zoë", "path": tmp_path})
    said = capsys.readouterr().out
    assert json.loads(said) == {"name": "Zoë", "path": str(tmp_path)}
    assert "Zoë" in said


def test_a_table_shows_brackets_as_they_are(capsys):
    print_table("T", ["a"], [["[bold]x[/bold]"]])
    assert "[bold]x[/bold]" in capsys.readouterr().out
