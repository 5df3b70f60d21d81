"""The first cell of every notebook: which versions and which machine the numbers below come from."""

import importlib.metadata
import os
import platform
import subprocess

from course_lib.learn.cards import Card, show
from course_lib.units import gib

PACKAGES = ("course-lib", "torch", "deepspeed", "transformers", "peft", "matplotlib", "jupyterlab")


def environment() -> None:
    """Show the versions of what the course stands on, and this machine. Imports none of it: takes milliseconds."""
    rows = [(name, version(name)) for name in PACKAGES]
    rows += [("Python", platform.python_version()), ("system", f"{platform.system()} {platform.machine()}")]
    rows += [("processor cores", str(cores())), ("memory", memory()), ("GPU", gpus())]
    show(Card(kind="note", headline="What these numbers come from", columns=("", "here"), rows=rows))


def version(package: str) -> str:
    """The installed version from its metadata, or 'not installed'."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cores() -> int:
    """Cores this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> str:
    """Installed and now available memory as the operating system counts it."""
    import psutil

    now = psutil.virtual_memory()
    return f"{gib(now.total, 1)}, of which {gib(now.available, 1)} free now"


def gpus() -> str:
    """GPU names and memory as the driver says them; 'none' is a good answer in this course."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "none (not needed)"
    return "; ".join(line.strip() for line in done.stdout.splitlines()) or "none (not needed)"
