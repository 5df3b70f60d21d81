"""Notebook 20's cards: what a processor answered, what knobs do, and frames against detail at one price.

Numbers come from course_lib.tokens; sliders repeat the static figure for other choices and are never needed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.learn.cards import Card, in_notebook, show
from course_lib.learn.plots import SVG, _labelled
from course_lib.tokens.families import VideoModel
from course_lib.tokens.inverse import sharpest
from course_lib.tokens.judge import Answer, library_version
from course_lib.tokens.plan import Budget, TokenPlan, plan_clip

if TYPE_CHECKING:
    from course_lib.media.video import VideoInfo

OFFERS = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Frame counts on the curve of one price."""
TABLE = (8, 16, 32, 64, 128)
"""Those of them that the table under the figure shows."""
SIZES = ((640, 360), (640, 1152), (1920, 1080))
"""Width × height of the size slider."""
FLOOR = 4
"""Least tokens per frame that the sliders ask for, so that a small cap is a cap."""


def imagined_clip(*, height: int, width: int, seconds: float = 10.0, fps: float = 30.0) -> "VideoInfo":
    """A clip that has a size and a rate and no file: enough for every token count."""
    import numpy as np

    from course_lib.media.video import VideoInfo

    frames = round(seconds * fps)
    return VideoInfo(
        path=Path("imagined.mp4"), width=width, height=height, frames=frames, duration_seconds=seconds,
        average_fps=fps, rotation_degrees=0, has_audio=False, timestamps_seconds=np.arange(frames) / fps,
    )  # fmt: skip


def show_plans(headline: str, plans: Mapping[str, TokenPlan]) -> None:
    """A row per plan: frames, size, grid, tokens of a step, visual tokens, and all tokens with the text between."""
    rows = [(name, *_plan_row(plan)[:2], _times(plan.grid.thw), *_plan_row(plan)[2:]) for name, plan in plans.items()]
    columns = ("", "frames", "resized to", "grid t×h×w", "tokens a step", "visual tokens", "with time stamps")
    show(Card(kind="note", headline=headline, columns=columns, rows=rows, lines=["Computed; nothing was decoded."]))


def show_answers(headline: str, answers: Mapping[str, Answer]) -> None:
    """A row per question that was put to the real processor: the grid it made and its visual tokens."""
    rows = [(name, _times(one.thw), f"{one.visual_tokens:,}") for name, one in answers.items()]
    line = f"Asked of the processors of transformers {library_version()}, on tensors without memory."
    show(Card(kind="note", headline=headline, columns=("", "grid t×h×w", "visual tokens"), rows=rows, lines=[line]))


def show_knobs(models: Sequence[VideoModel], knobs: Sequence[str], routes: Sequence[str]) -> None:
    """What each knob does in each model, passed by each route: tried on the installed library, alone and in pairs."""
    from course_lib.tokens.knobs import judge_knob
    from course_lib.tokens.routes import Bench

    rows = {knob: [f"{knob}="] for knob in knobs}
    columns = ["setting"]
    for model in models:
        with Bench(model) as bench:
            for route in routes:
                columns.append(f"{model.family.title}, {route}")
                for knob in knobs:
                    rows[knob].append(judge_knob(bench, knob, route=route).words())
    line = f"Asked now, of transformers {library_version()}. All settings by all routes: docs/knobs.md."
    headline = "What these settings do, by the place where they are passed"
    show(Card(kind="note", headline=headline, columns=columns, rows=list(rows.values()), lines=[line]))


def show_budget(model: VideoModel, *, frames: int = 32, cap: int = 196, height: int = 1152, width: int = 640) -> None:
    """The static figure for one choice, and under it sliders for others where widgets work."""
    show(budget_card(model, frames=frames, cap=cap, height=height, width=width))
    if in_notebook():
        _show_sliders(model, frames=frames, cap=cap, size=(width, height))


