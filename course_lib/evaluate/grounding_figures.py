"""Figures of grounding as inline SVG: scores with their intervals, and the bars of truth and answers of some clips.

Each comes with its text alternative, and is told apart by hatch as well as by colour.
"""

import html
import io
from collections.abc import Sequence
from typing import Any

from course_lib.data.intervals import Interval, format_intervals
from course_lib.evaluate.grounding import GroundingScores

STYLE = {
    "truth": {"facecolor": "#333333", "edgecolor": "#333333", "hatch": ""},
    "before": {"facecolor": "#ffffff", "edgecolor": "#4477aa", "hatch": "||||"},
    "after": {"facecolor": "#ffffff", "edgecolor": "#cc6600", "hatch": "////"},
}
"""Fixed order, colour and hatch of the three kinds of bar."""
_SCORE_HATCHES = ("||||", "////", "", "xxxx", "----")


def scores_figure(scores: Sequence[tuple[str, GroundingScores]]) -> tuple[str, str]:
    """Mean IoU of each set of answers with its 95 % interval. Returns (svg, caption)."""
    figure, axes = _figure(height_inches=0.5 + 0.45 * len(scores))
    for row, (_, score) in enumerate(scores):
        hatch = _SCORE_HATCHES[row % len(_SCORE_HATCHES)]
        axes.barh(row, score.mean_iou, height=0.62, facecolor="#dddddd", edgecolor="#333333", hatch=hatch)
        axes.plot([score.low_iou, score.high_iou], [row, row], color="black", linewidth=2, marker="|", markersize=9)
        axes.text(1.02, row, f"{score.mean_iou:.2f}", va="center", transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(scores)), [name for name, _ in scores])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("mean temporal IoU (line: 95 % interval)")
    said = "; ".join(f"{name} {s.mean_iou:.2f} ({s.low_iou:.2f} to {s.high_iou:.2f})" for name, s in scores)
    return _svg(figure, f"Bar chart of mean temporal IoU with 95 % intervals: {said}."), (
        "Mean temporal IoU on held-out clips. The table below has the numbers."
    )


def clips_figure(rows: Sequence[Any]) -> tuple[str, str]:
    """Truth, answer before and answer after as bars over the seconds of each window. Returns (svg, caption).

    Args: rows: ClipRow records, at least one.
    """
    from matplotlib.patches import Patch

    figure, axes = _figure(height_inches=0.9 + 0.62 * len(rows))
    said = []
    for number, row in enumerate(rows):
        bars = {"truth": row.truth, "before": _usable(row.before), "after": _usable(row.after)}
        for line, (kind, intervals) in enumerate(bars.items()):
            spans = [(start, end - start) for start, end in intervals]
            axes.broken_barh(spans, (number + 0.27 * line, 0.22), linewidth=0.8, **STYLE[kind])
        said.append(
            f"{_name(row)}: truth {format_intervals(row.truth)}, before {_said(row.before)}, after {_said(row.after)}"
        )
    axes.set_yticks([number + 0.38 for number in range(len(rows))], [_name(row) for row in rows])
    axes.set_ylim(len(rows), -0.15)
    axes.set_xlim(0, max(row.seconds for row in rows))
    axes.set_xlabel("seconds from the start of the window")
    handles = [Patch(label=kind, **style) for kind, style in STYLE.items()]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    caption = (
        f"The first {len(rows)} held-out windows: truth (solid), answer before (upright lines), "
        "answer after (slanted lines). An answer that cannot be read has no bar. All answers are in the table below."
    )
    return _svg(figure, f"Bars over seconds. {'; '.join(said)}."), caption


def _name(row: Any) -> str:
    return f"{row.clip} +{row.start_seconds:g} s"


def _usable(answer: Any) -> tuple[Interval, ...]:
    return answer.intervals if answer.status == "ok" else ()


def _said(answer: Any) -> str:
    return format_intervals(answer.intervals) if answer.status == "ok" else "no answer that can be read"


def _figure(height_inches: float) -> tuple[Any, Any]:
    # Figure itself, not pyplot: nothing global is touched, and no window system is looked for.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, height_inches), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any, alt: str) -> str:
    """The figure as an <svg> element that a screen reader reads as `alt`."""
    import matplotlib

    buffer = io.StringIO()
    # With a salt of its own, ids follow from what is drawn: the same figure gives the same text on every run.
    with matplotlib.rc_context({"svg.hashsalt": "course", "hatch.linewidth": 1.2}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    element = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    return element.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt, quote=True)}"', 1)
