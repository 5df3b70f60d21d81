"""The report of a run: one HTML page that needs nothing beside it, and the same facts as JSON.

Not here: the figures (grounding_figures.py) and the numbers themselves (grounding.py).
"""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from course_lib.data.intervals import Interval, ParsedAnswer, format_intervals
from course_lib.errors import CourseError
from course_lib.evaluate.grounding import CONTROLS, ConstantAnswer, GroundingScores, answer_iou, judge
from course_lib.evaluate.grounding_figures import clips_figure, scores_figure
from course_lib.files import write_json, write_text

NAMES = {
    "before": "before training",
    "after": "after training",
    "best_constant": "best constant answer",
    "shuffled": "after, frames of other clips",
    "blank": "after, blank frames",
}
CLIPS_IN_FIGURE = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipRow:
    """One held-out window: what is true, and what was answered before and after."""

    clip: str
    start_seconds: float
    seconds: float
    question: str
    truth: tuple[Interval, ...]
    before_text: str
    before: ParsedAnswer
    after_text: str
    after: ParsedAnswer

    def as_record(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "clip": self.clip,
            "start_seconds": self.start_seconds,
            "seconds": self.seconds,
            "question": self.question,
            "truth": format_intervals(self.truth),
            **{
                name: {"text": text, "status": answer.status, "iou": answer_iou(self.truth, answer)}
                for name, text, answer in (
                    ("before", self.before_text, self.before),
                    ("after", self.after_text, self.after),
                )
            },
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """Everything that the page shows. All of it was measured by this run unless a label says otherwise."""

    title: str
    scores: Mapping[str, GroundingScores]
    """One for each of grounding.CONTROLS."""
    constant: ConstantAnswer
    rows: Sequence[ClipRow]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    run: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the run (steps, ranks, seconds by stage …), shown as they are."""
    reels: Mapping[str, Path] = field(default_factory=dict)
    """"before" and "after": films that become part of the page."""

    def as_record(self) -> dict[str, Any]:
        """Plain JSON types; `scores` in the order of CONTROLS."""
        return {
            "title": self.title,
            "scores": {name: self.scores[name].as_record() for name in CONTROLS},
            "best_constant": self.constant.as_record(),
            "verdict": [asdict(verdict) for verdict in judge(self.scores)],
            "clips": [row.as_record() for row in self.rows],
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "run": dict(self.run),
        }


def write_report(folder: Path | str, report: RunReport) -> tuple[Path, Path]:
    """Write report.html and report.json into `folder`, each whole or not at all.

    Returns: the two paths. Raises CourseError when a file cannot be written or a reel cannot be read.
    """
    folder = Path(folder)
    page = html_page(report)
    write_json(folder / "report.json", report.as_record())
    write_text(folder / "report.html", page)
    return folder / "report.html", folder / "report.json"


def html_page(report: RunReport) -> str:
    """The page as text; no script, no link to anything outside."""
    verdicts = judge(report.scores)
    missed = [verdict.claim for verdict in verdicts if not verdict.reached]
    summary = "Every claim below was reached." if not missed else f"Not reached: {'; '.join(missed)}."
    shown = list(report.rows)[:CLIPS_IN_FIGURE]
    parts = [
        f"<h1>{html.escape(report.title)}</h1>",
        f"<p><strong>{html.escape(summary)}</strong></p>",
        _reels(report.reels),
        "<h2>Scores</h2>",
        _figure(*scores_figure([(NAMES[name], report.scores[name]) for name in CONTROLS])),
        _table(
            ["answers", "mean IoU", "95 % interval", "can be read", "repeated", "truncated", "different answers"],
            [_score_row(NAMES[name], report.scores[name]) for name in CONTROLS],
        ),
        f"<p>The best constant answer is {html.escape(format_intervals(report.constant.intervals))} "
        f"(seconds; best of {report.constant.candidates:,} on the training set). The intervals are bootstrap "
        f"intervals over clips; {report.scores['after'].samples} held-out samples.</p>",
        _table(
            ["claim", "value", "bound", "reached"],
            [[v.claim, f"{v.value:.3g}", f"{v.bound:.3g}", "yes" if v.reached else "NO"] for v in verdicts],
        ),
        "<h2>Clips</h2>",
        _figure(*clips_figure(shown)) if shown else "",
        f"<details><summary>All {len(report.rows)} answers</summary>",
        _table(
            ["clip", "from", "question", "truth", "before", "IoU", "after", "IoU"],
            [_clip_cells(row) for row in report.rows],
        ),
        "</details>",
        "<h2>Run, machine, versions</h2>",
        *(
            _table(["", ""], [[key, _shown(value)] for key, value in facts.items()])
            for facts in (report.run, report.machine, report.versions)
            if facts
        ),
        "<p>Measured by this run on this machine.</p>",
    ]
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(report.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(part for part in parts if part) + "\n</body>\n</html>\n"


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #111;
  background: #fff }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { border: 1px solid #bbb; padding: .25rem .6rem; text-align: left; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
figure { margin: 1rem 0 } svg, video { max-width: 100%; height: auto }
.reels { display: flex; flex-wrap: wrap; gap: 1rem } .reels figure { margin: 0; flex: 1 1 20rem }
"""


def _score_row(name: str, scores: GroundingScores) -> list[str]:
    return [
        name,
        f"{scores.mean_iou:.3f}",
        f"{scores.low_iou:.3f} to {scores.high_iou:.3f}",
        f"{scores.parse_rate:.1%}",
        f"{scores.repeated_rate:.1%}",
        f"{scores.truncated_rate:.1%}",
        str(scores.distinct_answers),
    ]


def _clip_cells(row: ClipRow) -> list[str]:
    return [
        row.clip,
        f"{row.start_seconds:g} s",
        row.question,
        format_intervals(row.truth),
        row.before_text,
        f"{answer_iou(row.truth, row.before):.2f}",
        row.after_text,
        f"{answer_iou(row.truth, row.after):.2f}",
    ]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<table>"]
    if any(columns):
        lines.append("<tr>" + "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns) + "</tr>")
    for first, *others in rows:
        cells = "".join(f"<td{_align(cell)}>{html.escape(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{html.escape(first)}</th>{cells}</tr>')
    return "\n".join([*lines, "</table>"])


def _align(cell: str) -> str:
    return ' class="number"' if cell.rstrip("%").replace(".", "", 1).isdigit() else ""


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _figure(svg: str, caption: str) -> str:
    return f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>"


def _reels(reels: Mapping[str, Path]) -> str:
    """Films inside the page as data URIs, so that the one file can be sent."""
    figures = []
    for name, path in reels.items():
        try:
            data = base64.b64encode(Path(path).read_bytes()).decode("ascii")
        except OSError as error:
            raise CourseError(f"reel cannot be read ({error.strerror or error})", where=str(path)) from error
        label = html.escape(f"Held-out clips as the answers {name} training would cut them", quote=True)
        figures.append(
            f'<figure><video controls muted playsinline aria-label="{label}" '
            f'src="data:video/mp4;base64,{data}"></video><figcaption>{label}: what is cut is dimmed; the solid bar is '
            "the truth, the striped bar the answer.</figcaption></figure>"
        )
    return f'<div class="reels">{"".join(figures)}</div>' if figures else ""
