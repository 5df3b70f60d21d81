"""What a lesson declares about itself: its predictions and its exercises, with the mistakes people make.

One module per notebook (exercises/nb00.py …) holds a `LESSON`; everything else reads it from there.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from course_lib.errors import CourseError, did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Misconception:
    """A way to be wrong that has a formula, so that a wrong answer can be recognised by its value."""

    formula: Callable[..., Any]
    """Takes what the exercise takes and gives what a learner with this misconception gets."""
    says: str
    """What to tell that learner: the idea, not the answer. May name the case's arguments: '{ranks}'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Help:
    """`Help: I get <exact error>`, as a learner would look for it."""

    error: str
    """The start of Python's message, word for word."""
    remedy: str
    produced_by: Any
    """A wrong answer that really gets this error; a test checks it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exercise:
    """One checked exercise: a function to write, or (with one case without arguments) a value to find."""

    name: str
    task: str
    """One sentence, as in the notebook."""
    difficulty: int
    """1 to 3 dots."""
    minutes: int
    unit: str = ""
    solution: Callable[..., Any]
    """The right formula; its source is what `reveal` shows."""
    why: str
    """The derivation in a few sentences, shown with the solution."""
    cases: tuple[Mapping[str, Any], ...] = ({},)
    """Arguments by name, from the easy to the telling."""
    misconceptions: tuple[Misconception, ...]
    hints: tuple[str, str]
    helps: tuple[Help, ...]
    relative_tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if self.difficulty not in (1, 2, 3):
            raise ValueError(f"{self.name}: difficulty must be 1 to 3, got {self.difficulty}")
        if not self.cases:
            raise ValueError(f"{self.name}: an exercise without a case cannot fail")

    @property
    def is_value(self) -> bool:
        """True when the answer is a value and not a function."""
        return not any(self.cases)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What progress counts for one notebook."""

    number: str
    title: str
    predictions: tuple[str, ...]
    exercises: tuple[Exercise, ...]


@functools.cache
def lessons() -> tuple[Lesson, ...]:
    """The lessons of this course, by number: the LESSON of every module exercises/nb*.py."""
    package = importlib.import_module("course_lib.learn.exercises")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name.startswith("nb"))
    return tuple(importlib.import_module(f"{package.__name__}.{name}").LESSON for name in names)


def lesson(number: str) -> Lesson:
    """The lesson of one notebook. Raises CourseError that names the known numbers."""
    for found in lessons():
        if found.number == number:
            return found
    raise CourseError(f"no lesson {number!r}", fix="Known: " + ", ".join(found.number for found in lessons()))


def exercise(name: str) -> Exercise:
    """The exercise of that name. Raises CourseError with the nearest names."""
    known = {one.name: one for of_lesson in lessons() for one in of_lesson.exercises}
    if name not in known:
        raise CourseError(f"no exercise is called {name!r}", fix=did_you_mean(name, known))
    return known[name]
