"""A memory report as a picture: one stacked bar per phase, a line for the card.

Parts have one fixed order, colour and hatch, so that two pictures can be compared and read without colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course_lib.units import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from course_lib.memory.report import MemoryReport

PARTS = (
    "weights",
    "adapters",
    "master_weights",
    "optimizer_states",
    "gradients",
    "zero_buffers",
    "gathered_parameters",
    "checkpoint_boundaries",
    "activations",
    "block_in_flight",
    "vision",
    "embeddings",
    "logits_and_loss",
    "optimizer_scratch",
    "workspace",
    "batch",
)
HATCHES = ("", "//", "\\\\", "..", "xx", "--", "++", "oo")
SMALL_SHARE = 0.01


def plot_report(
    report: MemoryReport, *, capacity_bytes: int | None = None, measured: dict[str, Any] | None = None
) -> Figure:
    """Stacked bars of each phase's peak in GiB.

    Args:
        capacity_bytes: drawn as a line (what the driver shows for the card).
        measured: the `measured` block of a case file: its peaks are drawn as dots on their phases.

    Returns: a matplotlib Figure; its table is `report.phases`. Parts below 1 % of the peak are drawn as one.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    phases = list(report.phases)
    peak = max(sum(parts.values()) for parts in report.phases.values())
    shown = [part for part in PARTS if any(report.phases[p].get(part, 0) > SMALL_SHARE * peak for p in phases)]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    base = [0.0] * len(phases)
    colours = colormaps["tab20"]
    for part in shown:
        heights = [report.phases[phase].get(part, 0) / GIB for phase in phases]
        index = PARTS.index(part)
        axes.bar(
            phases,
            heights,
            bottom=base,
            label=part.replace("_", " "),
            color=colours(index),
            hatch=HATCHES[index % len(HATCHES)],
            edgecolor="white",
        )
        base = [b + h for b, h in zip(base, heights, strict=True)]
    rest = [sum(nbytes for part, nbytes in report.phases[phase].items() if part not in shown) / GIB for phase in phases]
    axes.bar(phases, rest, bottom=base, label="smaller parts", color="lightgrey", edgecolor="white")
    if capacity_bytes is not None:
        axes.axhline(capacity_bytes / GIB, color="black", linestyle="--", label="card")
    if measured is not None:
        points = measured_peaks(measured)
        axes.plot(list(points), list(points.values()), "kD", label="measured peak", linestyle="none")
    axes.set_ylabel("GiB per GPU")
    axes.set_title(f"{report.case.name}: predicted peak of each phase")
    axes.legend(fontsize="small", ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def measured_peaks(measured: dict[str, Any]) -> dict[str, float]:
    """GiB by phase from a `measured` block; the forward peak is that of forward and loss together."""
    last = measured["steps"][-1]
    return {
        "load": measured["load"]["peak_allocated"],
        "init": measured["init"]["peak_allocated"],
        "loss": last["peak_through_forward"],
        "backward": last["peak_through_backward"],
    }
