"""`course check`: can this environment run the course. About one run, against a node: preflight.py."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from course_lib.doctor import machine, probes
from course_lib.doctor.lines import Line, fail, ok, warn
from course_lib.doctor.packages import INSTALL, package_lines
from course_lib.train.ranks import extensions_folder, free_port, rank_environment
from course_lib.units import GIB, MIB, human_bytes

OLDEST_PYTHON = (3, 11)
TIME_LIMIT_SECONDS = 8.0
"""For the children; with the rest the command stays under ten seconds."""
SHM_BYTES_PER_RANK = 66 * MIB
"""DeepSpeed 0.19.8 csrc/cpu/comm/shm.cpp: 2 × 1 MiB + 2 × 32 MiB of /dev/shm for every CPU rank of a node."""
RAM_BYTES_PER_RANK = 2 * GIB
"""Our margin for one CPU rank of the small examples: torch, transformers and deepspeed loaded, model and batch."""
CPU_OP = "deepspeed_shm_comm"
FIRST_COMPILE = "The first run on two CPU ranks compiles it: about two minutes on two cores, once"


def environment_lines() -> list[Line]:
    """Every line of `course check`, in the order in which a person would repair them."""
    answers = probes.ask(probes.commands(), time_limit_seconds=TIME_LIMIT_SECONDS)
    gpus = machine.gpus()
    return [
        python_line(),
        *package_lines(),
        torch_line(answers["torch"], gpus),
        compiler_line(answers["compiler"]),
        ninja_line(),
        op_line(extensions_folder()),
        video_line(answers["video"]),
        shm_line(machine.shared_memory(), ranks=2),
        ram_line(machine.host_memory(), ranks=2),
        disk_line(machine.space(Path.cwd())),
        gpu_line(gpus),
        port_line(),
        lab_line(),
    ]


def python_line(version: tuple[int, ...] = sys.version_info) -> Line:
    shown = ".".join(map(str, version[:3])) + f" ({sys.executable})"
    if tuple(version[:2]) < OLDEST_PYTHON:
        return fail("python", f"{shown} is older than 3.11", "Make the environment with python3.11 or newer")
    return ok("python", shown)


def torch_line(answer: probes.Answer, gpus: machine.Gpus) -> Line:
    """Whether torch and torchvision load together (their compiled halves must match), and see the GPUs."""
    name = "torch + torchvision"
    if answer.timed_out:
        return warn(
            name,
            f"did not load within {TIME_LIMIT_SECONDS:.0f} s",
            "Run again when the machine or the disk is less busy; a network file system makes this slow",
        )
    if answer.problem:
        return fail(name, answer.problem, f"Install the pair together: {INSTALL}")
    record = answer.record
    shown = f"{record['torch']} + {record['torchvision']}, CUDA {record['cuda'] or 'none'}"
    if gpus.gpus and not record["gpus"]:
        return warn(
            name,
            f"{shown}: the driver shows {len(gpus.gpus)} GPUs, torch none",
            "Install a torch built for CUDA no newer than the driver's, and look at CUDA_VISIBLE_DEVICES",
        )
    return ok(name, shown)


def compiler_line(answer: probes.Answer) -> Line:
    compiler = os.environ.get("CXX", "c++")
    if answer.timed_out:
        return warn("C++ compiler", f"{compiler} gave no answer in time", "Run again when the machine is less busy")
    if "Python.h" in answer.problem:
        return fail(
            "C++ compiler", answer.problem, "Install Python's headers (Debian, Ubuntu: apt-get install python3-dev)"
        )
    if answer.problem:
        fix = "Debian, Ubuntu: apt-get install g++; conda: conda install cxx-compiler"
        return fail("C++ compiler", f"'{compiler}' does not compile: {answer.problem}", fix)
    return ok("C++ compiler", f"{shutil.which(compiler.split()[0])} compiles against this Python")


def ninja_line() -> Line:
    found = shutil.which("ninja", path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))
    if found:
        return ok("ninja", found)
    return fail(
        "ninja", "not found; DeepSpeed cannot compile its operators", f"Run: {sys.executable} -m pip install ninja"
    )


def op_line(folder: Path, op: str = CPU_OP) -> Line:
    """Whether DeepSpeed's CPU operator is compiled and up to date, being compiled, or blocked by a dead build."""
    name, built, lock = "deepspeed CPU operator", folder / op / f"{op}.so", folder / op / "lock"
    if lock.exists() and _lock_blocks(lock):
        since = f"{(time.time() - lock.stat().st_mtime) / 60:.0f} min ago"
        if torch_waits_for_lock_files():
            fix = f"If no build runs now, remove {lock}: this torch waits for it for ever"
            return warn(name, f"being compiled, or left half-built {since}", fix)
        return warn(name, f"being compiled since {since}", "Wait until it is done")
    if not built.exists():
        return warn(name, f"not compiled yet in {folder}", FIRST_COMPILE)
    if not _is_up_to_date(folder / op):
        return warn(name, f"{built} was compiled for another torch or compiler", FIRST_COMPILE)
    return ok(name, str(built))


