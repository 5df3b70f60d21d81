"""One micro batch of a case: real integers (ids, positions, grids), pixels of the right shape and no content.

The same batch feeds the tracer (pixels on the meta device) and `course measure` (everything on the GPU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course_lib.errors import CourseError
from course_lib.shapes.config import vision_config

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from course_lib.memory.case import MemoryCase

TEXT_PER_STEP = 8
"""Text tokens before each grid step where the family writes a timestamp there (`<12.3 seconds>` and two markers)."""

PER_STEP_FAMILIES = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Families whose processor makes every grid step its own run of tokens (Qwen3VLProcessor)."""


def make_batch(case: MemoryCase, config: PretrainedConfig, *, device: str, pixel_device: str) -> dict[str, Any]:
    """Keyword arguments of one training forward.

    Args:
        device: where the integers live (cpu for the tracer, cuda for a run). pixel_device: where the pixels live.

    Returns: input_ids, labels [b, s] int64, attention_mask [b, s] int64, and for video pixel_values_videos
        [b·Σ t·h·w, patch], video_grid_thw [b·videos, 3] and mm_token_type_ids [b, s].
    Raises CourseError when the video tokens do not fit into the sequence or the model takes no video.
    """
    import torch

    b, s = case.micro_batch_size, case.sequence_length
    row = torch.arange(s) % 997 + 10
    labels = row.clone()
    extra: dict[str, Any] = {}
    if case.video_grids:
        is_video = _video_positions(case, config)
        row[is_video] = config.video_token_id
        labels[: int(is_video.nonzero()[-1]) + 1] = -100
        extra = _video_fields(case, config, is_video, device, pixel_device)
    if case.supervised_tokens is not None:
        labels[: s - case.supervised_tokens] = -100
    ids = row.repeat(b, 1).to(device)
    return {
        "input_ids": ids,
        "labels": labels.repeat(b, 1).to(device),
        "attention_mask": torch.ones_like(ids),
        **extra,
    }


def video_tokens(grid: tuple[int, int, int], merge: int) -> int:
    """Tokens of one video: t · (h/merge) · (w/merge)."""
    t, h, w = grid
    return t * (h // merge) * (w // merge)


def _video_positions(case: MemoryCase, config: PretrainedConfig) -> torch.Tensor:
    import torch

    vision = vision_config(config)
    if vision is None or getattr(config, "video_token_id", None) is None:
        raise CourseError(f"{case.name} takes no video", fix="Remove video_grids or choose a vision-language model")
    merge = vision.spatial_merge_size
    per_step = config.model_type in PER_STEP_FAMILIES
    runs = []
    for t, h, w in case.video_grids:
        runs += [video_tokens((1, h, w), merge)] * t if per_step else [video_tokens((t, h, w), merge)]
    needed = sum(runs) + TEXT_PER_STEP * len(runs)
    if needed >= case.sequence_length:
        raise CourseError(
            f"the video takes {needed} tokens with its timestamps, but sequence_length is {case.sequence_length}",
            fix=f"Use sequence_length {needed + 1} or more, or fewer or smaller frames",
        )
    mask = torch.zeros(case.sequence_length, dtype=torch.bool)
    at = 0
    for run in runs:
        at += TEXT_PER_STEP
        mask[at : at + run] = True
        at += run
    return mask


def _video_fields(
    case: MemoryCase, config: PretrainedConfig, is_video: torch.Tensor, device: str, pixel_device: str
) -> dict[str, Any]:
    import torch

    vision = vision_config(config)
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
    patch = channels * vision.temporal_patch_size * vision.patch_size**2
    b = case.micro_batch_size
    patches = b * sum(t * h * w for t, h, w in case.video_grids)
    return {
        "pixel_values_videos": torch.zeros(patches, patch, dtype=getattr(torch, case.dtype), device=pixel_device),
        "video_grid_thw": torch.tensor([list(g) for g in case.video_grids] * b, device=device),
        "mm_token_type_ids": (is_video.to(torch.int32) * 2).repeat(b, 1).to(device),
    }
