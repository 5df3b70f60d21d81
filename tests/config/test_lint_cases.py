"""Cases with a known answer: expected findings at their least level, levels that must not appear."""

import json
from pathlib import Path

import pytest
from clean_configs import RAW, TRAINER

from course_lib.config.findings import LEVELS
from course_lib.config.lint import lint
from course_lib.config.lint_request import from_file

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests" / "data" / "ds_configs").glob("*.json"))
RUNS = sorted((ROOT / "examples").glob("**/run*.yaml"))
SHIPPED = sorted((ROOT / "examples").glob("**/ds_config*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_a_case_gets_the_findings_it_should_and_no_forbidden_level(path):
    case = json.loads(path.read_text())
    findings = lint(
        case["ds_config"],
        framework=case["framework"],
        world_size=case["world_size"],
        training_arguments=case["training_arguments"],
        model=case["model"],
        lora=case["lora"],
    )
    for expected in case["expect"]:
        enough = LEVELS[: LEVELS.index(expected["level"]) + 1]
        assert any(f.key == expected["key"] and f.level in enough for f in findings), (expected, findings)
    assert not [f for f in findings if f.level in case["forbid_levels"]]


def test_there_are_cases():
    assert len(CASES) >= 14


@pytest.mark.parametrize("name", RAW)
def test_a_clean_raw_config_has_no_finding(name):
    assert lint(RAW[name], framework="raw", world_size=2) == []


@pytest.mark.parametrize("name", TRAINER)
@pytest.mark.parametrize("arguments", [None, {"max_grad_norm": 0.3, "bf16": True, "max_steps": 50, "warmup_steps": 5}])
def test_a_clean_trainer_config_has_no_finding(name, arguments):
    assert lint(TRAINER[name], framework="trainer", world_size=2, training_arguments=arguments) == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_config_we_ship_lints_clean(path):
    findings = lint(json.loads(path.read_text()), framework="trainer", world_size=2)
    assert [f for f in findings if f.level != "note"] == []


@pytest.mark.parametrize("path", RUNS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_run_config_we_ship_lints_clean_with_its_own_arguments(path):
    findings = from_file(path).examine().findings
    assert [f for f in findings if f.level != "note"] == []


def test_linting_changes_nothing():
    before = json.dumps(TRAINER["stage_3"])
    lint(TRAINER["stage_3"], framework="trainer", world_size=2)
    lint(TRAINER["stage_3"], framework="raw", world_size=2)
    assert json.dumps(TRAINER["stage_3"]) == before
