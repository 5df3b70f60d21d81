"""make demo: the main path of the course on two CPU ranks, stage by stage, with the time each took.

    python -m course_lib.tasks.demo runs/video_text

A finished demo is shown again, an interrupted one goes on from its last checkpoint; nothing is overwritten.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from course_lib.errors import USAGE, CourseError
from course_lib.files import read_json
from course_lib.tasks.run import TIMES, run
from course_lib.units import human_seconds

RUN_CONFIG = Path(__file__).parents[2] / "examples" / "video_text" / "run_cpu.yaml"


def demo(folder: Path) -> None:
    """Train, prove and show examples/video_text in `folder`. Raises CourseError when a stage fails."""
    report = folder / "report" / "report.json"
    if report.is_file():
        print(f"This demo has already run: {folder} (delete the folder to run it again).")
    else:
        _run(folder, report)
    show(read_json(report), folder)


def _run(folder: Path, report: Path) -> None:
    unfinished = (folder / "settings.json").is_file()
    print("Fine-tuning a tiny Qwen3-VL on two CPU ranks: DeepSpeed ZeRO-3, LoRA, bf16. About 7 minutes on 2 cores.")
    started = time.monotonic()

    def say(line: str) -> None:
        print(f"[{human_seconds(time.monotonic() - started):>12}] {line}", flush=True)

    run(RUN_CONFIG, {"output": str(folder.resolve())}, resume=unfinished, proof=True, say=say)
    if not report.is_file():
        raise CourseError("the proof left no report", where=str(folder))


def show(report: dict[str, Any], folder: Path) -> None:
    """The table that a visitor should remember, and where to look."""
    names = {
        "before": "base model, never asked this",
        "after": "after LoRA",
        "best_constant": "best constant answer",
        "shuffled": "after LoRA, frames of another clip",
        "blank": "after LoRA, blank frames",
    }
    samples = report["scores"]["after"]["samples"]
    print(f"\nMean temporal IoU on {samples} held-out windows (1.00 = every cut is right)")
    for name, text in names.items():
        value = report["scores"][name]["mean_iou"]
        print(f"  {text:36} {value:.2f}  {'█' * round(30 * value)}")
    times = folder / TIMES
    if times.is_file():
        seconds = {stage: s for stage, s in read_json(times).items() if stage != "label"}
        print("  measured: " + ", ".join(f"{stage} {human_seconds(s)}" for stage, s in seconds.items()))
    print(f"\nWatch {folder / 'report' / 'before.mp4'} and {folder / 'report' / 'after.mp4'}")
    print(f"Read  {folder / 'report' / 'report.html'}")
    missed = [verdict["claim"] for verdict in report["verdict"] if not verdict["reached"]]
    if missed:
        print(f"Not reached: {'; '.join(missed)}")
    print("\nnext: make lab")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    try:
        demo(Path(sys.argv[1]))
    except CourseError as error:
        print(f"demo: {error.line()}", file=sys.stderr)
        sys.exit(error.exit_code or USAGE)
    except KeyboardInterrupt:
        print(
            "\ndemo: interrupted; make demo goes on from the last finished checkpoint, if there is one", file=sys.stderr
        )
        sys.exit(130)
