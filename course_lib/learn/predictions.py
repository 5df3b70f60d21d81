"""Predict, run, compare: the learner's number is kept first and shown beside the real ones afterwards."""

import math

from course_lib.errors import CourseError, nearest
from course_lib.learn import progress
from course_lib.learn.cards import Card, show
from course_lib.learn.quantities import agreement, number, ratio, say

ASK = "Write your guess in place of the three dots and run the cell again. A wrong guess teaches more than none."


def predict(name: str, value: object = ..., *, unit: str = "") -> None:
    """Keep a number under `name` before the answer is known.

    Args:
        name: what `compare` will ask for. value: your number; `...` means you have not decided.
        unit: shown with every number of this comparison.

    After the comparison the first guess stays: that is the one worth looking back at.
    Raises CourseError when `value` is not a finite number.
    """
    if value is ... or value is None:
        show(Card(kind="ask", headline=f"No number yet for {name!r}.", lines=[ASK], facts={"prediction": name}))
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise CourseError(f"a prediction is one number, got {value!r}", where=f"predict({name!r}, …)")
    with progress.changing() as record:
        old = record["predictions"].get(name)
        if old and old.get("compared_at"):
            kept = old["value"]
        else:
            kept = value
            record["predictions"][name] = {"value": value, "unit": unit, "predicted_at": progress.now()}
    facts = {"prediction": name, "value": kept}
    if kept == value:
        show(Card(kind="note", headline=f"Your prediction is kept: {say(value, unit)}.", facts=facts))
    else:
        line = f"You have seen the answer since, so your first prediction stays: {say(kept, unit)}."
        show(Card(kind="note", headline=line, facts=facts))


def compare(
    name: str, *, computed: float | None = None, checked: float | None = None, measured: float | None = None
) -> None:
    """Show your prediction beside what was computed, and asked of the real library or measured.

    Args:
        name: as given to `predict`.
        computed: from our formula. checked: asked of the real library. measured: counted or timed on a machine.

    Without a prediction nothing is given away: the card asks for one. Raises CourseError without any number.
    """
    seen = {"computed": computed, "checked": checked, "measured": measured}
    seen = {kind: value for kind, value in seen.items() if value is not None}
    if not seen:
        raise CourseError("compare needs computed=, checked= or measured=", where=f"compare({name!r})")
    entry = progress.load()["predictions"].get(name)
    if entry is None:
        show(_no_prediction(name))
        return
    with progress.changing() as record:
        record["predictions"].setdefault(name, entry).setdefault("compared_at", progress.now())
        record["predictions"][name]["seen"] = seen
    show(comparison(name, entry["value"], entry.get("unit", ""), seen))


def comparison(name: str, yours: float, unit: str, seen: dict[str, float]) -> Card:
    """The card that `compare` shows; the most real of the numbers is the one the guess is held against."""
    truth_name = next(kind for kind in ("measured", "checked", "computed") if kind in seen)
    lines = [ratio(yours, seen[truth_name])]
    lines += [
        agreement(seen["computed"], seen[kind], kind)
        for kind in ("checked", "measured")
        if len(seen) > 1 and kind in seen and "computed" in seen
    ]
    rows = [("you predicted", say(yours, unit))] + [(kind, say(value, unit)) for kind, value in seen.items()]
    facts = {"comparison": name, "predicted": yours, **seen}
    return Card(
        kind="note", headline=name.replace("_", " "), columns=("", "value"), rows=rows, lines=lines, facts=facts
    )


def _no_prediction(name: str) -> Card:
    made = progress.load()["predictions"]
    close = nearest(name, made, count=1)
    also = [f"There is one under {close[0]!r} ({number(made[close[0]]['value'])}): is that it?"] if close else []
    ask = f"Go back to the cell with predict({name!r}, …), write your number, run it, then run this cell again."
    headline = "First your prediction, please: the answer waits."
    return Card(kind="ask", headline=headline, lines=[ask, *also], facts={"comparison": name, "waiting": True})
