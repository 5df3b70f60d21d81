"""A run folder with the files of a real one and invented answers, for tests of what reads it. Nothing was trained."""

import json
import random
from pathlib import Path

import numpy as np

from course_lib.data.intervals import format_intervals, parse_intervals
from course_lib.evaluate.grounding import CONTROLS, best_constant_answer, score_answers
from course_lib.evaluate.reel import ReelClip, write_reel
from course_lib.evaluate.report import ClipRow, RunReport, write_report

WINDOW_SECONDS, WINDOWS = 8.0, 120


def build(runs: Path, name: str = "video_text_simulated") -> Path:
    """Write the folder `runs`/`name` and return it."""
    rng = random.Random(0)
    truths = [_truth(rng) for _ in range(WINDOWS)]
    constant = best_constant_answer(truths, WINDOW_SECONDS)
    texts = {
        "before": ["none"] * WINDOWS,
        "after": [format_intervals(truth) for truth in truths],
        "shuffled": [format_intervals(_truth(rng)) for _ in truths],
        "blank": [format_intervals(constant.intervals)] * WINDOWS,
    }
    parsed = {kind: [parse_intervals(text, WINDOW_SECONDS) for text in given] for kind, given in texts.items()}
    parsed["best_constant"] = [constant.answer] * WINDOWS
    rows = [
        ClipRow(
            clip=f"clip_{i:03d}.mp4",
            start_seconds=0.0,
            seconds=WINDOW_SECONDS,
            question="Which parts?",
            truth=truth,
            before_text=texts["before"][i],
            before=parsed["before"][i],
            after_text=texts["after"][i],
            after=parsed["after"][i],
        )
        for i, truth in enumerate(truths)
    ]
    report = RunReport(
        title="simulated",
        scores={kind: score_answers(truths, parsed[kind]) for kind in CONTROLS},
        constant=constant,
        rows=rows,
        machine={"device": "none: simulated"},
        versions={"course-lib": "0"},
        run={"ranks": 2, "steps": 20},
    )
    folder = runs / name
    write_report(folder / "report", report)
    frames = np.zeros((4, 16, 16, 3), dtype=np.uint8)
    for kind in ("before", "after"):
        clip = ReelClip(
            frames=frames,
            timestamps=[0, 2, 4, 6],
            seconds=WINDOW_SECONDS,
            truth=truths[0],
            answer=parsed[kind][0].intervals,
            caption=kind,
        )
        write_reel(folder / "report" / f"{kind}.mp4", [clip], seconds_per_clip=0.5)
    _write_rows(folder / "train_log.jsonl", [{"step": s, "loss": 4 / s, "max_steps": 20} for s in range(2, 21, 2)])
    batch = {"step": 0, "samples": [5, 7], "grids": [[8, 2, 2]] * 2, "visual_tokens": 16, "text_tokens": 190}
    _write_rows(folder / "batches_rank0.jsonl", [batch | {"supervised_tokens": 28}])
    return folder


def _truth(rng: random.Random) -> tuple[tuple[float, float], ...]:
    start = rng.randint(0, 12) / 2
    return ((start, start + rng.randint(1, 4) / 2),)


def _write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
