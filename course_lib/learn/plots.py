"""Memory as stacked bars: one fixed order, a colour and a hatch per part, a capacity line, and always a table.

Colours differ in lightness between neighbours and the hatches differ everywhere, so the figure survives a
grey printer and eyes that see no red or green.
"""

import html
import io
from collections.abc import Mapping

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
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "course", "hatch.linewidth": 0.8}):
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
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    svg = buffer.getvalue()
    label = html.escape(alt_text(title, bars, capacity_bytes), quote=True)
    return svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _light(colour: str) -> bool:
    return lightness(colour) > 0.55


def lightness(colour: str) -> float:
    """Relative luminance of '#rrggbb' as a grey printer would show it, 0 black to 1 white (Rec. 709 weights)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