def budget_card(model: VideoModel, *, frames: int, cap: int, height: int, width: int) -> Card:
    """What a choice costs, and what else its price would buy: figure and table."""
    clip = imagined_clip(height=height, width=width)
    chosen = plan_clip(clip, model, Budget(frames=frames, max_tokens_per_frame=cap, min_tokens_per_frame=FLOOR))
    found = [sharpest(clip, model, chosen.total_tokens, frames=count) for count in OFFERS]
    offers = [plan for plan in found if plan is not None]
    rows = [("your choice", *_plan_row(chosen))]
    rows += [("not dearer", *_plan_row(plan)) for plan in offers if plan.frames in TABLE and plan.frames != frames]
    return Card(
        kind="note",
        headline=f"{frames} frames of {width}×{height}, at most {cap} tokens a frame: {chosen.total_tokens:,} tokens",
        svg=tradeoff_svg(chosen, offers),
        columns=("", "frames", "resized to", "tokens a step", "visual tokens", "with time stamps"),
        rows=rows,
    )


def tradeoff_svg(chosen: TokenPlan, offers: Sequence[TokenPlan]) -> str:
    """Tokens of one step over frames, both in doublings: the choice, and what else costs no more."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    with matplotlib.rc_context(SVG):
        figure = Figure(figsize=(7.2, 3.2), layout="constrained")
        axes = figure.add_subplot(xlabel="frames of the clip", ylabel="tokens of one step (detail)")
        xs, ys = [plan.frames for plan in offers], [plan.grid.tokens_per_step for plan in offers]
        axes.plot(xs, ys, "-o", color="#1f3b73", markersize=4, label=f"costs at most {chosen.total_tokens:,} tokens")
        point = (chosen.frames, chosen.grid.tokens_per_step)
        axes.plot(*point, "D", color="#d95f02", markeredgecolor="black", markersize=9, label="your choice")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        for axis, values in ((axes.xaxis, [*xs, point[0]]), (axes.yaxis, [*ys, point[1]])):
            low, high = min(values), max(values)
            axis.set_major_locator(FixedLocator([2**n for n in range(14) if low / 2 <= 2**n <= high * 2]))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=9)
        said = ", ".join(f"{plan.frames} frames of {plan.grid.tokens_per_step}" for plan in offers)
        alt = f"Curve of one price, {chosen.total_tokens} tokens: {said} tokens a step. Your choice: {point[0]} frames "
        return _labelled(figure, f"{alt}of {point[1]} tokens a step.")


def _show_sliders(model: VideoModel, *, frames: int, cap: int, size: tuple[int, int]) -> None:
    """Three sliders over a copy of the card; a reader without widgets sees one line of text instead."""
    try:
        import ipywidgets as widgets
    except ImportError:
        return
    from IPython.display import display

    style = {"description_width": "9em"}
    count = widgets.SelectionSlider(options=OFFERS, value=frames, description="frames", style=style)
    limit = widgets.IntSlider(min=8, max=760, step=4, value=cap, description="cap, tokens a frame", style=style)
    names = [(f"{width}×{height}", (width, height)) for width, height in SIZES]
    picture = widgets.SelectionSlider(options=names, value=size, description="size of the clip", style=style)
    page = widgets.HTML()

    def draw(_change: object = None) -> None:
        width, height = picture.value
        page.value = budget_card(model, frames=count.value, cap=limit.value, height=height, width=width).html()

    for slider in (count, limit, picture):
        # One figure per choice, not one per pixel of the slider's way.
        slider.continuous_update = False
        slider.observe(draw, names="value")
    draw()
    bundle = widgets.VBox([count, limit, picture, page])._repr_mimebundle_()
    bundle["text/plain"] = "Here are three sliders where the notebook is live; the figure above needs none of them."
    display(bundle, raw=True)


def _plan_row(plan: TokenPlan) -> tuple[str, ...]:
    grid = plan.grid
    counts = (grid.tokens_per_step, plan.visual_tokens, plan.total_tokens)
    return (str(plan.frames), f"{grid.width}×{grid.height}", *(f"{count:,}" for count in counts))


def _times(thw: Sequence[int] | None) -> str:
    return "none" if thw is None else "×".join(map(str, thw))
