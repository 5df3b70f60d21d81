"""Windows of real clips as what a video-text model takes: ids, pixels, labels, with the budget verified.

The prompt is built once, by the model's own chat template and processor, and used for training and for generation
alike. Not here: cutting clips into windows (windows.py), reading frames (media/).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from course_lib.config.run_config import BudgetSection
from course_lib.data.windows import Window
from course_lib.errors import FINDING, CourseError
from course_lib.media.video import FrameReader, nearest_indices
from course_lib.models.supervised_loss import IGNORED

CACHE_BYTES = 512 * 1024**2
"""Built samples kept in memory per rank; a sample of the shipped example is about 0.1 MB."""


def load_processor(directory: Path, budget: BudgetSection):
    """The model's own processor with the budget set by the knobs that act (budget_settings).

    Raises CourseError for a directory without processor files.
    """
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CourseError(
            f"has no usable processor ({str(error).splitlines()[0][:120]})",
            where=str(directory),
            fix="Copy preprocessor/processor config, tokenizer and chat template of the model into it",
        ) from error
    video = getattr(processor, "video_processor", None)
    if video is None or not hasattr(video, "cap_pixels_per_frame"):
        raise CourseError(
            f"processor {type(processor).__name__} has no per-frame video cap",
            where=str(directory),
            fix="Use a Qwen2.5-VL, Qwen3-VL or Qwen3.5 directory",
        )
    settings = video.to_dict() | budget_settings(video, budget) | {"do_sample_frames": False}
    processor.video_processor = type(video)(**settings)
    return processor


def budget_settings(video: Any, budget: BudgetSection) -> dict[str, Any]:
    """Settings of a video processor that cap each frame at budget.max_tokens_per_frame.

    One name means two things (transformers 5.24, `resize` of the two classes). Qwen3-VL: `size` counts the whole clip,
    and the cap per frame is `cap_pixels_per_frame` with `max_video_tokens`, which act only together and only as
    settings of the object. Qwen2-VL and 2.5-VL: `size` counts one frame and is the cap; the same pair would be a budget
    for the whole clip. Qwen3-VL's floor counts the whole clip too, so there a frame may stay below the minimum.
    """
    from transformers import Qwen2VLVideoProcessor

    pixels_per_token = (video.patch_size * video.merge_size) ** 2
    floor, cap = budget.min_tokens_per_frame * pixels_per_token, budget.max_tokens_per_frame * pixels_per_token
    if isinstance(video, Qwen2VLVideoProcessor):
        return {"cap_pixels_per_frame": False, "size": {"shortest_edge": floor, "longest_edge": cap}}
    longest_edge = max(video.size["longest_edge"], cap * budget.frames)
    return {
        "cap_pixels_per_frame": True,
        "max_video_tokens": budget.max_tokens_per_frame,
        "size": {"shortest_edge": floor, "longest_edge": longest_edge},
    }


PER_VIDEO = ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")
"""What processors return per clip: rows of patches, one grid, and (Qwen2.5-VL) the seconds between grid steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleCost:
    """What one sample became after the processor: counts, not settings."""

    frames: int
    grid: tuple[int, int, int]
    visual_tokens: int
    text_tokens: int
    supervised_tokens: int


