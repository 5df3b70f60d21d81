"""Runs `course …` many times, each in a process of its own that this one forks after the heavy imports.

    python preloaded_course.py CASES.json ANSWERS.json

CASES: {name: [arguments]}. ANSWERS: {name: {"code", "out", "err"}}. Starting ranks ends a case with code STARTED.
"""

import json
import os
import sys
import tempfile

import course_lib.tasks.run as run
import course_lib.tasks.video_text  # noqa: F401 - loads torch
from course_lib import cli
from course_lib.errors import CourseError

STARTED = 99


def ranks_started(*_, **__):
    raise CourseError("ranks were started", exit_code=STARTED)


def answer(arguments):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.argv = ["course", *arguments]
            cli.main()
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return {"code": code, "out": out.read().decode(), "err": err.read().decode()}


if __name__ == "__main__":
    from transformers import AutoProcessor  # noqa: F401 - loaded once for all cases

    from course_lib.config.lint import lint

    # What lint loads of transformers and DeepSpeed is paid for once, too.
    lint({}, framework="trainer", world_size=2, training_arguments={"bf16": True}, lora={"r": 1})
    run.run_ranks = ranks_started
    with open(sys.argv[1]) as file:
        cases = json.load(file)
    answers = {name: answer(arguments) for name, arguments in cases.items()}
    with open(sys.argv[2], "w") as file:
        json.dump(answers, file)
