"""What this learner has predicted and solved: one JSON file, written whole, never sent anywhere.

The file is `.course/progress.json` at the root of the checkout, or where COURSE_PROGRESS says.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.files import write_json

FORMAT = 1


def course_root() -> Path:
    """The checkout that holds this package, found by its notebooks/ folder; else the current folder."""
    checkout = Path(__file__).parents[2]
    return checkout if (checkout / "notebooks").is_dir() else Path.cwd()


def progress_path() -> Path:
    """COURSE_PROGRESS when it is set, else `.course/progress.json` in the checkout."""
    return Path(os.environ.get("COURSE_PROGRESS") or course_root() / ".course" / "progress.json")


def load() -> dict:
    """The record: {"format": 1, "predictions": {name: …}, "exercises": {name: …}}; empty when there is no file.

    A file that cannot be read as such a record is moved aside, never overwritten.
    """
    path = progress_path()
    empty = {"format": FORMAT, "predictions": {}, "exercises": {}}
    if not path.exists():
        return empty
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        tables = [record[name] for name in ("predictions", "exercises")]
        sound = record["format"] == FORMAT and all(
            isinstance(table, dict) and all(isinstance(entry, dict) for entry in table.values()) for table in tables
        )
    except OSError as error:
        raise CourseError(f"cannot be read ({error.strerror or error})", where=str(path)) from error
    except (ValueError, KeyError, TypeError):
        sound = False
    if sound:
        return record
    aside = path.with_name(f"{path.name}.unreadable-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    path.replace(aside)
    print(f"The progress file could not be read. It is kept as {aside}; a new one begins.")
    return empty


@contextlib.contextmanager
def changing() -> Iterator[dict]:
    """Yield the record to change; it is written when the block ends well. Two kernels at once take turns."""
    path = progress_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock").open("w")
    except OSError as error:
        raise CourseError(
            f"cannot write ({error.strerror or error})", where=str(path), fix="Set COURSE_PROGRESS to another file"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = load()
        yield record
        write_json(path, record)


def now() -> str:
    """The moment, UTC, to the second (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def exercise_entry(record: dict, name: str) -> dict:
    """The entry of one exercise in `record`, made when it is not there."""
    fresh = {"passed": False, "attempts": 0, "hints": 0, "revealed": False}
    entry = record["exercises"].setdefault(name, fresh)
    for key, value in fresh.items():
        entry.setdefault(key, value)
    return entry
