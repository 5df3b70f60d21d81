"""make prove: examples/video_text on three seeds; writes benchmarks/results/video_text.json.

About six minutes per seed on two cores. A seed that this very code has already finished is not run again.
"""

import shutil
import sys

from proof_record import ROOT, covered_hash, write_record

from course_lib.errors import CourseError
from course_lib.evaluate.grounding import CONTROLS
from course_lib.files import read_json, read_json_lines, write_text
from course_lib.tasks.run import TIMES, run

SEEDS = (0, 1, 2)
RUN_CONFIG = ROOT / "examples" / "video_text" / "run_cpu.yaml"
COVERS = [
    "examples/video_text/*.py",
    "examples/video_text/run_cpu.yaml",
    "examples/video_text/ds_config_cpu.json",
    "examples/video_text/data/*.jsonl",
    "examples/video_text/checkpoints/tiny-qwen3-vl/*.json",
    "examples/video_text/checkpoints/tiny-qwen3-vl/model.safetensors",
    "course_lib/models/*.py",
    "course_lib/data/grounding.py",
    "course_lib/data/windows.py",
    "course_lib/data/intervals.py",
    "course_lib/train/trainer.py",
    "course_lib/train/session.py",
    "course_lib/train/adapter_files.py",
    "course_lib/tasks/video_text.py",
    "course_lib/tasks/video_text_proof.py",
    "course_lib/evaluate/grounding.py",
]
"""What can change a score. Anything else (launchers, texts, other packages) leaves the proof valid."""


def run_seed(seed: int, code: str) -> dict:
    """Train and score one seed, or read it where this code has done so; returns its record."""
    folder = ROOT / "runs" / "prove" / f"video_text_seed{seed}"
    stamp = folder / "covered_sha256"
    if not stamp.is_file() or stamp.read_text() != code:
        shutil.rmtree(folder, ignore_errors=True)
        overrides = {"train.seed": seed, "output": str(folder)}
        run(RUN_CONFIG, overrides, resume=False, proof=True, say=lambda line: print(f"seed {seed}: {line}", flush=True))
        write_text(stamp, code)
    report = read_json(folder / "report" / "report.json")
    rows = [row for row in read_json_lines(folder / "train_log.jsonl") if "loss" in row]
    steps, seconds = rows[-1]["step"] - rows[0]["step"], rows[-1]["time"] - rows[0]["time"]
    return {
        "seed": seed,
        **{name: report["scores"][name]["mean_iou"] for name in CONTROLS},
        "base_parse_rate": report["scores"]["before"]["parse_rate"],
        "held_out_windows": report["scores"]["after"]["samples"],
        "verdict": report["verdict"],
        "seconds_by_stage": read_json(folder / TIMES),
        "training_samples_per_second": round(steps * report["run"]["samples per step"] / seconds, 1),
    }


def main() -> None:
    code = covered_hash(COVERS)
    seeds = [run_seed(seed, code) for seed in SEEDS]
    path = write_record("video_text", covers=COVERS, code=code, command="make prove", results={"seeds": seeds})
    print(f"\nseed  {'  '.join(f'{name:>13}' for name in CONTROLS)}")
    for record in seeds:
        print(f"{record['seed']:4}  {'  '.join(f'{record[name]:13.3f}' for name in CONTROLS)}")
    print(f"written: {path}")
    if missed := [v["claim"] for record in seeds for v in record["verdict"] if not v["reached"]]:
        print(f"not reached: {'; '.join(missed)}")
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except CourseError as error:
        sys.exit(f"prove: {error.line()}")
