"""The processes of a run: `python -m course_lib.tasks.process train|prove SPEC`, one per rank, one for the proof.

SPEC is JSON: {"run_config": path, "overrides": {...}, "resume": bool}. A fault that a person can act on is printed as
one line and ends the process with its exit code; anything else keeps its traceback in the rank's log.
"""

import json
import os
import sys

from course_lib.config.run_config import load_run_config
from course_lib.errors import CourseError
from course_lib.tasks import task_module


def main(phase: str, spec: dict) -> None:
    """Do what `phase` says with the run config of `spec`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    config = load_run_config(spec["run_config"], spec["overrides"])
    task = task_module(config.task)
    if phase == "train":
        task.train_rank(config, resume=spec["resume"])
    else:
        task.prove(config)


if __name__ == "__main__":
    try:
        main(sys.argv[1], json.loads(sys.argv[2]))
    except CourseError as error:
        print(error.line(), flush=True)
        # Not sys.exit: threads of gloo would wait for the other ranks.
        os._exit(error.exit_code)
