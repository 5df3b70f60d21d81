"""Notebook 21's cards: a window on its film, a sample as the model reads it, its labels, and who gets what.

Facts come from course_lib.data; this module only shows them. Colours repeat what a mark or a word says.
"""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from course_lib.data.coverage import Coverage
from course_lib.data.windows import Annotation, Window
from course_lib.learn.cards import Card, show
from course_lib.learn.plots import SVG, _labelled

GRADED = "background:#d9f0d3;color:#00441b;border-bottom:2px solid #1b7837;font-weight:700"
VISUAL = "background:#c6dbef;color:#08306b;border:1px solid #1f3b73;padding:0 .25em"
OTHER = "color:#595959"
"""Styles of the answer, of visual tokens, and of all other text; each with enough contrast on white."""
SAMPLERS = {
    "accelerate": "HF Trainer's sampler (accelerate)",
    "dispatch": "accelerate with dispatch_batches",
    "torch": "torch's DistributedSampler",
}
"""What the kinds of SamplerSettings are called outside of this course."""


def show_window(annotation: Annotation, window: Window) -> None:
    """The film's events, the window on them, and what is left of each in the window's own seconds."""
    rows = [(_span(event), _in_window(event, window)) for event in annotation.events]
    lines = [f"The answer that the model is trained to give: {window.answer}"]
    start, end = window.start_seconds, window.end_seconds
    headline = f"{window.video.name}, window from {start:g} to {end:g} s"
    columns = ("event, seconds of the film", "in the window's own seconds")
    svg = window_svg(annotation, window)
    show(Card(kind="note", headline=headline, svg=svg, columns=columns, rows=rows, lines=lines))


def window_svg(annotation: Annotation, window: Window) -> str:
    """Two time lines: the film with the window on it, and the window by itself."""
    import matplotlib
    from matplotlib.figure import Figure

    start, end = window.start_seconds, window.end_seconds
    with matplotlib.rc_context(SVG):
        figure = Figure(figsize=(7.2, 2.4), layout="constrained")
        film, own = figure.subplots(2, 1)
        film.axvspan(start, end, facecolor="#fdd0a2", edgecolor="black", linestyle="--", label="window")
        lines = ((film, annotation.events, annotation.duration_seconds), (own, window.events, window.seconds))
        for axes, events, right in lines:
            bars = [(begin, stop - begin) for begin, stop in events]
            axes.broken_barh(bars, (0.2, 0.6), facecolor="#8fc1e3", edgecolor="black", hatch="//", label="events")
            axes.set(xlim=(0, right), ylim=(0, 1), yticks=[])
            axes.spines[["top", "right", "left"]].set_visible(False)
        own.set_facecolor("#fff1e0")
        film.set_xlabel("seconds of the film")
        own.set_xlabel("seconds of the window: what the model sees and answers in")
        film.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8)
        said = ", ".join(map(_span, annotation.events))
        kept = ", ".join(map(_span, window.events)) or "none"
        return _labelled(
            figure, f"Events of the film at {said} s. In the window from {start:g} to {end:g} s: {kept} s."
        )


def show_sample(item: Mapping[str, Any], tokenizer: Any, video_token_id: int) -> None:
    """One built sample as coloured text, and its tokens by kind.

    Args:
        item: input_ids and labels (S,). video_token_id: the placeholder, shown as ▦.
    """
    ids, labels = item["input_ids"].tolist(), item["labels"].tolist()
    kinds = [_kind(token, label, video_token_id) for token, label in zip(ids, labels, strict=True)]
    text = _coloured(ids, kinds, tokenizer, video_token_id)
    names = {"visual": "▦ visual tokens, not graded", "other": "text, not graded", "graded": "answer, graded"}
    rows = [(words, str(kinds.count(kind))) for kind, words in names.items()] + [("all", str(len(kinds)))]
    show(Card(kind="note", headline="What the model reads", svg=text, columns=("tokens", "number"), rows=rows))


