"""One line of a check: what was found, how bad it is, what to do; and the verdict over many."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["OK", "WARN", "FAIL"]
_ORDER: tuple[Level, ...] = ("OK", "WARN", "FAIL")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What one check found. `fix` is empty when nothing needs doing."""

    level: Level
    name: str
    message: str
    fix: str = ""


def ok(name: str, message: str) -> Line:
    return Line(level="OK", name=name, message=message)


def warn(name: str, message: str, fix: str) -> Line:
    return Line(level="WARN", name=name, message=message, fix=fix)


def fail(name: str, message: str, fix: str) -> Line:
    return Line(level="FAIL", name=name, message=message, fix=fix)


def verdict(lines: Iterable[Line]) -> Level:
    """The worst level among `lines`; OK when there are none."""
    return max((line.level for line in lines), key=_ORDER.index, default="OK")


def as_record(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Plain JSON types, in order."""
    return [{"level": i.level, "name": i.name, "message": i.message, "fix": i.fix} for i in lines]


def as_text(lines: Iterable[Line]) -> str:
    """One '[LEVEL] name: message' per line, its remedy indented below."""
    shown = []
    for line in lines:
        shown.append(f"{f'[{line.level}]':<7}{line.name}: {line.message}")
        if line.fix:
            shown.append(f"{'':7}-> {line.fix}")
    return "\n".join(shown)
