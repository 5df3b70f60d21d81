"""Who trained this, with what: written beside every adapter, and equal on all ranks or the run stops.

A run that came back with the old interpreter and the old loader is one of the practitioner's stories: the command
had started another Python. Not here: secrets of any kind (environment variables are never recorded).
"""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from course_lib.errors import FINDING, CourseError

PACKAGES = ("torch", "torchvision", "transformers", "deepspeed", "peft", "accelerate", "safetensors", "course-lib")


def file_hash(path: Path) -> str:
    """SHA-256 of a file's bytes, hex."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def files_hash(paths: Iterable[Path], root: Path) -> str:
    """SHA-256 over the names (relative to root) and contents of files, independent of their order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{Path(os.path.relpath(path, root)).as_posix()}\0{file_hash(path)}\n".encode())
    return digest.hexdigest()


def code_hash() -> str:
    """SHA-256 over course_lib's own source files: two runs with one hash ran the same code."""
    package = Path(__file__).parents[1]
    return files_hash(package.rglob("*.py"), package)


def git_revision(folder: Path) -> str | None:
    """Commit of the checkout that `folder` is in, with '+changes' when files differ; None outside a checkout."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def environment_record() -> dict[str, Any]:
    """Interpreter, versions and code of this process: what must be equal on every rank."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "interpreter": sys.executable,
        "python": platform.python_version(),
        "versions": versions,
        "code_sha256": code_hash(),
    }


def require_equal_on_all_ranks(records: list[dict[str, Any]]) -> None:
    """Raise CourseError naming the first rank and key in which the ranks' environments differ."""
    for rank, record in enumerate(records):
        for key, value in record.items():
            if value != records[0].get(key):
                raise CourseError(
                    f"rank {rank} has {key} {value!r}, rank 0 has {records[0].get(key)!r}",
                    where="provenance",
                    fix="Start every rank with the same interpreter and packages",
                    exit_code=FINDING,
                )
