"""Figures of the notebooks: memory as stacked bars, and curves; always with a table and alt text.

One fixed order of the parts, a colour and a hatch for each, a capacity line. Colours differ in lightness between
neighbours and the hatches differ everywhere, so the figure survives a grey printer and eyes that see no red or green.
"""

import html
import io
from collections.abc import Mapping, Sequence

from course_lib.errors import CourseError, did_you_mean
from course_lib.learn.cards import Card, show
from course_lib.units import GB, GIB, KIB, MIB, gib, human_bytes

PARTS = {
    "weights": ("#1f3b73", ""),
    "adapters": ("#8fc1e3", "xx"),
    "gradients": ("#d95f02", "//"),
    "master weights": ("#fdd0a2", "\\\\"),
    "optimizer": ("#5e3c99", ".."),
    "activations": ("#a6dba0", "--"),
    "logits and loss": ("#1b7837", "||"),
    "buffers": ("#d9d9d9", "++"),
    "other": ("#737373", "oo"),
}
"""Part to colour and hatch, in the order in which every figure of the course stacks them."""

SVG = {"svg.fonttype": "none", "svg.hashsalt": "course", "hatch.linewidth": 0.8}
UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "GB": GB}


def memory_bars(
    title: str,
    bars: Mapping[str, Mapping[str, int]],
    *,
    capacity_bytes: int | None = None,
    capacity_label: str = "capacity",
    source: str = "",
) -> None:
    """Show stacked horizontal bars with their table and alt text.

    Args:
        title: what is compared. bars: label → {part: bytes}, parts from PARTS.
        capacity_bytes: where the line stands. source: measured | predicted | computed, and on what.
    """
    svg = bars_svg(title, bars, capacity_bytes=capacity_bytes, capacity_label=capacity_label)
    columns, rows = bars_table(bars)
    lines = [source] if source else []
    if capacity_bytes is not None:
        lines.append(f"{capacity_label}: {human_bytes(capacity_bytes)}.")
    show(Card(kind="note", headline=title, columns=columns, rows=rows, lines=lines, svg=svg))


