"""`course lint` from the outside: exit codes, JSON keys, the corrected copy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from clean_configs import RAW, TRAINER
from typer.testing import CliRunner

from course_lib import cli
from course_lib.errors import CourseError

CASES = Path(__file__).parents[1] / "data" / "ds_configs"
cli.load_commands()


def course_lint(*arguments):
    result = CliRunner().invoke(cli.app, ["lint", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def file(tmp_path):
    def write(config, name="ds.json"):
        path = tmp_path / name
        path.write_text(json.dumps(config))
        return path

    return write


def test_a_clean_file_ends_with_0_and_says_so(file):
    result = course_lint(file(TRAINER["stage_3"]), "--world-size", 2)
    assert result.exit_code == 0
    assert "nothing to complain of" in result.stdout
    assert "needs --model" in " ".join(result.stdout.split())


def test_an_error_ends_with_1_and_a_warning_with_0(file):
    assert course_lint(file({**RAW["ddp"], "amp": {}}), "--framework", "raw").exit_code == 1
    assert course_lint("--case", CASES / "nan_prone_overlap.json").exit_code == 0


def test_json_has_findings_with_stable_keys_and_the_resolved_autos():
    answer = json.loads(course_lint("--case", CASES / "auto_without_trainer.json", "--json").stdout)
    assert {f["key"] for f in answer["findings"]} == {
        "bf16.enabled",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    }
    assert set(answer["findings"][0]) == {"code", "level", "key", "message", "fix", "file"}
    assert answer["resolved"]["bf16.enabled"] == {
        "written": "auto",
        "value": False,
        "source": f"DeepSpeed {answer['versions']['deepspeed']} default",
    }
    assert answer["fixed"] is None


def test_several_files_are_told_apart(file):
    good, bad = file(RAW["ddp"], "good.json"), file({"amp": 1, **RAW["ddp"]}, "bad.json")
    result = course_lint(good, bad, "--framework", "raw", "--json")
    answer = json.loads(result.stdout)
    assert {f["file"] for f in answer["findings"]} == {str(bad)}
    assert set(answer["resolved"]) == {str(good), str(bad)}


def test_arguments_from_a_file_are_compared_and_what_is_not_in_it_has_its_default(file, tmp_path):
    arguments = tmp_path / "args.yaml"
    arguments.write_text("max_grad_norm: 0.5\n")
    path = file({**TRAINER["stage_2"], "gradient_clipping": 1.0, "bf16": {"enabled": True}})
    answer = json.loads(course_lint(path, "--args", arguments, "--json").stdout)
    assert {(f["key"], f["code"], f["level"]) for f in answer["findings"]} == {
        ("gradient_clipping", "trainer_mismatch", "error"),
        ("bf16.enabled", "trainer_default_differs", "warning"),
    }


def test_fix_writes_beside_and_never_over(file):
    path = file({**RAW["ddp"], "offload_optimizer": {"device": "cpu"}, "amp": {}})
    before = path.read_text()
    for name in ("ds.fixed.json", "ds.fixed-2.json"):
        answer = json.loads(course_lint(path, "--framework", "raw", "--fix", "--json").stdout)
        assert answer["fixed"]["file"] == str(path.with_name(name))
        assert course_lint(path.with_name(name), "--framework", "raw").exit_code == 0
    assert path.read_text() == before


def test_fix_of_a_clean_file_writes_nothing(file):
    path = file(RAW["stage_3"])
    answer = json.loads(course_lint(path, "--framework", "raw", "--fix", "--json").stdout)
    assert answer["fixed"] == {"file": None, "edits": [], "errors_left": 0}
    assert [p.name for p in path.parent.iterdir()] == ["ds.json"]


def test_a_corrected_case_is_a_case(tmp_path):
    path = tmp_path / "case.json"
    path.write_text((CASES / "batch_equation.json").read_text())
    assert course_lint("--case", path, "--fix").exit_code == 1
    assert course_lint("--case", tmp_path / "case.fixed.json").exit_code == 0


@pytest.mark.parametrize(
    "arguments", [[], ["nowhere.json"], ["--case", "nowhere.json"], ["x.json", "--framework", "hf"]]
)
def test_wrong_usage_is_an_error_of_ours_with_exit_code_2(arguments):
    with pytest.raises(CourseError) as raised:
        course_lint(*arguments)
    assert raised.value.exit_code == 2


@pytest.mark.slow
def test_as_a_process_stdout_is_json_alone(file):
    code = "from course_lib.cli import main; main()"
    path = file({**RAW["ddp"], "amp": {}})
    command = [sys.executable, "-c", code, "lint", str(path), "--framework", "trainer", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "amp" in {f["key"] for f in json.loads(done.stdout)["findings"]}
    missing = subprocess.run([*command[:3], "lint", "nowhere.json"], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("course lint: nowhere.json")
