"""`course tokens` on real files: the figures, the exit codes, the sentences."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_lib.cli import app, load_commands
from course_lib.errors import CourseError

sys.path.insert(0, str(Path(__file__).parents[1] / "media"))
from clips import write_clip

pytestmark = pytest.mark.slow

load_commands()


@pytest.fixture(scope="module")
def portrait_file(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("clip") / "portrait.mp4", frames=100, fps=10, width=640, height=1152)


def course(*arguments: object):
    return CliRunner().invoke(app, ["tokens", *(str(argument) for argument in arguments)])


BUDGET = ("--model", "qwen3-vl-4b", "--frames", 32, "--max-tokens-per-frame", 196, "--min-tokens-per-frame", 128)


def test_the_practitioners_clip(portrait_file):
    result = course(portrait_file, *BUDGET, "--json")
    record = json.loads(result.stdout)
    assert result.exit_code == 0
    assert record["grid"] == [16, 36, 20]
    assert record["visual_tokens"] == 2880
    assert record["frames"] == 32
    assert record["checked"]["equal"] is True
    assert len(record["timestamps"]) == len(record["text_tokens_per_step"]) == 16
    assert record["separator_tokens"] == sum(record["text_tokens_per_step"]) + 2
    assert record["total_tokens"] == 2880 + record["separator_tokens"]
    assert record["requested"]["max_tokens_per_frame"] == record["effective"]["max_tokens_per_frame"] == 196


def test_people_get_the_same_figures(portrait_file):
    result = course(portrait_file, *BUDGET)
    assert result.exit_code == 0
    for part in ("[16, 36, 20]", "2,880", "equal"):
        assert part in result.stdout


def test_an_inert_knob_ends_with_1(portrait_file):
    result = course(portrait_file, *BUDGET, "--knob", "max_pixels=200704", "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert record["knobs"][0]["inert"] is True
    assert "max_pixels is inert for Qwen3-VL" in " ".join(record["findings"])


def test_a_knob_that_works_ends_with_0(portrait_file):
    size = 'size={"shortest_edge": 4096, "longest_edge": 2000000}'
    assert course(portrait_file, *BUDGET, "--knob", size, "--json").exit_code == 0
    assert course(portrait_file, "--model", "qwen2-vl-7b", "--frames", 8, "--knob", "max_pixels=100352").exit_code == 0


def test_a_cap_that_the_floor_overrules_ends_with_1(portrait_file):
    result = course(portrait_file, "--model", "qwen3-vl-4b", "--frames", 32, "--max-tokens-per-frame", 64, "--json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert (record["tokens_per_step"], record["effective"]["limited_by"]) == (120, "min_tokens_per_frame")


def test_the_curve_lists_what_a_budget_buys(portrait_file):
    result = course(portrait_file, "--model", "qwen3-vl-4b", "--total-tokens", 3100, "--curve", "--json")
    record = json.loads(result.stdout)
    assert result.exit_code == 0
    assert record["total_tokens"] <= 3100
    assert record["checked"]["equal"] is True
    assert {"frames": 32, "tokens_per_step": 180} in [
        {key: point[key] for key in ("frames", "tokens_per_step")} for point in record["curve"]
    ]
    assert all(point["total_tokens"] <= 3100 for point in record["curve"])


@pytest.mark.parametrize(
    "arguments", [("--model", "no-such-model"), ("--model", "qwen3-vl-4b", "--frames", 4, "--fps", 2)]
)
def test_wrong_usage_is_one_line(portrait_file, arguments):
    result = course(portrait_file, *arguments)
    assert isinstance(result.exception, CourseError)
    assert result.exception.exit_code == 2


def test_one_frame_for_qwen3_is_a_finding_not_a_crash(tmp_path):
    result = course(write_clip(tmp_path / "one.mp4", frames=1), "--model", "qwen3-vl-4b")
    assert isinstance(result.exception, CourseError)
    assert result.exception.exit_code == 1
    assert "fewer than one temporal patch" in str(result.exception)


def test_a_broken_file_is_a_finding(tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    result = course(tmp_path / "broken.mp4", "--model", "qwen3-vl-4b")
    assert isinstance(result.exception, CourseError)
    assert result.exception.exit_code == 1


@pytest.mark.slow
def test_the_installed_command_prints_json_and_nothing_else(portrait_file):
    command = [str(Path(sys.executable).with_name("course")), "tokens", str(portrait_file), *map(str, BUDGET), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert json.loads(done.stdout)["grid"] == [16, 36, 20]
    assert done.stderr == ""
