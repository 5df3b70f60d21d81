"""Every case under tests/data/logs gives its verdict, and no healthy log gives any.

`NAME.expect.json` says what must come out; `settings` in it are what --settings passes. The files under healthy/
named hf_trainer_*, state_* and course_run, and the cases named real_*, come from real runs; the others follow their
program's format.
"""

import json
from pathlib import Path

import pytest

from course_lib.doctor.autopsy.diagnose import diagnose

LOGS = Path(__file__).parents[1] / "data" / "logs"
EXACT = ("verdict", "phase", "cause", "ranks", "at_steps")
CASES = sorted(path.name.removesuffix(".expect.json") for path in LOGS.glob("*.expect.json"))
HEALTHY = sorted(path.name for path in (LOGS / "healthy").iterdir())


def _log_of(name: str) -> Path:
    return next(path for path in LOGS.glob(f"{name}.*") if not path.name.endswith(".expect.json"))


@pytest.mark.parametrize("name", CASES)
def test_a_case_gives_its_verdict(name):
    expected = json.loads((LOGS / f"{name}.expect.json").read_text())
    record = diagnose([_log_of(name)], expected.get("settings"))
    assert {key: record[key] for key in EXACT if key in expected} == {k: expected[k] for k in EXACT if k in expected}
    for key in ("seconds_per_step", "eta_seconds"):
        if key in expected:
            assert record[key] == pytest.approx(expected[key], rel=0.01)
    for key, value in expected.get("numbers", {}).items():
        assert record["numbers"][key] == pytest.approx(value, rel=0.005)
    said = " ".join(record["evidence"] + record["advice"]).lower()
    assert [word for word in expected.get("mentions", []) if word.lower() not in said] == []


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_raises_no_alarm(name):
    record = diagnose([LOGS / "healthy" / name])
    assert (record["verdict"], record["also"]) == ("healthy", [])


def test_there_are_enough_healthy_logs_to_mean_something():
    assert len(HEALTHY) >= 30
