"""`course measure`: what it compares, what it keeps, and what it says without a GPU."""

import json
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.evaluate.measure import append_results, errors, measure_case
from course_lib.evaluate.measure_worker import engine_config
from course_lib.memory.case import read_case
from course_lib.memory.report import plan_case

CASE = Path(__file__).parents[1] / "data/memory/l8_z3_ckpt_4k.json"


def test_without_a_gpu_it_says_so(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CourseError, match="no CUDA GPU"):
        measure_case(CASE)


def test_an_error_is_predicted_over_measured_minus_one():
    case, measured = read_case(CASE)
    report = plan_case(case)
    found = errors(report, measured)
    assert abs(found["steady_peak_allocated"]) < 0.01
    doubled = json.loads(json.dumps(measured))
    doubled["steps"][-1]["peak_allocated"] *= 2
    assert errors(report, doubled)["steady_peak_allocated"] == pytest.approx(-0.5, abs=0.01)


def test_results_are_added_and_replaced_by_name(tmp_path):
    path = tmp_path / "results.json"
    for peak in (1.0, 2.0):
        append_results([{"name": "a", "case": {}, "measured": {"peak": peak}, "predicted": {}}], path)
    append_results([{"name": "b", "case": {}, "measured": {}}], path)
    held = json.loads(path.read_text())
    assert held["label"] == "measured"
    assert [(c["name"], c["measured"].get("peak")) for c in held["cases"]] == [("a", 2.0), ("b", None)]


def test_the_run_uses_the_cases_batch_and_torchs_adam():
    config = engine_config(read_case(CASE)[0])
    assert config["train_micro_batch_size_per_gpu"] == 1
    assert config["optimizer"]["params"]["torch_adam"] is True
    assert config["zero_optimization"]["stage"] == 3
