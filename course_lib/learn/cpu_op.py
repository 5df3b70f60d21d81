"""The operator that DeepSpeed compiles once for CPU ranks, built in the background while a learner reads.

DeepSpeed 0.19.8 `comm/torch.py` build_shm_op: on Linux every CPU start needs deepspeed_shm_comm.
"""

import atexit
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.errors import FINDING, CourseError
from course_lib.train.ranks import end_group, extensions_folder, rank_environment
from course_lib.units import human_seconds

OPERATOR = "deepspeed_shm_comm"
BUILD = "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder as B; B().load(verbose=False)"


@dataclass(kw_only=True, slots=True)
class OpBuild:
    """A build that may still be running; no process where nothing had to be built."""

    process: subprocess.Popen | None = None
    log: Path | None = None
    started: float = field(default_factory=time.monotonic)

    def wait(self, *, time_limit_seconds: float = 600) -> None:
        """Return when the operator is there, with a line of progress every 15 s.

        Raises CourseError when the build fails or the time limit passes; a half-built operator is built anew
        by the next start.
        """
        if self.process is None:
            return
        said = time.monotonic()
        while self.process.poll() is None:
            elapsed = time.monotonic() - self.started
            if elapsed > time_limit_seconds:
                end_group(self.process)
                what = f"not built after {human_seconds(elapsed)}; the build was ended"
                raise CourseError(what, where=OPERATOR, fix="Run this cell again", exit_code=FINDING)
            if time.monotonic() - said >= 15:
                said = time.monotonic()
                print(f"DeepSpeed's operator is compiling: {human_seconds(elapsed)} so far (once per environment).")
            time.sleep(0.2)
        if self.process.returncode:
            lines = self.log.read_text(errors="replace").strip().splitlines() or ["(nothing)"]
            what = f"could not be compiled: {lines[-1][-300:]}"
            raise CourseError(what, where=OPERATOR, fix="Run `course check`", exit_code=FINDING)


def operator_built() -> bool:
    """True when the compiled operator lies where the ranks look for it and ninja sees nothing to do."""
    folder = extensions_folder() / OPERATOR
    if not (folder / f"{OPERATOR}.so").exists():
        return False
    environment = rank_environment(0, ranks=1, port=0)
    try:
        ask = subprocess.run(["ninja", "-n"], cwd=folder, env=environment, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "no work to do" in ask.stdout


def prepare_cpu_ranks() -> OpBuild:
    """Start compiling DeepSpeed's CPU operator in the background if need be; returns at once.

    Raises CourseError when there is no C++ compiler.
    """
    if not sys.platform.startswith("linux"):
        print("DeepSpeed needs no operator for CPU ranks on this system.")
        return OpBuild()
    if operator_built():
        print("DeepSpeed's operator for CPU ranks is already compiled.")
        return OpBuild()
    if not any(shutil.which(compiler) for compiler in ("g++", "c++", "clang++")):
        fix = "Install one (Debian, Ubuntu, WSL: apt-get install g++), then run this cell again"
        raise CourseError("no C++ compiler was found; DeepSpeed compiles an operator at its first start", fix=fix)
    log = Path(tempfile.mkdtemp(prefix="op_build_")) / "build.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", BUILD],
            env=rank_environment(0, ranks=1, port=0),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # A closed notebook takes its compilers with it.
    atexit.register(end_group, process)
    print("DeepSpeed compiles one operator in the background, once per environment (1 to 3 minutes). Read on.")
    return OpBuild(process=process, log=log)
