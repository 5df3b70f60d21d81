"""From a path to lines: logs, JSONL, trainer_state.json, settings.json, and the weights' own headers.

Reads damaged and mixed text as far as it goes; what a line means is said in events.py.
"""

import json
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError

HEAD_BYTES = 16 * 1024**2
TAIL_BYTES = 112 * 1024**2
"""A log longer than both together is read at its beginning and its end: that is where causes stand."""
LONGEST_LINE = 4000
LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".jsonl")
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[@-_]")
RANK_IN_NAME = re.compile(r"(?:rank|worker|default|proc(?:ess)?|local_rank)[_.-]?(\d+)", re.IGNORECASE)
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
"""safetensors' own limit on its header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One text file: its name, the rank it belongs to when its name says so, its lines."""

    name: str
    lines: list[str]
    rank: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Remains:
    """All that a run left: texts, settings, trainer states, and damage found in weight files."""

    sources: list[Source]
    settings: dict[str, Any] = field(default_factory=dict)
    states: list[dict[str, Any]] = field(default_factory=list)
    damaged_files: list[str] = field(default_factory=list)
    """'path: what is wrong', one per file whose header and size disagree."""


def gather(paths: Iterable[Path]) -> Remains:
    """Read files and folders. Raises CourseError when a path is missing or cannot be read."""
    remains = Remains(sources=[])
    for path in map(Path, paths):
        if not path.exists():
            raise CourseError("there is no such file or folder", where=str(path))
        if not path.is_dir():
            _read_into(remains, path, name=path.name)
            continue
        for file in _files_of(path):
            _read_into(remains, file, name=str(file.relative_to(path)))
    return remains


def _files_of(folder: Path) -> list[Path]:
    """Logs and records of a run folder, hidden (half-written) entries left out, the newest trainer_state only."""
    found, states = [], []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if any(part.startswith(".") for part in inside) or len(inside) > 5 or not path.is_file():
            continue
        if path.name == "trainer_state.json":
            states.append(path)
        elif path.suffix in (*LOG_SUFFIXES, ".safetensors") or path.name in ("settings.json", "stdout", "stderr"):
            found.append(path)
    if states:
        found.append(max(states, key=lambda p: (_step_in_name(p.parent.name), p.stat().st_mtime)))
    return found


def _step_in_name(name: str) -> int:
    match = re.search(r"(\d+)$", name)
    # The state beside the checkpoints is written last, after the newest checkpoint.
    return int(match.group(1)) if match else 1 << 62


def _read_into(remains: Remains, file: Path, *, name: str) -> None:
    if file.suffix == ".safetensors":
        damage = safetensors_damage(file)
        if damage:
            remains.damaged_files.append(f"{name}: {damage}")
        return
    text = _read(file)
    if file.suffix == ".json":
        record = _json_or_none(text)
        if isinstance(record, dict) and "log_history" in record:
            remains.states.append(record)
            return
        if file.name == "settings.json":
            remains.settings.update(record if isinstance(record, dict) else {})
            return
    remains.sources.append(Source(name=name, rank=_rank_of(file), lines=split_lines(text)))


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            if size <= HEAD_BYTES + TAIL_BYTES:
                data = stream.read()
            else:
                head = stream.read(HEAD_BYTES)
                stream.seek(size - TAIL_BYTES)
                data = head + b"\n" + stream.read()
    except OSError as error:
        raise CourseError(f"cannot be read ({error.strerror or error})", where=str(file)) from error
    return data.decode("utf-8", errors="replace")


def split_lines(text: str) -> list[str]:
    """Lines without colours and NULs; every state of a carriage-return progress bar is a line of its own."""
    if "\x1b" in text:
        text = ANSI.sub("", text)
    text = text.replace("\x00", "").replace("\r", "\n")
    return [line[:LONGEST_LINE] for line in text.split("\n") if line.strip()]


def _rank_of(file: Path) -> int | None:
    match = RANK_IN_NAME.search(file.stem)
    if match:
        return int(match.group(1))
    # torchrun --log-dir: attempt_0/<local rank>/stderr.log
    if file.stem in ("stdout", "stderr") and file.parent.name.isdigit():
        return int(file.parent.name)
    return None


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def safetensors_damage(file: Path) -> str:
    """What is wrong with a safetensors file by its header alone; '' when header and size agree.

    Format: 8 bytes little-endian header length, a JSON header with data_offsets, then the data to the end.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            if len(start) < 8:
                return f"only {size} bytes, no header"
            (length,) = struct.unpack("<Q", start)
            if length > min(size - 8, MAX_SAFETENSORS_HEADER_BYTES):
                return f"header says {length} bytes, the file has {size}"
            header = json.loads(stream.read(length))
            tensors = {name: item for name, item in header.items() if name != "__metadata__"}
            end = max((item["data_offsets"][1] for item in tensors.values()), default=0)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "its header is not valid"
    if 8 + length + end != size:
        return f"the header promises {8 + length + end} bytes, the file has {size}"
    empty = [name for name, item in tensors.items() if 0 in item.get("shape", ())]
    if 2 * len(empty) > len(tensors):
        shape = tensors[empty[0]]["shape"]
        return f"{len(empty)} of {len(tensors)} tensors are empty, such as {empty[0]} of shape {shape}"
    return ""
