"""HF Trainer with the course's proofs: loss where labels stand, a verified first step, checkpoints whole or absent.

Everything else (schedules, accumulation, DeepSpeed, resuming) is Trainer's own.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from course_lib.models.supervised_loss import IGNORED, supervised_loss
from course_lib.train.checkpoints import remove_oldest
from course_lib.train.first_step import FirstStepCheck
from course_lib.train.journal import Journal, PhaseMemory

UNFINISHED = ".unfinished"
"""Folder in the run folder where a checkpoint is written before it gets its name."""


class CourseTrainer(Trainer):
    """Trainer for samples with `labels`, and an optional `sample_index` that never reaches the model.

    Args (besides Trainer's):
        loss: "supervised_positions" (logits only where a label stands) or "all_positions" (the model's own loss).
        batches: journal of what each batch was. memory: marks forward, backward, step and save.
        video_token_id: counts visual tokens in the journal; None for text.
        frames_per_step: frames that one grid step holds (the processor's temporal_patch_size).
    """

    def __init__(
        self,
        *arguments: Any,
        loss: str,
        batches: Journal,
        memory: PhaseMemory,
        video_token_id: int | None = None,
        frames_per_step: int = 1,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.loss_kind, self.batches, self.memory = loss, batches, memory
        self.video_token_id, self.frames_per_step = video_token_id, frames_per_step
        self.first_step: FirstStepCheck | None = None
        self.updates_done = 0
        """Optimizer updates so far with a learning rate above zero, as far as this process knows."""
        self.first_update_unknown = False
        """Resumed after one step, whose learning rate may have been the 0 of a warm-up."""
        self.steps_before = 0
        """Steps that the checkpoint had when this process began."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Loss of one micro-batch, scaled as Trainer scales a model's own loss."""
        indices = inputs.pop("sample_index", None)
        self._write_batch(inputs, indices)
        if self.loss_kind == "all_positions":
            answer = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            self.memory.mark("forward", self.state.global_step)
            return answer
        loss, outputs = supervised_loss(model, inputs, num_items_in_batch)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            # num_items_in_batch counts all ranks, and DeepSpeed averages gradients over them.
            loss = loss * self.accelerator.num_processes
        self.memory.mark("forward", self.state.global_step)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        """One micro-batch; under DeepSpeed the optimizer's step happens inside the backward call."""
        rate = self._get_learning_rate()
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.memory.mark("backward and step" if self.is_deepspeed_enabled else "backward", self.state.global_step)
        if self.accelerator.sync_gradients:
            if self.first_step and not self.first_step.finished and not self.first_update_unknown:
                self.first_step.after_backward(self.updates_done)
            self.updates_done += rate > 0
            self.first_update_unknown = self.first_update_unknown and not self.updates_done
        return loss

    def _write_batch(self, inputs: dict[str, Any], indices: torch.Tensor | None) -> None:
        mask, ids = inputs["attention_mask"], inputs["input_ids"]
        visual = int((ids == self.video_token_id).sum()) if self.video_token_id is not None else 0
        grids = inputs.get("video_grid_thw")
        self.batches.write(
            step=self.state.global_step,
            samples=indices.tolist() if indices is not None else None,
            frames=[grid[0] * self.frames_per_step for grid in grids.tolist()] if grids is not None else None,
            grids=grids.tolist() if grids is not None else None,
            visual_tokens=visual,
            text_tokens=int(mask.sum()) - visual,
            supervised_tokens=int((inputs["labels"] != IGNORED).sum()),
            padded_tokens=int(mask.numel() - mask.sum()),
        )

    def _save_checkpoint(self, model, trial) -> None:
        """Trainer's checkpoint, written under another name and renamed when every rank has finished."""
        run_folder = Path(self.args.output_dir)
        unfinished = run_folder / UNFINISHED
        if self.is_world_process_zero():
            shutil.rmtree(unfinished, ignore_errors=True)
        self._barrier()
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        self.args.output_dir = str(unfinished)
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.output_dir, self.args.save_total_limit = str(run_folder), limit
        self._barrier()
        if self.is_world_process_zero():
            name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            shutil.rmtree(run_folder / name, ignore_errors=True)
            (unfinished / name).rename(run_folder / name)
            shutil.rmtree(unfinished, ignore_errors=True)
            remove_oldest(run_folder, limit)
        self._barrier()
        self.memory.mark("save", self.state.global_step)

    def _barrier(self) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()


class LogRows(TrainerCallback):
    """Writes each of Trainer's log entries to train_log.jsonl, on rank 0."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def on_log(self, args, state, control, logs=None, **_):
        if state.is_world_process_zero and logs:
            self.journal.write(step=state.global_step, max_steps=state.max_steps, **logs)


class FirstStep(TrainerCallback):
    """Attaches the first-step check when the wrapped model exists; its hooks live on the model's parameters."""

    def __init__(self, trainer: CourseTrainer, say) -> None:
        self.trainer, self.say = trainer, say

    def on_train_begin(self, args, state, control, model=None, **_):
        # A resumed run's lora_B has moved: only the second half of the check applies. After a single step it may
        # not have (a warm-up begins at 0): then the check waits for an update of this process.
        self.trainer.steps_before = state.global_step
        self.trainer.first_update_unknown = state.global_step == 1
        self.trainer.updates_done = 0 if state.global_step == 1 else state.global_step
        self.trainer.first_step = FirstStepCheck(model, self.say)
        self.trainer.memory.mark("init", state.global_step)
