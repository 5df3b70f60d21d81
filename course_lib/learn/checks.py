"""Checked exercises: which case failed, what was got and expected, and which misconception it looks like."""

import copy
import inspect
import math
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.learn import progress
from course_lib.learn.cards import Card, show
from course_lib.learn.exercise import Exercise, exercise
from course_lib.learn.quantities import argument, say, short

UNIT_SLIPS = (
    (1 / 1e9, "Your number looks like GB (10⁹ bytes); the check wants bytes."),
    (1 / 2**30, "Your number looks like GiB (2³⁰ bytes); the check wants bytes."),
    (1 / 1e6, "Your number looks like MB (10⁶ bytes); the check wants bytes."),
    (1 / 2**20, "Your number looks like MiB (2²⁰ bytes); the check wants bytes."),
    (2**30 / 1e9, "You mixed GB and GiB: a GiB is 7.4 % more than a GB."),
    (1e9 / 2**30, "You mixed GB and GiB: a GiB is 7.4 % more than a GB."),
    (8, "Your number is 8 times too large: bits, where bytes are asked for?"),
)
"""Factor between a slipped unit and bytes, and what to say. Tried only when no misconception fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What checking one answer found. `case` is the first that failed."""

    name: str
    passed: bool
    headline: str
    lines: tuple[str, ...] = ()
    case: int | None = None
    misconception: str = ""


def examine(task: Exercise, answer: Any) -> Outcome:
    """Run `answer` against the cases of `task`; show nothing and record nothing."""
    if answer is ... or answer is None:
        return _failed(task, f"{task.name}: nothing there yet", ["Replace the three dots by your answer."])
    if task.is_value:
        if callable(answer):
            return _failed(task, f"{task.name}: got a function", ["This exercise wants a value: call your function."])
        results: list[Any] = [answer]
    else:
        if not callable(answer):
            line = f"Pass the function itself: check({task.name!r}, {task.name}), without brackets after its name."
            return _failed(task, f"{task.name}: got {answer!r}, which is not a function", [line])
        results = []
        for index, case in enumerate(task.cases):
            try:
                results.append(answer(**copy.deepcopy(dict(case))))
            except Exception as error:  # noqa: BLE001 - whatever the learner's code raises is the finding
                return _raised(task, index, error)
    expected = [task.solution(**case) for case in task.cases]
    for index, (got, right) in enumerate(zip(results, expected, strict=True)):
        if not same(got, right, task.relative_tolerance):
            return _wrong(task, index, results, expected)
    count = "right" if task.is_value else f"right in all {len(task.cases)} cases"
    return Outcome(name=task.name, passed=True, headline=f"{task.name}: {count}")


def same(got: Any, right: Any, relative_tolerance: float) -> bool:
    """Equal in what matters: numbers within the tolerance, text without case, sequences and mappings by item."""
    if isinstance(right, bool) or isinstance(got, bool):
        return isinstance(got, bool) and isinstance(right, bool) and got == right
    if isinstance(right, int | float):
        try:
            # Covers numpy and torch scalars too.
            return math.isclose(float(got), right, rel_tol=relative_tolerance, abs_tol=0.0)
        except (TypeError, ValueError):
            return False
    if isinstance(right, str):
        return isinstance(got, str) and got.strip().casefold() == right.strip().casefold()
    if isinstance(right, Mapping):
        return (
            isinstance(got, Mapping)
            and set(got) == set(right)
            and all(same(got[key], right[key], relative_tolerance) for key in right)
        )
    if isinstance(right, Sequence):
        try:
            items = list(got)
        except TypeError:
            return False
        return len(items) == len(right) and all(
            same(a, b, relative_tolerance) for a, b in zip(items, right, strict=True)
        )
    return bool(got == right)


def recognise(task: Exercise, index: int, results: Sequence[Any], expected: Sequence[Any]) -> str:
    """What to say about wrong `results`: the misconception that gives this wrong value and fits the most cases."""
    best, best_fits = "", 0
    for known in task.misconceptions:
        fits = 0
        for number, case in enumerate(task.cases):
            try:
                value = known.formula(**case)
            except ArithmeticError:
                continue
            if same(results[number], value, task.relative_tolerance):
                fits += 1
            elif number == index:
                fits = -len(task.cases)
        if fits > best_fits:
            best, best_fits = known.says.format(**{key: argument(v) for key, v in task.cases[index].items()}), fits
    if best or task.unit != "bytes":
        return best
    for factor, says in UNIT_SLIPS:
        if all(same(got, right * factor, 1e-3) for got, right in zip(results, expected, strict=True)):
            return says
    return ""


