"""What a run did, drawn: loss over steps, and seconds per step with the pauses marked."""

import math
from pathlib import Path

from course_lib.doctor.autopsy.events import Log
from course_lib.doctor.autopsy.rows import number
from course_lib.doctor.autopsy.timing import Timing
from course_lib.errors import CourseError
from course_lib.files import whole_file

FORMATS = (".svg", ".png", ".pdf")


def draw(log: Log, timing: Timing, path: Path, title: str) -> None:
    """Write the figure. Raises CourseError for another ending, or when the log has neither losses nor times."""
    if path.suffix not in FORMATS:
        raise CourseError(f"cannot draw into '{path.suffix}'", where=str(path), fix=f"One of: {', '.join(FORMATS)}")
    losses = {name: _losses(log, name) for name in ("loss", "eval_loss")}
    if not any(losses.values()) and not timing.intervals:
        raise CourseError("no losses and no times to draw", where=str(path), fix="Give the log with the training rows")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    for (name, points), style in zip(
        losses.items(), ({"marker": "."}, {"marker": "s", "linestyle": "--"}), strict=True
    ):
        if points:
            upper.plot(*zip(*points, strict=True), label=name, **style)
    upper.set(ylabel="loss", title=title)
    if any(losses.values()):
        upper.legend()
    _draw_pace(lower, timing)
    with whole_file(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:])


def _losses(log: Log, name: str) -> list[tuple[int, float]]:
    found = [(event.step, number(event.values.get(name))) for event in log.of("train", "eval")]
    return [(step, loss) for step, loss in found if step is not None and loss is not None and math.isfinite(loss)]


def _draw_pace(axes, timing: Timing) -> None:
    axes.set(xlabel="step", ylabel="seconds per step")
    if not timing.intervals:
        return
    axes.plot([i.last.step for i in timing.intervals], [i.pace for i in timing.intervals], marker=".", label="measured")
    axes.axhline(
        timing.seconds_per_step, linestyle=":", color="black", label=f"ordinary {timing.seconds_per_step:.3g} s"
    )
    stalled = [(s.interval.last.step, s.interval.pace) for s in timing.stalls]
    if stalled:
        axes.plot(*zip(*stalled, strict=True), marker="x", linestyle="none", color="black", label="pause")
    axes.legend()
