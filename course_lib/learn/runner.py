"""Runs a notebook cell by cell within its time limit and keeps the executed copy, also of a failure.

The copies (notebook and HTML) go to runs/notebooks/, which git ignores.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course_lib.files import write_text
from course_lib.learn.progress import course_root
from course_lib.units import human_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """How one execution went. `failed_cell` is None when every cell ran."""

    name: str
    seconds: float
    time_limit_seconds: float
    failed_cell: int | None
    """Index among all cells, markdown included, from 0."""
    error: str
    facts: tuple[dict, ...]
    """What predict, compare and check wrote into their outputs' metadata, in order."""
    executed: Path
    """The executed copy, .ipynb; the same name with .html beside it."""


def run_notebook(path: Path, *, label: str = "solution") -> RunReport:
    """Execute the notebook at `path` with an empty progress file of its own, and print its minutes.

    The limit is the notebook's metadata course.time_limit_seconds, for all cells together. On a machine that is
    slower, or busy with something else, COURSE_TIME_FACTOR multiplies it.
    """
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    limit = notebook["metadata"]["course"]["time_limit_seconds"] * float(os.environ.get("COURSE_TIME_FACTOR") or 1)
    started = time.monotonic()
    with _own_progress():
        failed, error = _execute(notebook, time_limit_seconds=limit)
    seconds = time.monotonic() - started
    executed = course_root() / "runs" / "notebooks" / f"{path.stem}.{label}.ipynb"
    keep(notebook, executed)
    outcome = f"ran in {human_seconds(seconds)}" if failed is None else f"FAILED in cell {failed}: {error}"
    print(
        f"notebook {path.stem} ({label}): {outcome} (limit {human_seconds(limit)}); see {executed.with_suffix('.html')}"
    )
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    facts = tuple(dict(o["metadata"]["course"]) for o in outputs if "course" in o.get("metadata", {}))
    return RunReport(
        name=path.stem,
        seconds=seconds,
        time_limit_seconds=limit,
        failed_cell=failed,
        error=error,
        facts=facts,
        executed=executed,
    )


def _execute(notebook, *, time_limit_seconds: float) -> tuple[int | None, str]:
    """Run every code cell; returns (index, first line of the error) of the one that failed, or (None, '')."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    deadline = float("inf")
    client = NotebookClient(
        notebook,
        timeout_func=lambda cell: max(1, int(deadline - time.monotonic())),
        resources={"metadata": {"path": str(course_root() / "notebooks")}},
        kernel_name="python3",
    )
    with client.setup_kernel():
        # A cell may use whatever is left of the whole notebook's time; the clock starts with a kernel that answers.
        deadline = time.monotonic() + time_limit_seconds
        for index, cell in enumerate(notebook["cells"]):
            if cell["cell_type"] != "code":
                continue
            try:
                client.execute_cell(cell, index)
            except CellExecutionError as error:
                return index, f"{error.ename}: {error.evalue}".splitlines()[0]
            except (CellTimeoutError, TimeoutError):
                return index, "the time limit passed"
            except DeadKernelError:
                return index, "the kernel died"
    return None, ""


@contextlib.contextmanager
def _own_progress() -> Iterator[None]:
    """COURSE_PROGRESS points to a fresh file for the kernels started inside the block."""
    before = os.environ.get("COURSE_PROGRESS")
    with tempfile.TemporaryDirectory(prefix="course_progress_") as folder:
        os.environ["COURSE_PROGRESS"] = str(Path(folder) / "progress.json")
        try:
            yield
        finally:
            if before is None:
                del os.environ["COURSE_PROGRESS"]
            else:
                os.environ["COURSE_PROGRESS"] = before


def keep(notebook, executed: Path) -> None:
    """Write the executed notebook and an HTML page of it that one can look at."""
    import nbformat
    from nbconvert import HTMLExporter

    write_text(executed, nbformat.writes(notebook))
    page, _ = HTMLExporter().from_notebook_node(notebook)
    write_text(executed.with_suffix(".html"), page)
