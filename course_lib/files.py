"""Files that are whole or not there: written beside their name, flushed, then renamed over it."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.units import human_bytes

MAX_TEXT_BYTES = 256 * 1024**2
"""Configs, annotations and journals are far below; what is above was named by mistake."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` when the block ends well.

    Rename within one folder is atomic (POSIX rename(2)), so a reader sees the old file or the new one.
    Raises CourseError when the disk is full or the folder cannot be written.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.tmp-", suffix=path.suffix)
        os.close(handle)
        # mkstemp makes the file private (0600); an ordinary file follows the umask.
        os.chmod(name, 0o666 & ~_umask())
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        raise CourseError(
            f"cannot write ({error.strerror or error})", where=str(path), fix="Free disk space or choose another folder"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; it takes the place of `path` when the block ends well.

    An older folder of that name is moved aside first and removed last, so that a finished one is never lost.
    Raises CourseError when the disk is full or the folder cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.tmp-"))
    except OSError as error:
        raise CourseError(f"cannot write ({error.strerror or error})", where=str(path)) from error
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        _take_place(temporary, path)
    except OSError as error:
        raise CourseError(
            f"cannot write ({error.strerror or error})", where=str(path), fix="Free disk space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _take_place(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`; what stood there goes, or comes back when the rename fails."""
    if not path.exists():
        new.rename(path)
        return
    # A new name each time: a killed process with this process's number may have left its own.
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old-"))
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, record: Any) -> None:
    """Write `record` as indented JSON with a final newline, whole or not at all."""
    write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def read_text(path: Path) -> str:
    """Text of a UTF-8 file. Raises CourseError when it is missing, no ordinary file, very large, or not text."""
    path = Path(path)
    # A device such as /dev/zero never ends; a file that is piped in (<(…)) has no size and is read.
    if path.is_char_device() or path.is_block_device():
        raise CourseError("is a device, not a file", where=str(path))
    if path.is_file() and path.stat().st_size > MAX_TEXT_BYTES:
        raise CourseError(f"is larger than {human_bytes(MAX_TEXT_BYTES)}, which no config is", where=str(path))
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CourseError("is not a UTF-8 text file", where=str(path)) from error
    except OSError as error:
        raise CourseError(f"cannot be read ({error.strerror or error})", where=str(path)) from error


def read_json(path: Path) -> Any:
    """The JSON value in a file. Raises CourseError that names the line where the syntax breaks."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise CourseError(f"is not valid JSON: {error.msg} in line {error.lineno}", where=str(path)) from error


def read_json_lines(path: Path) -> list[Any]:
    """The JSON values of a JSONL file, blank lines skipped. Raises CourseError that names the line."""
    records = []
    # Not splitlines(): it would also break inside a text that holds a U+2028.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise CourseError(f"is not valid JSON: {error.msg}", where=f"{path}:{number}") from error
    return records
