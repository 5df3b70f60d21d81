"""From events to one diagnosis: all detectors speak, the first in the order of precedence is the verdict."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from course_lib.doctor.autopsy import collectives, deaths, gpu_memory, learning, pace
from course_lib.doctor.autopsy.advice import advice_for
from course_lib.doctor.autopsy.events import Log
from course_lib.doctor.autopsy.figure import draw
from course_lib.doctor.autopsy.findings import VERDICTS, Finding
from course_lib.doctor.autopsy.reader import read_events
from course_lib.doctor.autopsy.sources import gather
from course_lib.doctor.autopsy.timing import Timing, eta_seconds, measure

QUIET = ("healthy", "unknown")
"""Verdicts that are not findings: exit code 0."""
TRAINING_WORDS = re.compile(
    r"\btorch|transformers|deepspeed|\bpeft\b|accelerate|\[rank\d|ProcessGroup|NCCL|gloo|local_rank|safetensors|\btrl\b|"
    r"llamafactory|\bswift\b|CUDA|\btrain\w*\.py|torchrun|trainer|DataLoader|slurmstepd|Killed process \d+ \(python|"
    r"\bKilled\s+.*python|collectives on ranks|rank \d+ .*exit",
    re.I,
)  # fmt: skip
STRUCTURE = re.compile(
    r"Traceback \(most recent|File \"[^\"]+\", line \d+|\[rank ?\d|\[default\d|ProcessGroup\w+\.cpp|"
    r"return code = -?\d|exitcode ?: ?-?\d|non-zero exit status \d|\brank \d+\b.*\b(?:ended|exit)|\w+Error: |"
    r"slurmstepd: error|srun: error|Caught signal \d|Killed process \d|: \d+ Killed|line \d+: +\d+ Killed|"
    r"DataLoader worker|^\s*CUDA out of memory|collectives on ranks|Warning: ",
    re.MULTILINE,
)
"""What programs write when they fail; prose that only speaks of failures has none of it."""


def diagnose(
    paths: Iterable[Path], settings: dict[str, Any] | None = None, figure: Path | None = None
) -> dict[str, Any]:
    """The record that `course doctor --json` prints; see docs/doctor.md for its keys.

    Args:
        paths: files or folders of one run. settings: max_steps, resumed_from, save_steps, eval_steps,
            save_total_limit, early_stopping_patience where the log does not say them. figure: where to draw the run.
    """
    log = read_events(gather(paths), settings)
    timing = measure(log)
    findings = detect(log, timing)
    chosen = findings[0]
    if figure:
        draw(
            log,
            timing,
            figure,
            title=f"{log.sources[0].name if log.sources else 'trainer_state.json'}: {chosen.verdict}",
        )
    return _record(log, timing, chosen, also=[finding.verdict for finding in findings[1:]])


def detect(log: Log, timing: Timing) -> list[Finding]:
    """All findings, in their order of precedence; healthy or unknown when there is none."""
    if not _is_training(log):
        return [Finding(verdict="unknown", evidence=[])]
    found = [
        deaths.detect_shm(log),
        deaths.detect_disk(log),
        gpu_memory.detect(log),
        deaths.detect_host(log),
        deaths.detect_damage(log),
        collectives.detect(log),
        learning.detect_no_steps(log),
        deaths.detect_death(log),
        learning.detect_masked(log),
        learning.detect_nan(log),
        pace.detect_clock(log, timing),
        pace.detect_straggler(log, _by_rank(log)),
        pace.detect_stall(log, timing),
        learning.detect_early_stop(log),
    ]
    spoken = sorted((f for f in found if f), key=lambda finding: VERDICTS.index(finding.verdict))
    return spoken or [Finding(verdict="healthy" if log.is_training_log else "unknown", evidence=[])]


def _is_training(log: Log) -> bool:
    """Whether anything in the text belongs to training; a web server's errors are none of ours."""
    if log.events or log.damaged_files:
        return True
    said = " ".join(line.quoted for line in log.notable[:5000])
    return bool(TRAINING_WORDS.search(said) and STRUCTURE.search(said))


def _by_rank(log: Log) -> dict[int, Timing]:
    """Each rank's own pace, when ranks logged their own times (a folder of rank logs)."""
    ranks = sorted({e.line.rank for e in log.events if e.line.rank is not None and e.seconds is not None})
    if len(ranks) < 2:
        return {}
    return {rank: measure(replace(log, events=[e for e in log.events if e.line.rank == rank])) for rank in ranks}


def _record(log: Log, timing: Timing, finding: Finding, also: list[str]) -> dict[str, Any]:
    over = finding.verdict in VERDICTS[: VERDICTS.index("rank_died") + 1]
    eta = None if over else eta_seconds(log, timing)
    pace_seconds = timing.seconds_per_step
    return {
        "verdict": finding.verdict,
        "phase": finding.phase,
        "cause": finding.cause or None,
        "numbers": finding.numbers,
        "ranks": finding.ranks,
        "at_steps": finding.at_steps,
        "seconds_per_step": None if pace_seconds is None else round(pace_seconds, 4),
        "eta_seconds": None if eta is None else round(eta, 1),
        "step": log.last_step,
        "max_steps": log.total_steps,
        "evidence": finding.evidence or _progress(log, timing),
        "advice": advice_for(finding, log),
        "also": also,
        "files": [source.name for source in log.sources] or ["trainer_state.json"] * len(log.states),
    }


def _progress(log: Log, timing: Timing) -> list[str]:
    """What a healthy log says of itself."""
    if log.last_step is None:
        return []
    of = f" of {log.total_steps}" if log.total_steps else ""
    speed = f", {timing.seconds_per_step:.3g} s per step" if timing.seconds_per_step else ""
    flat = learning.flat_since(log)
    plateau = (
        [] if flat is None else [f"the loss has not fallen since about step {flat}: a plateau, or it has learnt enough"]
    )
    return [f"step {log.last_step}{of}{speed}", *plateau]
