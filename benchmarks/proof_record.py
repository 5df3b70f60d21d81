"""A proof's record: what was measured, on what, and a hash of the code it covers, so that a stale one is rejected."""

import os
import platform
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.files import read_json, write_json
from course_lib.train.provenance import environment_record, files_hash

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def covered_hash(patterns: list[str]) -> str:
    """SHA-256 over the files that `patterns` (globs from the root) name. Raises ValueError for one that names none."""
    files: set[Path] = set()
    for pattern in patterns:
        found = {path for path in ROOT.glob(pattern) if path.is_file()}
        if not found:
            raise ValueError(f"{pattern} names no file")
        files |= found
    return files_hash(files, ROOT)


def write_record(name: str, *, covers: list[str], code: str, command: str, results: dict[str, Any]) -> Path:
    """Write benchmarks/results/NAME.json.

    Args:
        covers: globs of the files that the results depend on. code: their covered_hash when the proof began.

    Raises CourseError when one of them changed while the proof ran.
    """
    if covered_hash(covers) != code:
        raise CourseError("code that this proof covers changed while it ran", where=name, fix="Run `make prove` again")
    environment = environment_record()
    path = RESULTS / f"{name}.json"
    write_json(
        path,
        {
            "label": "measured",
            "command": command,
            "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()},
            "python": environment["python"],
            "versions": environment["versions"],
            "covers": covers,
            "covered_sha256": code,
            **results,
        },
    )
    return path


def is_stale(path: Path) -> bool:
    """Whether the code that a record covers has changed since it was written."""
    record = read_json(path)
    return covered_hash(record["covers"]) != record["covered_sha256"]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
