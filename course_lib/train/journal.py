"""What a rank writes down: training rows, batches, and memory by phase, one JSON object a line.

Rows go to `<run folder>/train_log.jsonl` (rank 0), `batches_rank{R}.jsonl` and `memory_rank{R}.jsonl`. Lines are
flushed as they are written, so a killed run leaves what it knew.
"""

import json
import time
from pathlib import Path
from typing import Any, TextIO

import psutil
import torch

from course_lib.files import write_text
from course_lib.train.session import use_cpu


class Journal:
    """Appends rows to one JSONL file; `time`, the seconds of training so far, is added to each.

    Args:
        path: the file. resumed_at: step of the checkpoint that a run goes on from. Rows of later steps are taken
            out (they are about to be written again) and the clock goes on from the last row that stays.
    """

    def __init__(self, path: Path, resumed_at: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = 0.0
        if resumed_at is not None and path.exists():
            kept = [row for row in _rows(path) if row["step"] <= resumed_at]
            write_text(path, "".join(json.dumps(row) + "\n" for row in kept))
            before = kept[-1]["time"] if kept else 0.0
        self._started = time.monotonic() - before
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)

    def write(self, **row: Any) -> None:
        row["time"] = round(time.monotonic() - self._started, 3)
        self._file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        self._file.close()


def _rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a journal that may end in half a line (the process was killed while writing)."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class PhaseMemory:
    """Memory of this rank at the end of each phase: load, init, forward, backward, step, save.

    On a GPU: torch's allocated and reserved bytes, now and at their peak since the last mark. On a CPU torch keeps no
    such count, and the process's resident set stands for it. "driver" is what the whole card has in use.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._process = psutil.Process()
        # A CPU run on a machine with GPUs must not take a CUDA context, nor report an empty card.
        self._cuda = not use_cpu()
        self.peaks: dict[str, int] = {}

    def mark(self, phase: str, step: int) -> None:
        """Record the phase that just ended and start the next one's peak."""
        row = self._cuda_row() if self._cuda else {"resident_bytes": self._process.memory_info().rss}
        measure = "peak_allocated_bytes" if self._cuda else "resident_bytes"
        self.peaks[phase] = max(row[measure], self.peaks.get(phase, 0))
        self.journal.write(phase=phase, step=step, **row)

    def describe(self) -> str:
        """One line for the log: the largest value seen at the end of each phase."""
        what = "peak allocated" if self._cuda else "resident"
        return f"memory by phase ({what}): " + ", ".join(f"{p} {b / 2**20:.0f} MiB" for p, b in self.peaks.items())

    def _cuda_row(self) -> dict[str, int]:
        free, total = torch.cuda.mem_get_info()
        row = {
            "allocated_bytes": torch.cuda.memory_allocated(),
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.memory_reserved(),
            "driver_used_bytes": total - free,
            "host_resident_bytes": self._process.memory_info().rss,
        }
        torch.cuda.reset_peak_memory_stats()
        return row