def bars_table(bars: Mapping[str, Mapping[str, int]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the table under the figure: a row per part that occurs, and the total."""
    used = used_parts(bars)
    rows = [[part, *(human_bytes(bar.get(part, 0)) for bar in bars.values())] for part in used]
    return ["part", *bars], [*rows, ["total", *(human_bytes(sum(bar.values())) for bar in bars.values())]]


def used_parts(bars: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The parts that are above zero in some bar, in the fixed order. Raises CourseError for an unknown part."""
    for bar in bars.values():
        for part in bar:
            if part not in PARTS:
                raise CourseError(f"no part is called {part!r}", where="memory_bars", fix=did_you_mean(part, PARTS))
    return [part for part in PARTS if any(bar.get(part, 0) > 0 for bar in bars.values())]


def alt_text(title: str, bars: Mapping[str, Mapping[str, int]], capacity_bytes: int | None = None) -> str:
    """The figure in one sentence per bar, for those who hear it."""
    out = [f"Stacked bars: {title}."]
    for label, bar in bars.items():
        parts = ", ".join(f"{part} {human_bytes(bar[part])}" for part in used_parts(bars) if bar.get(part, 0) > 0)
        out.append(f"{label}: {human_bytes(sum(bar.values()))} ({parts}).")
    if capacity_bytes is not None:
        out.append(f"The line stands at {gib(capacity_bytes)}.")
    return " ".join(out)


def bars_svg(
    title: str,
    bars: Mapping[str, Mapping[str, int]],
    *,
    capacity_bytes: int | None = None,
    capacity_label: str = "capacity",
) -> str:
    """The figure as one <svg> element with role, label and a white ground (so that a dark theme can show it)."""
    import matplotlib
    from matplotlib.figure import Figure

    largest = max([sum(bar.values()) for bar in bars.values()] + [capacity_bytes or 0])
    unit = next((name for name in ("GiB", "MiB") if largest >= UNITS[name]), "KiB")
    with matplotlib.rc_context(SVG):
        height = max(1.3 + 0.5 * len(bars), 0.35 + 0.2 * len(used_parts(bars)))
        figure = Figure(figsize=(7.2, height), layout="constrained")
        axes = figure.add_subplot()
        for part in used_parts(bars):
            colour, hatch = PARTS[part]
            lefts = [sum(bar.get(p, 0) for p in list(PARTS)[: list(PARTS).index(part)]) for bar in bars.values()]
            widths = [bar.get(part, 0) / UNITS[unit] for bar in bars.values()]
            axes.barh(
                list(bars),
                widths,
                left=[left / UNITS[unit] for left in lefts],
                color=colour,
                hatch=hatch,
                edgecolor="black" if _light(colour) else "white",
                linewidth=0.6,
                height=0.62,
                label=part,
            )
        if capacity_bytes is not None:
            axes.axvline(capacity_bytes / UNITS[unit], color="black", linestyle="--", linewidth=1.5)
            axes.annotate(
                capacity_label,
                (capacity_bytes / UNITS[unit], 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-4, 3),
                textcoords="offset points",
                ha="right",
                fontsize=8,
            )
        axes.invert_yaxis()
        axes.set_xlim(0, largest / UNITS[unit] * 1.04 or 1)
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(
            loc="upper left", bbox_to_anchor=(1.01, 1.02), frameon=False, fontsize=8, handleheight=1.2, labelspacing=0.4
        )
        return _labelled(figure, alt_text(title, bars, capacity_bytes))


def _labelled(figure, label: str) -> str:
    """The figure as one <svg> element with role, label and a white ground, the same bytes for the same numbers."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    svg = buffer.getvalue()
    opening = f'<svg role="img" aria-label="{html.escape(label, quote=True)}" '
    return svg[svg.index("<svg") :].replace("<svg ", opening, 1)


def _light(colour: str) -> bool:
    return lightness(colour) > 0.55


def lightness(colour: str) -> float:
    """Relative luminance of '#rrggbb' as a grey printer would show it, 0 black to 1 white (Rec. 709 weights)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


DASHES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
"""Line and marker of the first, second, … curve: told apart without colour."""


def curves(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Show curves with a table of at most eight of their points and alt text.

    Args: series: name → (x, y) points, at most four curves of at least one point each.
    """
    rows = []
    for name, points in series.items():
        picked = sorted({round(i * (len(points) - 1) / 7) for i in range(8)})
        rows += [(name, f"{points[i][0]:g}", f"{points[i][1]:.4g}") for i in picked]
    svg = curves_svg(title, x_label, y_label, series)
    show(Card(kind="note", headline=title, columns=("curve", x_label, y_label), rows=rows, svg=svg))


def curves_svg(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """The curves as one labelled <svg> element."""
    import matplotlib
    from matplotlib.figure import Figure

    if not 1 <= len(series) <= len(DASHES) or not all(series.values()):
        raise CourseError(f"needs one to {len(DASHES)} curves with points, got {len(series)}", where="curves")
    with matplotlib.rc_context(SVG):
        figure = Figure(figsize=(7.2, 2.8), layout="constrained")
        axes = figure.add_subplot(xlabel=x_label, ylabel=y_label)
        for (line, marker), (name, points) in zip(DASHES, series.items(), strict=False):
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, line, marker=marker, markersize=4, markevery=max(1, len(xs) // 12), label=name)
        axes.spines[["top", "right"]].set_visible(False)
        if len(series) > 1:
            axes.legend(frameon=False, fontsize=8)
        said = "; ".join(
            f"{name} from {p[0][1]:.3g} at {x_label} {p[0][0]:g} to {p[-1][1]:.3g} at {p[-1][0]:g}"
            for name, p in series.items()
        )
        return _labelled(figure, f"Curves: {title}. {said}.")
