"""A real all-reduce between processes of this machine: 1.0 + 1.0 = 2.0, within a time limit, and how fast.

Started as `python -m course_lib.doctor.all_reduce OUT BACKEND` by each rank; rank 0 writes its answer to OUT.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.train.ranks import run_ranks
from course_lib.units import MIB

PAYLOAD_BYTES = {"gloo": 16 * MIB, "nccl": 256 * MIB}
REPEATS = 5
CPU_RANKS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduce:
    """What the ranks found, or why they did not get that far."""

    ranks: int
    backend: str
    value: float | None = None
    """Sum over the ranks of 1.0 each; right when it equals `ranks`."""
    bytes_per_second: float | None = None
    """Payload bytes / seconds of one all-reduce, median of five ("algorithm bandwidth" of nccl-tests)."""
    versions: tuple[dict[str, str], ...] = ()
    """Interpreter and versions of each rank."""
    problem: str = ""
    started: bool = True
    """Whether every rank had loaded torch; if not, the machine was too busy to try."""


def try_all_reduce(*, gpus: int, time_limit_seconds: float) -> AllReduce:
    """Start one rank per GPU with NCCL when there are two or more, else two gloo ranks, and let them add."""
    backend, ranks = ("nccl", gpus) if gpus >= 2 else ("gloo", CPU_RANKS)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "course_lib.doctor.all_reduce", str(out), backend]
        try:
            cpu = backend == "gloo"
            run_ranks(command, ranks=ranks, log_folder=Path(folder), time_limit_seconds=time_limit_seconds, cpu=cpu)
            answer = json.loads(out.read_text())
        except (CourseError, OSError, ValueError) as error:
            what = error.what if isinstance(error, CourseError) else str(error)
            ready = len(list(Path(folder).glob("ready*")))
            slow = isinstance(error, CourseError) and what.startswith("not finished")
            return AllReduce(ranks=ranks, backend=backend, problem=what, started=ready == ranks or not slow)
    return AllReduce(ranks=ranks, backend=backend, **{**answer, "versions": tuple(answer["versions"])})


def _rank_main(out: str, backend: str) -> None:
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    (Path(out).parent / f"ready{rank}").touch()
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    one = torch.ones(1, device=device)
    dist.all_reduce(one)
    bytes_per_second = _bandwidth(torch, dist, device, PAYLOAD_BYTES[backend])
    mine = {"python": sys.executable, "torch": torch.__version__}
    versions: list[dict[str, str] | None] = [None] * ranks
    dist.all_gather_object(versions, mine)
    if rank == 0:
        answer = {"value": one.item(), "bytes_per_second": bytes_per_second, "versions": versions}
        Path(out).write_text(json.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


def _bandwidth(torch, dist, device, payload_bytes: int) -> float:
    payload = torch.ones(payload_bytes // 4, device=device)
    seconds = []
    for _ in range(REPEATS):
        # Sums of ones double each time; what is sent stays the same.
        payload.fill_(1.0)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(payload)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return payload_bytes / sorted(seconds)[REPEATS // 2]


if __name__ == "__main__":
    _rank_main(sys.argv[1], sys.argv[2])