class GroundingDataset(Dataset):
    """One item per window: tensors of one sample without padding, plus `prompt_tokens` and `index` as ints.

    Args:
        windows: what to ask about. processor: from load_processor. budget: what was asked for, checked on each item.
        timeout_seconds: limit of one read of a file.

    Items: input_ids, attention_mask, mm_token_type_ids, labels (S,); pixel_values_videos (patches, patch size);
    video_grid_thw (1, 3). Raises CourseError for an unreadable clip or a budget that had no effect.
    """

    def __init__(
        self, windows: Sequence[Window], processor: Any, budget: BudgetSection, *, timeout_seconds: float = 20.0
    ) -> None:
        self.windows, self.processor, self.budget = tuple(windows), processor, budget
        self.reader = FrameReader(timeout_seconds)
        self._cache: dict[int, dict[str, Any]] = {}
        self._cached_bytes = 0

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self._cache:
            return self._cache[index]
        window = self.windows[index]
        frames, seconds = self.frames(index)
        item = self.build(window, frames, seconds)
        item["index"] = index
        size = sum(value.nbytes for value in item.values() if isinstance(value, torch.Tensor))
        if self._cached_bytes + size <= CACHE_BYTES:
            self._cache[index] = item
            self._cached_bytes += size
        return item

    def frames(self, index: int):
        """Frames uint8 (T, H, W, 3) and their real times in seconds from the window's start (T,)."""
        window = self.windows[index]
        times = self.reader.info(window.video).timestamps_seconds
        # Middles of equal parts: the first and last moments of a window count as much as any other.
        wanted = [
            window.start_seconds + (k + 0.5) * window.seconds / self.budget.frames for k in range(self.budget.frames)
        ]
        indices = nearest_indices(times, wanted)
        return self.reader.frames(window.video, indices), times[indices] - window.start_seconds

    def build(self, window: Window, frames: Any, seconds: Any) -> dict[str, Any]:
        """The sample for given frames; `frames` may be those of another clip (the shuffled control) or blank."""
        prompt, answer = render_prompt(self.processor, window.question), answer_text(self.processor, window.answer)
        milliseconds = [max(0, round(1000 * float(second))) for second in seconds]
        # Indices at 1,000 frames per second are real times; index/fps would put variable-rate frames elsewhere.
        metadata = {"fps": 1000.0, "frames_indices": milliseconds, "total_num_frames": round(1000 * window.seconds)}
        batch = self.processor(
            text=[prompt + answer],
            videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
            video_metadata=[metadata],
            do_sample_frames=False,
            return_tensors="pt",
        )
        per_token = ("input_ids", "attention_mask", "mm_token_type_ids")
        item: dict[str, Any] = {name: batch[name][0] for name in per_token if name in batch}
        answer_ids = self.processor.tokenizer(answer, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
        item["prompt_tokens"] = len(item["input_ids"]) - len(answer_ids)
        if not torch.equal(item["input_ids"][item["prompt_tokens"] :], answer_ids):
            raise CourseError(
                "the answer's tokens change when the prompt stands before it",
                where=f"{window.video.name} at {window.start_seconds:g} s",
                fix="The chat template must end the prompt at a token border",
            )
        item["labels"] = item["input_ids"].clone()
        item["labels"][: item["prompt_tokens"]] = IGNORED
        item |= {name: torch.as_tensor(batch[name]) for name in PER_VIDEO if name in batch}
        self._verify_budget(item, window)
        return item

    def cost(self, item: dict[str, Any]) -> SampleCost:
        """Counts of one built item."""
        video = self.processor.video_processor
        grid = tuple(int(value) for value in item["video_grid_thw"][0])
        visual = grid[0] * grid[1] * grid[2] // video.merge_size**2
        return SampleCost(
            frames=grid[0] * video.temporal_patch_size,
            grid=grid,
            visual_tokens=visual,
            text_tokens=len(item["input_ids"]) - visual,
            supervised_tokens=int((item["labels"] != IGNORED).sum()),
        )

    def _verify_budget(self, item: dict[str, Any], window: Window) -> None:
        cost = self.cost(item)
        where = f"{window.video.name} at {window.start_seconds:g} s"
        asked = self.budget
        temporal = self.processor.video_processor.temporal_patch_size
        if cost.frames != asked.frames + asked.frames % temporal:
            raise CourseError(
                f"{asked.frames} frames were asked for, {cost.frames} came out", where=where, exit_code=FINDING
            )
        per_step = cost.visual_tokens // cost.grid[0]
        # The floor of the cap is 1.05 × the minimum (the processor's own rule).
        if per_step > max(asked.max_tokens_per_frame, int(asked.min_tokens_per_frame * 1.05)):
            raise CourseError(
                f"grid {list(cost.grid)} costs {per_step} tokens per frame; the cap is {asked.max_tokens_per_frame}",
                where=where,
                fix="The budget had no effect: see `course tokens`",
                exit_code=FINDING,
            )
        placeholders = int((item["input_ids"] == self.processor.video_token_id).sum())
        if placeholders != cost.visual_tokens:
            raise CourseError(
                f"{placeholders} video placeholders for {cost.visual_tokens} visual tokens",
                where=where,
                exit_code=FINDING,
            )


def render_prompt(processor: Any, question: str) -> str:
    """The user turn with one video, by the model's own chat template, up to where the answer begins."""
    messages = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": question}]}]
    return processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)


def answer_text(processor: Any, answer: str) -> str:
    """The answer with the token that ends the turn, and nothing after it."""
    return answer + processor.tokenizer.eos_token


def collate(items: Sequence[dict[str, Any]], pad_token_id: int, *, prompts_only: bool = False) -> dict[str, Any]:
    """Batch items: right-padded for training; left-padded prompts for generation (prompts_only)."""
    lengths = [item["prompt_tokens"] if prompts_only else len(item["input_ids"]) for item in items]
    width = max(lengths)
    fillers = {"input_ids": pad_token_id, "attention_mask": 0, "mm_token_type_ids": 0, "labels": IGNORED}
    batch: dict[str, Any] = {}
    for name, filler in fillers.items():
        if name not in items[0] or (prompts_only and name == "labels"):
            continue
        rows = torch.full((len(items), width), filler, dtype=items[0][name].dtype)
        for row, item, length in zip(rows, items, lengths, strict=True):
            place = slice(width - length, width) if prompts_only else slice(0, length)
            row[place] = item[name][:length]
        batch[name] = rows
    batch |= {name: torch.cat([item[name] for item in items]) for name in PER_VIDEO if name in items[0]}
    if not prompts_only:
        batch["sample_index"] = torch.tensor([item["index"] for item in items])
    return batch
