"""A finished run of an example, as a notebook reads it: scores, films, log. Nothing here trains.

The folder is what `course train` leaves: report/ (report.json, before.mp4, after.mp4), train_log.jsonl and
batches_rank*.jsonl.
"""

import base64
import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.evaluate.grounding import CONTROLS, GroundingScores
from course_lib.evaluate.report import NAMES
from course_lib.files import read_json, read_json_lines
from course_lib.learn.cards import Card, show
from course_lib.learn.progress import course_root


@dataclass(frozen=True, kw_only=True, slots=True)
class FinishedRun:
    """One run folder that has a report."""

    folder: Path
    report: dict
    """report.json as it is."""

    @property
    def iou(self) -> dict[str, float]:
        """Mean temporal IoU on the held-out windows by set of answers, in the order of CONTROLS."""
        return {name: self.report["scores"][name]["mean_iou"] for name in CONTROLS}

    def scores(self) -> dict[str, GroundingScores]:
        """The scores with their intervals and rates."""
        records = {name: self.report["scores"][name] for name in CONTROLS}
        return {name: GroundingScores(**{**r, "ious": tuple(r["ious"])}) for name, r in records.items()}

    def losses(self) -> list[tuple[int, float]]:
        """(step, training loss) as rank 0 logged them."""
        rows = read_json_lines(self.folder / "train_log.jsonl")
        return [(row["step"], row["loss"]) for row in rows if "loss" in row]

    def first_batch(self) -> dict:
        """What rank 0 was given in its first step: samples, grids, token counts."""
        return read_json_lines(self.folder / "batches_rank0.jsonl")[0]


def finished_run(example: str, *, make: str = "make demo") -> FinishedRun:
    """The newest run of `example` that has a report, in runs/ or in the folder that COURSE_RUNS names.

    Raises CourseError that says how to make one when there is none.
    """
    folder = Path(os.environ.get("COURSE_RUNS") or course_root() / "runs")
    reports = sorted(folder.glob(f"{example}*/report/report.json"), key=lambda path: path.stat().st_mtime)
    if not reports:
        fix = f"In a terminal, in the folder of the course: {make} (about 8 minutes). Then run this cell again"
        raise CourseError(f"there is no finished run of {example} yet", where=str(folder), fix=fix)
    return FinishedRun(folder=reports[-1].parents[1], report=read_json(reports[-1]))


def show_run(run: FinishedRun) -> None:
    """The facts of the run: ranks, stage, steps, machine, versions."""
    facts: Mapping = {**run.report["run"], **run.report["machine"]}
    rows = [(key, str(value)) for key, value in facts.items()]
    rows.append(("versions", ", ".join(f"{name} {number}" for name, number in run.report["versions"].items())))
    show(Card(kind="note", headline=f"The run in {run.folder.name}", columns=("", "measured there"), rows=rows))


def show_batch(run: FinishedRun) -> None:
    """Rank 0's first batch: how many samples, the grid of the first, and the tokens by kind."""
    batch = run.first_batch()
    rows = [("samples", str(len(batch["samples"]))), ("grid of the first", "×".join(map(str, batch["grids"][0])))]
    rows += [(f"{kind} tokens", f"{batch[f'{kind}_tokens']:,}") for kind in ("visual", "text", "supervised")]
    show(Card(kind="note", headline="The first batch of rank 0", columns=("", "logged"), rows=rows))


def show_scores(run: FinishedRun) -> None:
    """The five scores as bars with their 95 % intervals, and as a table."""
    from course_lib.evaluate.grounding_figures import scores_figure

    scores = run.scores()
    svg, _ = scores_figure([(NAMES[name], score) for name, score in scores.items()])
    rows = [
        (
            NAMES[n],
            f"{s.mean_iou:.2f}",
            f"{s.low_iou:.2f} to {s.high_iou:.2f}",
            f"{s.parse_rate:.0%}",
            s.distinct_answers,
        )
        for n, s in scores.items()
    ]
    columns = ("answers", "mean IoU", "95 % interval", "can be read", "different answers")
    line = f"Measured by the run in {run.folder.name}, on {scores['after'].samples} held-out windows."
    show(Card(kind="note", headline="Temporal IoU", svg=svg, columns=columns, rows=rows, lines=[line]))


def show_verdict(run: FinishedRun) -> None:
    """Claim by claim: what the run had to reach, and whether it did."""
    verdict = run.report["verdict"]
    rows = [(v["claim"], f"{v['value']:.3g}", f"{v['bound']:.3g}", "yes" if v["reached"] else "NO") for v in verdict]
    kind = "good" if all(v["reached"] for v in verdict) else "bad"
    columns = ("claim", "value", "bound", "reached")
    show(Card(kind=kind, headline="What this run proves", columns=columns, rows=rows))


def show_films(run: FinishedRun, *, windows: int = 5) -> None:
    """before.mp4 and after.mp4 side by side, and the answers of some windows as a table."""
    films = "".join(_film(run.folder / "report" / f"{name}.mp4", name) for name in ("before", "after"))
    rows = [
        (
            f"{c['clip']} +{c['start_seconds']:g} s",
            c["truth"],
            c["before"]["text"],
            c["after"]["text"],
            f"{c['after']['iou']:.2f}",
        )
        for c in run.report["clips"][:windows]
    ]
    columns = ("window", "truth", "answer before", "answer after", "IoU after")
    lines = ["What an answer cuts is dimmed. The solid bar is the truth, the striped bar the answer."]
    svg = f'<div style="display:flex;flex-wrap:wrap;gap:1em;margin:.4em 0">{films}</div>'
    headline = "Held-out clips, cut by the answers"
    show(Card(kind="note", headline=headline, svg=svg, columns=columns, rows=rows, lines=lines))


def _film(path: Path, name: str) -> str:
    """A <video> that carries its film, so that it plays wherever the notebook is opened."""
    try:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
    except OSError as error:
        raise CourseError(f"cannot be read ({error.strerror or error})", where=str(path)) from error
    label = html.escape(f"Held-out clips as the answers {name} training would cut them", quote=True)
    source = f'src="data:video/mp4;base64,{data}"'
    video = (
        f'<video controls muted playsinline style="max-width:100%;width:380px" aria-label="{label}" {source}></video>'
    )
    return f'<figure style="margin:0">{video}<figcaption>{name} training</figcaption></figure>'
