"""N processes that act as one: started together, watched together, ended together.

Each rank leads its own process group, so that compilers and decoders it started end with it. The same starter runs
two gloo ranks on a laptop and one rank per GPU on a node; over several nodes torchrun does it, and the ranks are told
apart by the same variables. Not here: what a rank does.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from course_lib.errors import FINDING, CourseError
from course_lib.units import human_bytes

FULL_DISK_BYTES = 1 << 20
"""With less than this free, a rank that failed is taken to have failed for want of space."""
LAST_WORDS_SECONDS = 5.0
"""After one rank has failed, the others get so long to write what they saw before they are ended."""


def rank_environment(rank: int, *, ranks: int, port: int, cpu: bool = True) -> dict[str, str]:
    """The variables torchrun would set for one rank of one node, plus the course's choices for a CPU.

    TORCH_EXTENSIONS_DIR stays as the user set it; by default compiled operators live inside the environment.
    """
    ours = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCH_EXTENSIONS_DIR": extensions_folder(),
        "PYTHONWARNINGS": "ignore",
        "COURSE_PARENT_PID": os.getpid(),
    }
    if cpu:
        # More threads than cores make two ranks many times slower.
        ours |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": max(1, (os.cpu_count() or 1) // ranks)}
    # ninja comes with this environment, and must be the same one whether the environment is activated or not:
    # another version than the one that compiled the operators would compile them again.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **{key: str(value) for key, value in ours.items()}, "PATH": path}


def extensions_folder() -> Path:
    """Where compiled operators are kept: TORCH_EXTENSIONS_DIR, else inside the environment."""
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(sys.prefix) / "torch_extensions")


def run_ranks(
    command: list[str],
    *,
    ranks: int,
    log_folder: Path,
    time_limit_seconds: float = float("inf"),
    cpu: bool = True,
    on_tick: Callable[[], None] | None = None,
) -> None:
    """Run `command` once per rank, each in its own process group, until all have ended well.

    Args:
        command: the same for every rank; ranks differ by their environment. log_folder: gets rank*.log.
        time_limit_seconds: for everything. cpu: gloo ranks. on_tick: called about ten times a second while they run.

    The first rank that fails, the time limit, or an interruption ends every group, compilers included.
    Raises CourseError that quotes the failing rank's last line; its whole log is `log_folder`/rank*.log.
    """
    port, deadline = free_port(), time.monotonic() + time_limit_seconds
    with contextlib.ExitStack() as stack:
        processes = []
        for rank in range(ranks):
            log = stack.enter_context((log_folder / f"rank{rank}.log").open("ab"))
            process = subprocess.Popen(
                command,
                env=rank_environment(rank, ranks=ranks, port=port, cpu=cpu),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(end_group, process)
            processes.append(process)
        while any(process.poll() is None for process in processes):
            failed = [rank for rank, process in enumerate(processes) if process.poll() not in (None, 0)]
            if failed:
                _last_words(processes)
                raise _rank_died(failed[0], processes[failed[0]].returncode, log_folder)
            if time.monotonic() > deadline:
                raise _too_slow(time_limit_seconds, ranks, log_folder)
            if on_tick:
                on_tick()
            time.sleep(0.1 if on_tick else 0.05)
        for rank, process in enumerate(processes):
            if process.returncode:
                raise _rank_died(rank, process.returncode, log_folder)


def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_group(process: subprocess.Popen) -> None:
    """Kill every process of the group that `process` leads, and collect it. Does nothing when all have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def end_with_parent(parent_pid: int) -> None:
    """End this process group when the process that started it is gone (a restarted kernel, a closed terminal)."""

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(0.5)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _last_words(processes: list[subprocess.Popen]) -> None:
    until = time.monotonic() + LAST_WORDS_SECONDS
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.05)


def _too_slow(limit_seconds: float, ranks: int, log_folder: Path) -> CourseError:
    last = last_line(log_folder / "rank0.log")
    return CourseError(
        f"not finished after {limit_seconds:.0f} s; all ranks were ended. Rank 0's last line: {last!r}",
        where=f"{ranks} ranks",
        fix="Close other heavy programs, or raise time_limit_seconds",
        exit_code=FINDING,
    )


def _rank_died(rank: int, code: int, log_folder: Path) -> CourseError:
    log = log_folder / f"rank{rank}.log"
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    what, fix = f"rank {rank} {how}; the other ranks were ended too. Its last line: {last_line(log)!r}", f"See {log}"
    free_bytes = shutil.disk_usage(log_folder).free
    if free_bytes < FULL_DISK_BYTES:
        # The rank's own last words did not fit on the disk either.
        what = f"rank {rank} {how}: the disk is full ({human_bytes(free_bytes)} left)"
        return CourseError(what, where=str(log_folder), fix="Free space, then go on with --resume", exit_code=FINDING)
    if code == -signal.SIGKILL:
        fix += ". If nobody killed it, the machine ran out of memory"
    return CourseError(what, fix=fix, exit_code=FINDING)


def last_line(log: Path) -> str:
    """The last line of a log that says something, at most 300 characters of it."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "(nothing)"