def check(name: str, answer: Any) -> None:
    """Check your function or value against the exercise `name`, say what is wrong, and keep the result."""
    task = exercise(name)
    outcome = examine(task, answer)
    with progress.changing() as record:
        entry = progress.exercise_entry(record, name)
        entry["attempts"] += 1
        if outcome.passed and not entry["passed"]:
            entry |= {"passed": True, "passed_at": progress.now()}
    facts = {"exercise": name, "passed": outcome.passed, "case": outcome.case}
    kind = "good" if outcome.passed else "bad"
    show(Card(kind=kind, headline=outcome.headline, lines=outcome.lines, facts=facts))


def hint(name: str) -> None:
    """Show the first hint of an exercise; called again, the second beside it."""
    task = exercise(name)
    with progress.changing() as record:
        entry = progress.exercise_entry(record, name)
        entry["hints"] = level = min(entry["hints"] + 1, len(task.hints))
    lines = [f"Hint {number}: {text}" for number, text in enumerate(task.hints[:level], start=1)]
    lines += [f"More: hint({name!r}) again." if level < len(task.hints) else f"The solution: reveal({name!r})."]
    show(Card(kind="note", headline=task.task, lines=lines, facts={"hint": name, "level": level}))


def reveal(name: str) -> None:
    """Show the solution of an exercise and why it is so."""
    task = exercise(name)
    with progress.changing() as record:
        progress.exercise_entry(record, name)["revealed"] = True
    source = textwrap.dedent(inspect.getsource(task.solution))
    show(Card(kind="note", headline=f"{name}: a solution", lines=[task.why], code=source, facts={"reveal": name}))


def call(task: Exercise, index: int) -> str:
    """The call of one case as a person would type it; the bare name for a value."""
    if task.is_value:
        return task.name
    return f"{task.name}({', '.join(f'{key}={argument(value)}' for key, value in task.cases[index].items())})"


def _wrong(task: Exercise, index: int, results: Sequence[Any], expected: Sequence[Any]) -> Outcome:
    got, right = results[index], expected[index]
    if got is None or got is ...:
        line = "Your function ends without `return`, or still has the three dots."
        return _failed(task, f"{call(task, index)}: returned nothing", [line], case=index)
    says = recognise(task, index, results, expected)
    if task.is_value:
        # One case only: to print what was expected would be to solve it.
        headline = f"{task.name}: {say(got, task.unit)} is not it{_too(got, right)}"
    else:
        forms = (short(got, task.unit), short(right, task.unit))
        mine, theirs = forms if forms[0] != forms[1] else (say(got, task.unit), say(right, task.unit))
        headline = f"{call(task, index)}: got {mine}, expected {theirs}"
    return _failed(task, headline, [says] if says else [], case=index, misconception=says)


def _too(got: Any, right: Any) -> str:
    if any(isinstance(x, bool) or not isinstance(x, int | float) for x in (got, right)):
        return ""
    return " (too small)" if got < right else " (too large)"


def _raised(task: Exercise, index: int, error: Exception) -> Outcome:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f" in line {frame.lineno}: {frame.line}" if frame.line and "checks.py" not in frame.filename else ""
    message = f"{type(error).__name__}: {error}"
    remedies = [known.remedy for known in task.helps if message.startswith(known.error)]
    if not remedies and isinstance(error, TypeError) and not where:
        remedies = [f"The function must take: {', '.join(task.cases[index])}."]
    return _failed(task, f"{call(task, index)}: {message}{where}", remedies, case=index)


def _failed(
    task: Exercise, headline: str, lines: Sequence[str], *, case: int | None = None, misconception: str = ""
) -> Outcome:
    ways = f'hint("{task.name}")  ·  reveal("{task.name}")'
    return Outcome(
        name=task.name,
        passed=False,
        headline=headline,
        lines=(*lines, ways),
        case=case,
        misconception=misconception,
    )
