"""Finished checkpoints of a run folder: which there are, which is the last, which may go.

Cheap to import: the commands that only look do not load transformers.
"""

import shutil
from pathlib import Path

PREFIX = "checkpoint-"
"""transformers.trainer_utils.PREFIX_CHECKPOINT_DIR with its dash."""


def step_of(checkpoint: Path) -> int:
    """The step a checkpoint was written after."""
    return int(checkpoint.name.removeprefix(PREFIX))


def checkpoints(run_folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first; one that is still being written has another name."""
    named = (path for path in run_folder.glob(f"{PREFIX}*") if path.name.removeprefix(PREFIX).isdigit())
    found = [path for path in named if path.is_dir()]
    return sorted(found, key=step_of)


def remove_oldest(run_folder: Path, limit: int | None) -> None:
    """Remove all but the `limit` newest; None keeps all."""
    if limit:
        for path in checkpoints(run_folder)[:-limit]:
            shutil.rmtree(path, ignore_errors=True)
