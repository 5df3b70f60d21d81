"""Measure many cases on one GPU, a fresh process for each, several at a time, results written as they come.

    python benchmarks/memory/run_cases.py CASES_DIR OUT.jsonl [--parallel 4] [--timeout 90] [--seconds 300]
        [--history DIR] [--sizes SIZES.json]

A process's allocated and reserved memory do not depend on its neighbours; what the driver reports does, so
`card_used` is dropped when several run at once. SIZES.json says what each case is expected to take in GiB, so that
those running together fit on the card; the largest start first.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CAPACITY_GIB = 132.0
UNKNOWN_GIB = 20.0
CONTEXT_GIB = 1.5


class Runs:
    """Cases waiting, and what the running ones hold."""

    def __init__(self, paths: list[Path], sizes: dict[str, float], stop_at: float) -> None:
        self._need = {path: sizes.get(path.stem, UNKNOWN_GIB) + CONTEXT_GIB for path in paths}
        self._waiting = sorted(paths, key=lambda path: -self._need[path])
        self._held = 0.0
        self._stop_at = stop_at
        self._changed = threading.Condition()

    def take(self) -> Path | None:
        """The largest waiting case that fits now; None when nothing is left or time is up."""
        with self._changed:
            while self._waiting and time.monotonic() < self._stop_at:
                for path in self._waiting:
                    if self._held + self._need[path] <= CAPACITY_GIB:
                        self._waiting.remove(path)
                        self._held += self._need[path]
                        return path
                self._changed.wait(timeout=1)
            return None

    def done(self, path: Path) -> None:
        with self._changed:
            self._held -= self._need[path]
            self._changed.notify_all()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--timeout", type=int, default=90)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--history", type=Path)
    parser.add_argument("--sizes", type=Path)
    given = parser.parse_args()
    sizes = json.loads(given.sizes.read_text()) if given.sizes else {}
    stop_at = time.monotonic() + given.seconds
    runs = Runs(sorted(given.cases.glob("*.json")), sizes, stop_at)
    lock = threading.Lock()
    slots = [threading.Thread(target=_work, args=(slot, runs, given, stop_at, lock)) for slot in range(given.parallel)]
    for thread in slots:
        thread.start()
    for thread in slots:
        thread.join()


def _work(slot: int, runs: Runs, given: argparse.Namespace, stop_at: float, lock: threading.Lock) -> None:
    while (path := runs.take()) is not None:
        record = _one(slot, path, given, min(given.timeout, stop_at - time.monotonic() + 20))
        runs.done(path)
        if given.parallel > 1:
            record.get("measured", {}).pop("card_used", None)
        with lock, given.out.open("a") as out:
            out.write(json.dumps({"name": path.stem, **record}) + "\n")
        note = record.get("error") or record["measured"]["steps"][-1]["peak_allocated"]
        print(f"{path.stem}: {note} ({record['wall_seconds']} s)", flush=True)


def _one(slot: int, path: Path, given: argparse.Namespace, timeout: float) -> dict:
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "course_lib.evaluate.measure_worker", str(path), str(result)]
        if given.history:
            command += ["--history", str(given.history / f"{path.stem}.jsonl.gz")]
        env = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(29600 + slot),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
        }
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
            written = list(Path(folder).glob("result*.json"))
            record = json.loads(written[0].read_text()) if written else {"error": done.stderr[-600:]}
        except subprocess.TimeoutExpired:
            record = {"error": f"timed out after {timeout:.0f} s"}
    if "measured" not in record:
        record.setdefault("error", "no result")
    record["wall_seconds"] = round(time.monotonic() - started, 1)
    return record


if __name__ == "__main__":
    main()