def show_labels(headline: str, ways: Mapping[str, Sequence[int]], item: Mapping[str, Any], **how: Any) -> None:
    """For each way to label one sample: how many tokens are graded, and what check_labels finds.

    Args:
        ways: name → labels (S,). how: what check_labels takes besides ids and labels (tokenizer, answer …).
    """
    from course_lib.data.labels import check_labels

    rows = []
    for name, labels in ways.items():
        found = check_labels(item["input_ids"], labels, **how)
        rows.append((name, _graded(labels), _said(found)))
    show(Card(kind="note", headline=headline, columns=("labels", "graded", "what the check says"), rows=rows))


def show_cuts(item: Mapping[str, Any], limits: Iterable[int], *, video_token_id: int, **how: Any) -> None:
    """What a cut from the end leaves of one sample: placeholders, graded tokens, and what check_labels finds."""
    from course_lib.data.labels import check_labels

    rows = []
    for limit in limits:
        ids, labels = item["input_ids"][:limit], item["labels"][:limit]
        found = check_labels(ids, labels, **how)
        placeholders = int((ids == video_token_id).sum())
        rows.append((str(limit), str(placeholders), _graded(labels), _said(found)))
    columns = ("limit", "visual placeholders", "graded", "what the check says")
    show(Card(kind="note", headline="Cut from the end, as truncation does it", columns=columns, rows=rows))


def show_coverage(coverage: Coverage, *, most_steps: int = 6) -> None:
    """Who gets which sample in which step, repeats marked, and what nobody gets."""
    seen: set[int] = set()
    rows = []
    for number, step in enumerate(coverage.steps[:most_steps]):
        cells = []
        for batch in step:
            cells.append(
                ", ".join(f"{sample} again" if sample in seen else str(sample) for sample in batch) or "nothing"
            )
            seen.update(batch)
        rows.append((f"step {number}", *cells))
    settings = coverage.settings
    name = f"{SAMPLERS[settings.kind]}{', drop_last' if settings.drop_last else ''}"
    lines = [coverage.describe()] + (["No step, so no rank gets anything."] if not coverage.steps else [])
    columns = ("", *(f"rank {rank}" for rank in range(settings.ranks)))
    show(Card(kind="note", headline=name, columns=columns, rows=rows, lines=lines))


def _coloured(ids: Sequence[int], kinds: Sequence[str], tokenizer: Any, video_token_id: int) -> str:
    """Runs of one kind as one <span>; a step begins a new line, so that the times stand under each other."""
    styles = {"graded": GRADED, "visual": VISUAL, "other": OTHER}
    after = html.escape("<|vision_end|>")
    spans, place = [], 0
    while place < len(ids):
        end = place
        while end < len(ids) and kinds[end] == kinds[place]:
            end += 1
        text = "▦" * (end - place) if kinds[place] == "visual" else tokenizer.decode(ids[place:end])
        escaped = html.escape(text).replace("\n", "<br>").replace(f"{after}&lt;", f"{after}<br>&lt;")
        spans.append(f'<span style="{styles[kinds[place]]}">{escaped}</span>')
        place = end
    return f'<div style="font-family:monospace;line-height:1.6;margin:.5em 0">{"".join(spans)}</div>'


def _kind(token: int, label: int, video_token_id: int) -> str:
    if label != -100:
        return "graded"
    return "visual" if token == video_token_id else "other"


def _said(findings: Iterable[Any]) -> str:
    return "; ".join(finding.what for finding in findings) or "nothing is wrong"


def _graded(labels: Iterable[int]) -> str:
    return str(sum(int(label) != -100 for label in labels))


def _span(interval: tuple[float, float]) -> str:
    return f"{interval[0]:g} to {interval[1]:g}"


def _in_window(event: tuple[float, float], window: Window) -> str:
    """What the window shows of one event, and whether an edge cuts it."""
    begin, end = event[0] - window.start_seconds, event[1] - window.start_seconds
    if end <= 0 or begin >= window.seconds:
        return "outside"
    cut = begin < 0 or end > window.seconds
    shown = _span((max(begin, 0.0), min(end, window.seconds)))
    return f"{shown} (cut at the edge)" if cut else shown
