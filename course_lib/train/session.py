"""One rank's session: process group, arguments, config object, in the order in which they must come.

gloo or NCCL first, then TrainingArguments (which create the live DeepSpeed config), then from_pretrained: in another
order every rank would hold the whole model, or Trainer would start a process group of its own.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.config.run_config import RunConfig
from course_lib.errors import CourseError
from course_lib.files import read_json
from course_lib.train.provenance import environment_record, require_equal_on_all_ranks
from course_lib.train.ranks import end_with_parent

NOTE = "• "
"""Lines of rank 0 that begin with this are shown by `course train` while it runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """Where this process stands. `say` prints on rank 0 alone."""

    rank: int
    ranks: int
    cpu: bool
    environment: dict[str, Any]
    """Interpreter, versions and code hash, equal on all ranks."""

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(f"{NOTE}{text}", flush=True)


def use_cpu() -> bool:
    """Whether ranks are gloo processes: no GPU is visible, or DS_ACCELERATOR=cpu asks for it."""
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        return True
    import torch

    return not torch.cuda.is_available()


def open_session() -> Session:
    """Join the process group of this run and make sure that every rank runs the same code."""
    if parent := os.environ.get("COURSE_PARENT_PID"):
        end_with_parent(int(parent))
    cpu = use_cpu()
    if cpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not cpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.utils.logger.setLevel("WARNING")
    deepspeed.init_distributed("gloo" if cpu else "nccl", verbose=False)
    records: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(records, environment_record())
    require_equal_on_all_ranks(records)
    return Session(rank=rank, ranks=ranks, cpu=cpu, environment=records[0])


def close_session() -> None:
    """Leave the process group; every rank calls this once."""
    import torch

    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def trainer_settings(config: RunConfig) -> dict[str, Any]:
    """The TrainingArguments of a run config that a ds_config could contradict."""
    train = config.train
    return {
        "per_device_train_batch_size": train.micro_batch_size,
        "gradient_accumulation_steps": train.gradient_accumulation_steps,
        "max_steps": train.max_steps,
        "learning_rate": train.learning_rate,
        "lr_scheduler_type": train.lr_scheduler_type,
        "warmup_steps": train.warmup_steps,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.max_grad_norm,
        "bf16": train.bf16,
    }


def training_arguments(config: RunConfig, session: Session):
    """HF TrainingArguments with the ds_config inside; creating them makes the DeepSpeed config object live.

    The caller must keep the result: transformers holds the config by a weak reference only, and zero.Init needs it.
    """
    from transformers import TrainingArguments

    train = config.train
    try:
        return TrainingArguments(
            output_dir=str(config.output),
            **trainer_settings(config),
            deepspeed=read_ds_config(config.ds_config),
            use_cpu=session.cpu,
            optim="adamw_torch",
            gradient_checkpointing=train.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False} if train.gradient_checkpointing else None,
            logging_steps=train.logging_steps,
            # A nan would be replaced by the mean in the log; it must be seen.
            logging_nan_inf_filter=False,
            save_strategy="steps" if train.save_steps else "no",
            save_steps=train.save_steps or 500,
            save_total_limit=train.save_total_limit,
            seed=train.seed,
            report_to="none",
            remove_unused_columns=False,
            disable_tqdm=True,
            dataloader_num_workers=train.dataloader_workers,
            dataloader_persistent_workers=train.dataloader_workers > 0,
            dataloader_pin_memory=not session.cpu,
        )
    except ValueError as error:
        raise CourseError(str(error).splitlines()[0], where=str(config.source)) from error


def read_ds_config(path: Path) -> dict[str, Any]:
    """A ds_config file as a dict. Raises CourseError when it is missing or not a JSON object."""
    ds_config = read_json(path)
    if not isinstance(ds_config, dict):
        raise CourseError("must be a JSON object", where=str(path))
    return ds_config
