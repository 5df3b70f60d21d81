"""A callback for any Trainer script: the first batches that a model really gets, judged before it learns from them.

    trainer.add_callback(BatchAudit(trainer, processor))

Labels, placeholders and grids, and the budget and the answers where the script names them. Not here: the audit of a
whole data set before a run (data/audit_run.py), who gets which sample (data/coverage.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback

from course_lib.config.run_config import BudgetSection
from course_lib.data.labels import check_labels, placeholder_ids
from course_lib.errors import FINDING, CourseError
from course_lib.tokens.text import step_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What must stand in one sample."""

    answer: str
    step_seconds: tuple[float, ...] | None = None
    """Time of each grid step, where the template writes it."""


class BatchAudit(TrainerCallback):
    """Audits the first `batches` micro-batches of this rank as they enter `trainer.training_step`.

    Args:
        trainer: any Trainer, subclasses included. processor: its processor, or its tokenizer.
        budget: frames and cap of each clip; None leaves grids unjudged.
        expected: gives the Expected of a sample by the value that stands in `index_key` of the batch; without it the
            labels are judged by themselves (something learnt, an end learnt, no placeholder, no padding, not all).
        max_tokens: limit of a row. say: gets one line when all audited batches are right.

    Raises CourseError inside the step, one line that names row, fault and fix; the other ranks end with their launcher.
    """

    def __init__(
        self,
        trainer: Any,
        processor: Any,
        *,
        budget: BudgetSection | None = None,
        expected: Callable[[int], Expected] | None = None,
        index_key: str = "sample_index",
        batches: int = 2,
        max_tokens: int | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.trainer, self.processor, self.budget, self.expected = trainer, processor, budget, expected
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.index_key, self.batches, self.max_tokens, self.say = index_key, batches, max_tokens, say
        self.audited_batches = self.audited_samples = 0

    def on_train_begin(self, args, state, control, **_):
        step = self.trainer.training_step

        def audited_step(model, inputs, *arguments, **named):
            self.audit(inputs, state.global_step)
            if self.audited_batches >= self.batches:
                self.trainer.training_step = step
                self.say(
                    f"batch audit passed: labels{'' if self.budget is None else ', grids and budget'} of the first "
                    f"{self.audited_samples} samples in {self.audited_batches} batches"
                )
            return step(model, inputs, *arguments, **named)

        if self.batches > 0:
            self.trainer.training_step = audited_step

    def audit(self, inputs: dict[str, Any], step: int = 0) -> None:
        """Judge one batch. Raises CourseError with the first finding and the number of the others."""
        if inputs.get("labels") is None:
            raise CourseError(
                "the batch has no labels", where=f"step {step}", fix="Let the data collator make them",
                exit_code=FINDING,
            )  # fmt: skip
        found = self._labels(inputs, step) + self._grids(inputs, step)
        if found:
            more = f" (and {len(found) - 1} more findings)" if len(found) > 1 else ""
            where, what, fix = found[0]
            raise CourseError(what + more, where=f"batch audit, {where}", fix=fix, exit_code=FINDING)
        self.audited_batches += 1
        self.audited_samples += len(inputs["labels"])

    def _labels(self, inputs: dict[str, Any], step: int) -> list[tuple[str, str, str]]:
        found = []
        mask, indices = inputs.get("attention_mask"), inputs.get(self.index_key)
        visual = placeholder_ids(self.processor)
        for row in range(len(inputs["labels"])):
            known = self.expected(int(indices[row])) if self.expected and indices is not None else None
            findings = check_labels(
                inputs["input_ids"][row],
                inputs["labels"][row],
                self.tokenizer,
                answer=known.answer if known else None,
                attention_mask=mask[row] if mask is not None and mask.ndim == 2 else None,
                visual_token_ids=visual,
                step_seconds=known.step_seconds if known else None,
                max_tokens=self.max_tokens,
                where=f"step {step} row {row}",
            )
            found += [(finding.where, finding.what, finding.fix) for finding in findings]
        return found

    def _grids(self, inputs: dict[str, Any], step: int) -> list[tuple[str, str, str]]:
        """Placeholders against grids, grids against the budget."""
        grids = inputs.get("video_grid_thw")
        if grids is None:
            return []
        video, found, planned = self.processor.video_processor, [], 0
        for row, (steps, high, wide) in enumerate(grids.tolist()):
            per_step = high * wide // video.merge_size**2
            planned += steps * per_step
            what = _budget_fault(self.budget, steps * video.temporal_patch_size, video.temporal_patch_size, per_step)
            if what:
                found.append((f"step {step} clip {row}", f"grid {[steps, high, wide]}: {what}", "See `course tokens`"))
        held = int((inputs["input_ids"] == self.processor.video_token_id).sum())
        if held != planned:
            what = f"{held} video placeholders for {planned} visual tokens of the grids"
            found.append((f"step {step}", what, "Was a sample truncated? Cut whole steps (course_lib.data.truncation)"))
        return found


def _budget_fault(budget: BudgetSection | None, frames: int, temporal: int, per_step: int) -> str:
    if budget is None:
        return ""
    if frames != budget.frames + -budget.frames % temporal:
        return f"{budget.frames} frames were asked for, {frames} are in the batch"
    if per_step > max(budget.max_tokens_per_frame, int(budget.min_tokens_per_frame * 1.05)):
        return f"{per_step} tokens per frame, the cap is {budget.max_tokens_per_frame}: the budget had no effect"
    return ""


def expected_of(dataset: Any) -> Callable[[int], Expected]:
    """What a GroundingDataset's samples must hold, by their index: the window's answer and its frames' real times."""
    from course_lib.data.audit import frames_of

    # Qwen3-VL's processor writes the time of each step; Qwen2.5-VL's does not.
    timed = hasattr(dataset.processor, "_calculate_timestamps")

    def expected(index: int) -> Expected:
        window = dataset.windows[index]
        if not timed:
            return Expected(answer=window.answer)
        times = dataset.reader.info(window.video).timestamps_seconds
        _, seconds = frames_of(window, times, dataset.budget.frames)
        steps = step_seconds(seconds.tolist(), dataset.processor.video_processor.temporal_patch_size)
        return Expected(answer=window.answer, step_seconds=tuple(steps))

    return expected
