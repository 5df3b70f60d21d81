"""Cases on the GPUs of this machine, each in a fresh process, beside what was predicted for them.

Not here: what happens inside the process (measure_worker.py), the prediction (memory/report.py).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from course_lib.errors import FINDING, CourseError
from course_lib.files import read_json, whole_file
from course_lib.memory.case import read_case
from course_lib.memory.report import MemoryReport, plan_case
from course_lib.units import GIB

LABEL = "measured"


def measure_case(path: Path, *, ranks: int = 1, steps: int = 3, timeout_seconds: int = 600) -> dict[str, Any]:
    """Run one case on `ranks` GPUs in fresh processes and put the prediction beside it.

    Returns: {"name", "case", "measured" (rank 0), "ranks" (each rank's), "predicted", "errors"}.
    Raises CourseError when there is no GPU, too few of them, or the run failed (its reason is quoted).
    """
    case, _ = read_case(path)
    _need_gpus(ranks)
    results = _run(path, ranks, steps, timeout_seconds)
    failed = [r for r in results if "measured" not in r]
    if failed:
        raise CourseError(f"the run failed: {failed[0].get('error', 'no result')}", where=str(path), exit_code=FINDING)
    report = plan_case(case)
    measured = results[0]["measured"]
    return {
        "name": path.stem,
        "label": LABEL,
        "case": results[0]["case"],
        "measured": measured,
        "ranks": [r["measured"] for r in results],
        "predicted": report.as_record(),
        "errors": errors(report, measured),
    }


def errors(report: MemoryReport, measured: dict[str, Any]) -> dict[str, float]:
    """Predicted divided by measured, minus one, for the steady peak, the whole run and reserved memory."""
    steps = measured["steps"]
    whole = max(
        [measured["load"]["peak_allocated"], measured["init"]["peak_allocated"], *(s["peak_allocated"] for s in steps)]
    )
    return {
        "steady_peak_allocated": report.steady_peak_allocated_bytes / (steps[-1]["peak_allocated"] * GIB) - 1,
        "peak_allocated": report.peak_allocated_bytes / (whole * GIB) - 1,
        "peak_reserved": report.peak_reserved_bytes / (max(s["peak_reserved"] for s in steps) * GIB) - 1,
    }


def append_results(records: list[dict[str, Any]], path: Path) -> None:
    """Add records to a results file ({"label", "cases": […]}); a case of the same name is replaced."""
    held = read_json(path) if path.exists() else {"label": LABEL, "cases": []}
    if not isinstance(held, dict) or not isinstance(held.get("cases"), list):
        raise CourseError("is not a results file: 'cases' is missing", where=str(path))
    names = {record["name"] for record in records}
    held["cases"] = [c for c in held["cases"] if c.get("name") not in names]
    held["cases"] += [{k: record[k] for k in ("name", "case", "measured")} for record in records]
    held["cases"].sort(key=lambda c: c["name"])
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(held, indent=0) + "\n", encoding="utf-8")


def _need_gpus(ranks: int) -> None:
    import torch

    if ranks < 1:
        raise CourseError(f"ranks must be above zero, got {ranks}")
    if not torch.cuda.is_available():
        raise CourseError("no CUDA GPU here", fix="Run this on a machine with one; course plan --case needs none")
    if torch.cuda.device_count() < ranks:
        raise CourseError(f"{ranks} GPUs asked for, {torch.cuda.device_count()} are here")


def _run(path: Path, ranks: int, steps: int, timeout_seconds: int) -> list[dict[str, Any]]:
    """Start one process per rank, wait for all, and read what each wrote."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [
            sys.executable,
            "-m",
            "course_lib.evaluate.measure_worker",
            str(path),
            str(out),
            "--steps",
            str(steps),
        ]
        port = str(_free_port())
        processes = []
        for rank in range(ranks):
            env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            processes.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        try:
            for process in processes:
                process.wait(timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise CourseError(f"no result after {timeout_seconds} s", where=str(path), exit_code=FINDING) from error
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        found = sorted(Path(folder).glob("result.rank*.json"), key=lambda p: int(p.stem.removeprefix("result.rank")))
        if len(found) < ranks:
            codes = ", ".join(str(process.returncode) for process in processes)
            raise CourseError(f"a rank died (exit codes {codes})", where=str(path), exit_code=FINDING)
        return [json.loads(p.read_text(encoding="utf-8")) for p in found]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
