"""Run the tests in parts and say how many minutes each took.

python tests/run_parts.py quick      what a developer runs while working
python tests/run_parts.py all        everything, as CI does
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
BIN = Path(sys.executable).parent
HEAVY = "slow or ranks or notebook or example"
PARTS = {
    "lint": [str(BIN / "ruff"), "check", "."],
    "format": [str(BIN / "ruff"), "format", "--check", "."],
    "fast tests": [*PYTEST, "-m", f"not ({HEAVY})"],
    "slow tests": [*PYTEST, "-m", "slow and not (ranks or notebook or example)"],
    "ranks": [*PYTEST, "-m", "ranks and not (notebook or example)"],
    "example video_text": [*PYTEST, "-m", "example and not notebook"],
    "notebooks": [*PYTEST, "-m", "notebook"],
}
QUICK = ("lint", "format", "fast tests")


def count(pattern: str, text: str) -> int:
    found = re.findall(rf"(\d+) {pattern}", text)
    return int(found[-1]) if found else 0


def run_part(name: str, command: list[str]) -> tuple[int, float, dict[str, int]]:
    """Run one part, its output passed on line by line; returns exit code, seconds and pytest's counts."""
    print(f"\n== {name} ==", flush=True)
    started, tail = time.monotonic(), ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            tail = (tail + line)[-2000:]
    counts = {word: count(word, tail) for word in ("passed", "failed", "error", "skipped")}
    return process.returncode, time.monotonic() - started, counts


def main(which: str) -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    names = QUICK if which == "quick" else tuple(PARTS)
    results = {name: run_part(name, PARTS[name]) for name in names}
    print("\npart                  minutes  result")
    for name, (code, seconds, counts) in results.items():
        said = ", ".join(f"{number} {word}" for word, number in counts.items() if number) or (
            "ok" if not code else "failed"
        )
        print(f"{name:20}  {seconds / 60:7.1f}  {said}")
    bad = [name for name, (code, _, _) in results.items() if code]
    total = {
        word: sum(counts[word] for _, _, counts in results.values())
        for word in ("passed", "failed", "error", "skipped")
    }
    print(f"total                 {sum(seconds for _, seconds, _ in results.values()) / 60:7.1f}")
    if bad:
        print(f"failing parts: {', '.join(bad)}")
    failed = max(total["failed"] + total["error"], len(bad))
    print(f"{total['passed']} passed, {failed} failed, {total['skipped']} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("quick", "all"):
        sys.exit("run_parts.py: say quick or all")
    sys.exit(main(sys.argv[1]))
