"""One file per task: how data, processor, model, loss and metrics are put together.

A task module offers `check(config)` (everything that can be refused before a rank starts; returns the data files that
are left out), `train_rank(config, resume=…)` (what each rank does) and `prove(config)` (what a fresh process does with
the result). A new task is one more line in TASKS.
"""

import importlib
from types import ModuleType

from course_lib.errors import CourseError

TASKS = {"video_text": "course_lib.tasks.video_text"}


def task_module(name: str) -> ModuleType:
    """The module of a task. Raises CourseError for one that is not built yet."""
    if name not in TASKS:
        raise CourseError(f"task '{name}' cannot be trained yet", where="task", fix=f"Known: {', '.join(TASKS)}")
    return importlib.import_module(TASKS[name])
