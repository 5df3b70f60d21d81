"""A whole run on this node: check, train in N ranks, then prove the result in a fresh process.

Not here: what the task is (one module per task) and what a rank does.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from course_lib.config.run_config import RunConfig, load_run_config
from course_lib.errors import FINDING, CourseError
from course_lib.files import write_json
from course_lib.tasks import task_module
from course_lib.train.checkpoints import checkpoints, step_of
from course_lib.train.ranks import run_ranks
from course_lib.train.session import NOTE, read_ds_config, trainer_settings, use_cpu
from course_lib.units import human_seconds

TIMES = "seconds_by_stage.json"
"""In the run folder: seconds of check, training and proof."""


def run(
    run_config: Path, overrides: dict[str, Any], *, resume: bool, proof: bool, say: Callable[[str], None]
) -> RunConfig:
    """Train as the run config says and prove the result; returns the config as used.

    Args:
        overrides: dotted keys over the file. resume: from the last finished checkpoint, else from 0.
        proof: reload and score in a fresh process afterwards. say: gets each line that a person should see.

    Raises CourseError when a check fails, a rank dies, or the proof does not hold.
    """
    config = load_run_config(run_config, overrides)
    stages: dict[str, float] = {}
    cpu = use_cpu()
    if cpu:
        # Said, not guessed: DeepSpeed warns on every import when it has to find out.
        os.environ["DS_ACCELERATOR"] = "cpu"
    with _timed(stages, "check"):
        left_out = check(config)
    for entry in left_out:
        say(f"left out: {entry['reason']}")
    if not resume:
        _refuse_used_folder(config.output)
    _make_folder(config.output)
    settings = _settings(config, resume)
    write_json(config.output / "settings.json", settings)
    write_json(config.output / "left_out.json", left_out)
    spec = json.dumps({"run_config": str(config.source), "overrides": overrides, "resume": resume})
    command = [sys.executable, "-m", "course_lib.tasks.process"]
    say(f"training: {config.ranks} ranks ({'CPU, gloo' if cpu else 'GPU, NCCL'}), {config.train.max_steps} steps")
    with _timed(stages, "training"):
        watch = Watch(config.output, say, after_step=settings["resumed_from"] or 0)
        run_ranks([*command, "train", spec], ranks=config.ranks, log_folder=config.output, cpu=cpu, on_tick=watch.look)
        watch.look()
    say(f"training took {human_seconds(stages['training'])}")
    if proof:
        say("proof: a fresh process loads base and adapter, compares every tensor, and answers on held-out clips")
        with _timed(stages, "proof"):
            prove_in_fresh_process([*command, "prove", spec], config.output, cpu=cpu, say=say)
        say(f"proof took {human_seconds(stages['proof'])}")
    write_json(config.output / TIMES, stages | {"total": round(sum(stages.values()), 1), "label": "measured"})
    return config


@contextlib.contextmanager
def _timed(stages: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    stages[name] = round(time.monotonic() - started, 1)


def check(config: RunConfig) -> list[dict[str, str]]:
    """Everything that can be refused before a rank starts: ds_config against arguments, then the task's own checks.

    Returns: data files that are left out, with reasons. Raises CourseError with the first error that lint finds.
    """
    from course_lib.config.lint import lint

    arguments = trainer_settings(config)
    lora = {"r": config.lora.r, "target_modules": list(config.lora.targets)}
    findings = lint(
        read_ds_config(config.ds_config),
        framework="trainer",
        world_size=config.ranks,
        training_arguments=arguments,
        lora=lora,
    )
    for finding in findings:
        if finding.level == "error":
            where = f"{config.ds_config}: {finding.key}"
            raise CourseError(finding.message, where=where, fix=finding.fix, exit_code=FINDING)
    return task_module(config.task).check(config)


def prove_in_fresh_process(command: list[str], folder: Path, *, cpu: bool, say: Callable[[str], None]) -> None:
    """Run the proof as one process that shares nothing with training but files; its lines go to proof.log."""
    proof_folder = folder / "proof"
    proof_folder.mkdir(exist_ok=True)
    (proof_folder / "rank0.log").unlink(missing_ok=True)
    watch = Watch(proof_folder, say)
    run_ranks(command, ranks=1, log_folder=proof_folder, cpu=cpu, on_tick=watch.look)
    watch.look()


class Watch:
    """Follows rank 0's log and the training log, and passes on what a person should see.

    Args:
        folder: of the run. after_step: rows of this step and earlier ones have been said (a resumed run's journal is
            written anew, without the rows after its checkpoint).
    """

    def __init__(self, folder: Path, say: Callable[[str], None], after_step: int = 0) -> None:
        self.say, self.after_step = say, after_step
        self._files = {"notes": folder / "rank0.log", "rows": folder / "train_log.jsonl"}
        # A resumed run appends: what stands there already has been said.
        self._read = {name: path.stat().st_size if path.exists() else 0 for name, path in self._files.items()}
        self._inode = {name: path.stat().st_ino for name, path in self._files.items() if path.exists()}
        self._first: tuple[int, float] | None = None

    def look(self) -> None:
        """Say what is new since the last look."""
        for line in self._new_lines("notes"):
            if line.startswith(NOTE):
                self.say(line.removeprefix(NOTE))
        for line in self._new_lines("rows"):
            row = json.loads(line)
            if "loss" in row and row["step"] > self.after_step:
                self.say(self._progress(row))

    def _new_lines(self, name: str) -> list[str]:
        path = self._files[name]
        if not path.exists():
            return []
        with path.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if self._inode.setdefault(name, inode) != inode:
                self._inode[name], self._read[name] = inode, 0
            file.seek(self._read[name])
            data = file.read()
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return []
        self._read[name] += len(whole) + 1
        return whole.decode("utf-8", "replace").splitlines()

    def _progress(self, row: dict[str, Any]) -> str:
        step, last = row["step"], row["max_steps"]
        text = f"step {step}/{last}  loss {row['loss']:.4f}  learning rate {row.get('learning_rate', 0):.2e}"
        if self._first is None:
            self._first = (step, row["time"])
            return text
        rate = (row["time"] - self._first[1]) / max(1, step - self._first[0])
        return f"{text}  {rate:.2f} s/step, {human_seconds(rate * (last - step))} left"


def _settings(config: RunConfig, resume: bool) -> dict[str, Any]:
    """What `course doctor` needs to read the log of this run."""
    found = checkpoints(config.output) if resume else []
    return {
        "max_steps": config.train.max_steps,
        "save_steps": config.train.save_steps or None,
        "save_total_limit": config.train.save_total_limit,
        "eval_steps": None,
        "resumed_from": step_of(found[-1]) if found else None,
        "host_total_bytes": psutil.virtual_memory().total,
    }


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CourseError(
            f"cannot be made ({error.strerror})", where=str(folder), fix="Choose another folder with --set output=…"
        ) from error


def _refuse_used_folder(folder: Path) -> None:
    if (folder / "train_log.jsonl").exists() or (folder / "adapter").exists():
        raise CourseError(
            "already holds a run",
            where=str(folder),
            fix="Use --resume, or another folder with --set output=…, or delete it",
        )
