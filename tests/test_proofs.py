"""Shipped measurements belong to the code that is here, and say what was reached."""

import importlib.util
import json
from pathlib import Path

import pytest

from course_lib.errors import CourseError

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("proof_record", ROOT / "benchmarks" / "proof_record.py")
proof_record = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(proof_record)

RECORDS = [p for p in sorted((ROOT / "benchmarks" / "results").glob("*.json")) if "covers" in json.loads(p.read_text())]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_shipped_proof_is_not_stale(path):
    assert not proof_record.is_stale(path), f"{path.name} covers code that has changed: run `make prove`"


def test_a_changed_file_makes_a_proof_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(proof_record, "ROOT", tmp_path)
    monkeypatch.setattr(proof_record, "RESULTS", tmp_path)
    (tmp_path / "code.py").write_text("x = 1\n")
    code = proof_record.covered_hash(["*.py"])
    path = proof_record.write_record("proof", covers=["*.py"], code=code, command="make prove", results={})
    assert not proof_record.is_stale(path)
    (tmp_path / "code.py").write_text("x = 2\n")
    assert proof_record.is_stale(path)
    with pytest.raises(CourseError, match="changed while it ran"):
        proof_record.write_record("proof", covers=["*.py"], code=code, command="make prove", results={})


def test_video_text_holds_on_three_seeds():
    seeds = json.loads((ROOT / "benchmarks" / "results" / "video_text.json").read_text())["seeds"]
    assert len({record["seed"] for record in seeds}) == 3
    for record in seeds:
        assert record["held_out_windows"] >= 100
        assert record["base_parse_rate"] >= 0.95
        assert record["after"] >= max(0.75, record["best_constant"] + 0.30)
        assert max(record["shuffled"], record["blank"]) <= record["best_constant"] + 0.05


def test_the_readme_shows_what_was_measured():
    seeds = json.loads((ROOT / "benchmarks" / "results" / "video_text.json").read_text())["seeds"]
    readme = (ROOT / "README.md").read_text()
    for record in seeds:
        iou = [f"{record[name]:.2f}" for name in ("best_constant", "shuffled", "blank")]
        row = [str(record["seed"]), f"{record['before']:.2f}", f"**{record['after']:.2f}**", *iou]
        assert f"| {' | '.join(row)} |" in readme
    assert f"on {seeds[0]['held_out_windows']} held-out windows" in readme
