"""How many clips and samples a second the audit takes, and what building the same samples would; writes
benchmarks/results/audit_speed.json.

Run: python benchmarks/tokens/audit_speed.py. Every figure is given twice: by the clock of this machine as busy as it
was, and by processor time, from which the figures called derived are computed: the start of the readers left out.
"""

import importlib.metadata
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from course_lib.config.run_config import load_run_config
from course_lib.data.audit import SampleAuditor, effective_model
from course_lib.data.audit_clips import READERS, read_infos
from course_lib.data.grounding import GroundingDataset, load_processor
from course_lib.data.windows import cut_windows, read_annotations
from course_lib.files import write_json

ROOT = Path(__file__).parents[2]
ROUNDS = 3
COPIES = 6
"""Each clip is there so many times: the readers' start is paid once for all clips, as in a real data set."""
BUILT = 12
"""Samples that are decoded and built for the ratio."""


def cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def timed(count: int, work: Callable[[], Any]) -> dict[str, float]:
    """Medians of ROUNDS rounds of `work`, which does `count` things: a second by the clock, CPU seconds of one."""
    walls, cpus = [], []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), cpu_seconds()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_seconds() - cpu)
    return {
        "a_second_by_the_clock": round(count / statistics.median(walls), 1),
        "cpu_seconds_each": statistics.median(cpus) / count,
    }


def main() -> None:
    config = load_run_config(ROOT / "examples" / "video_text" / "run_cpu.yaml")
    annotations = read_annotations(config.data.train)
    clips = list(dict.fromkeys(annotation.video for annotation in annotations))
    infos = read_infos(clips)
    windows = cut_windows(annotations, config.data.window_seconds, config.data.stride_seconds).windows
    processor = load_processor(Path(config.model), config.budget)
    model = effective_model(config.model, config.budget, processor)

    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / f"{n}_{clip.name}" for n in range(COPIES) for clip in clips]
        for copy, clip in zip(copies, clips * COPIES, strict=True):
            shutil.copyfile(clip, copy)
        headers = timed(len(copies), lambda: read_infos(copies))
        start = timed(1, lambda: read_infos(copies[:READERS]))["cpu_seconds_each"]

    def audit() -> None:
        auditor = SampleAuditor(model, config.budget, processor)
        for window in windows:
            auditor.audit(window, infos[window.video])

    audited = timed(len(windows), audit)
    chosen = range(0, len(windows), len(windows) // BUILT)

    def build() -> None:
        dataset = GroundingDataset(windows, processor, config.budget)
        for index in chosen:
            dataset[index]
        dataset.reader.close()

    built = timed(len(chosen), build)
    per_header = headers["cpu_seconds_each"] - start / len(copies)
    record = {
        "label": "measured; figures called derived are computed from measured processor time",
        "command": "python benchmarks/tokens/audit_speed.py",
        "machine": {
            "system": platform.platform(), "cores": os.cpu_count(),
            "load_average_one_minute": round(os.getloadavg()[0], 1),
        },
        "versions": {name: importlib.metadata.version(name) for name in ("av", "numpy", "tokenizers", "transformers")},
        "rounds": ROUNDS,
        "clips": {"count": len(clips), "frames_each": infos[clips[0]].frames, "samples": len(windows)},
        "headers_of_clips": headers | {"clips": len(copies), "readers": READERS, "cpu_seconds_to_start": start},
        "samples_audited": audited,
        "samples_built": built,
        "build_to_audit_cpu_ratio": round(built["cpu_seconds_each"] / audited["cpu_seconds_each"], 1),
        "derived_a_second": {
            "clips_from_header_to_audit_on_two_cores": round(2 / (per_header + audited["cpu_seconds_each"]), 1),
            "clips_with_known_headers_on_one_core": round(1 / audited["cpu_seconds_each"], 1),
        },
    }  # fmt: skip
    write_json(ROOT / "benchmarks" / "results" / "audit_speed.json", record)
    print(record["derived_a_second"], record["build_to_audit_cpu_ratio"])


if __name__ == "__main__":
    main()
