"""The one exception a person is meant to see.

Everything that a user can get wrong (a path, a key, a number, a missing tool) is raised as CourseError.
The command line prints it as one line and exits with its code; a notebook shows the same line.
"""

import difflib
from collections.abc import Iterable

FINDING = 1
"""Exit code: the command worked and found something that should stop you."""
USAGE = 2
"""Exit code: the command could not do what was asked (bad input, missing file, wrong usage)."""


class CourseError(Exception):
    """What is wrong, where, and what to do about it, in one line.

    Args:
        what: the fact, with the offending value quoted.
        where: file, key or argument, when there is one.
        fix: what the reader can do now.
        exit_code: FINDING (1) or USAGE (2).
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "", exit_code: int = USAGE) -> None:
        self.what, self.where, self.fix, self.exit_code = what, where, fix, exit_code
        super().__init__(self.line())

    def line(self) -> str:
        place = f"{self.where}: " if self.where else ""
        remedy = f". {self.fix}" if self.fix else ""
        return " ".join(f"{place}{self.what}{remedy}".split())


def nearest(name: str, known: Iterable[str], count: int = 4) -> list[str]:
    """Up to `count` known names that look like `name`, best first (difflib's ratio)."""
    return difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A fix line for an unknown name: the nearest names, or all of them when none is near."""
    known = sorted(known)
    close = nearest(name, known)
    if close:
        return "Nearest: " + ", ".join(close)
    return "Known: " + ", ".join(known)