def torch_waits_for_lock_files() -> bool:
    """Whether the installed torch takes a lock file's mere existence for a running build (it did before 2.14)."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    builder = Path(spec.submodule_search_locations[0]) / "utils" / "cpp_extension.py"
    return builder.is_file() and "FileBaton(" in builder.read_text(errors="replace")


def _lock_blocks(lock: Path) -> bool:
    """Whether the next start would wait for this lock: an old torch for the file, a new one for whoever holds it."""
    if torch_waits_for_lock_files():
        return True
    try:
        import fcntl
    except ImportError:
        return False
    with lock.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _is_up_to_date(folder: Path) -> bool:
    """Whether ninja sees nothing to do; true when it cannot be asked (that is another line's matter)."""
    environment = rank_environment(0, ranks=1, port=0)
    try:
        ask = subprocess.run(["ninja", "-n"], cwd=folder, env=environment, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return "no work to do" in ask.stdout


def video_line(answer: probes.Answer) -> Line:
    if answer.timed_out:
        return warn("video", "no clip was read in time", "Run again when the machine is less busy")
    record = answer.record
    if answer.problem or record["frames_read"] != record["frames_written"]:
        found = (
            answer.problem or f"{record['reader']} read {record['frames_read']} of {record['frames_written']} frames"
        )
        return fail("video", found, f"Run: {INSTALL}")
    return ok("video", f"{record['reader']} read {record['frames_read']} of {record['frames_written']} frames")


def shm_line(shm: machine.Space | None, *, ranks: int) -> Line:
    name, needed = "/dev/shm", ranks * SHM_BYTES_PER_RANK
    if shm is None:
        return ok(name, "not used on this system")
    shown = f"{human_bytes(shm.free_bytes)} free of {human_bytes(shm.total_bytes)}"
    fix = "Container: docker run --shm-size=8g (or --ipc=host); else: mount -o remount,size=8G /dev/shm"
    if shm.free_bytes < needed:
        return fail(name, f"{shown}; {ranks} CPU ranks of DeepSpeed need {human_bytes(needed)}", fix)
    if shm.free_bytes < GIB:
        return warn(name, f"{shown}; NCCL and data-loader workers may end with exit code -7 (bus error)", fix)
    return ok(name, shown)


def ram_line(memory: machine.HostMemory, *, ranks: int) -> Line:
    shown = f"{human_bytes(memory.available_bytes)} available of {human_bytes(memory.total_bytes)}"
    if memory.limited_by != "machine":
        shown += f" (limit of control group {memory.limited_by})"
    needed = ranks * RAM_BYTES_PER_RANK
    if memory.available_bytes < needed:
        fix = "Close other programs, or raise the container's memory limit; else ranks end with exit code -9"
        level = fail if memory.available_bytes < needed // 2 else warn
        return level("RAM", f"{shown}; {ranks} CPU ranks want {human_bytes(needed)}", fix)
    return ok("RAM", shown)


def disk_line(disk: machine.Space) -> Line:
    shown = f"{human_bytes(disk.free_bytes)} free on {disk.mount or disk.path} ({disk.kind})"
    if disk.free_bytes < GIB:
        return fail("disk", shown, "Free at least 1 GiB for run folders")
    if disk.free_bytes < 5 * GIB:
        return warn("disk", shown, "Enough for the small examples; a 7B checkpoint alone is 15 GB")
    return ok("disk", shown)


def gpu_line(gpus: machine.Gpus) -> Line:
    if not gpus.gpus:
        return ok("GPU", f"none: {gpus.problem or 'the driver lists no GPU'}; the course runs on CPU ranks")
    shown = ", ".join(f"{g.name} {human_bytes(g.free_bytes)} free of {human_bytes(g.total_bytes)}" for g in gpus.gpus)
    return ok("GPU", f"{len(gpus.gpus)}: {shown}; driver {gpus.driver}")


def port_line() -> Line:
    try:
        return ok("port", f"{free_port()} can be listened on")
    except OSError as error:
        return fail("port", f"no local port can be opened ({error})", "Allow local connections; ranks talk over one")


def lab_line() -> Line:
    found = shutil.which("jupyter-lab", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found:
        return ok("jupyterlab", f"{found}; start it with: make lab")
    return fail("jupyterlab", "the program jupyter-lab is not there", f"Run: {INSTALL}")
