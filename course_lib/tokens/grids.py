"""From frames and picture size to patches and visual tokens: what the processor would answer, by arithmetic alone.

`grid` is (t, h, w) in patches as `video_grid_thw` counts them; visual tokens are t · (h/merge) · (w/merge) where a
family merges, or fixed per frame. Not here: text between the steps (text.py), budgets (plan.py).
"""

from dataclasses import dataclass

from course_lib.errors import CourseError
from course_lib.tokens.families import Family, Settings
from course_lib.tokens.resize import resize_per_frame, resize_whole_video, resize_within_patches
from course_lib.units import ceil_div


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Patches of one clip. `visual_tokens == steps * tokens_per_step + extra_tokens`."""

    thw: tuple[int, int, int]
    height: int
    """Pixels of a frame after the resize."""
    width: int
    tokens_per_step: int
    """Visual tokens of one temporal step: a pair of frames where temporal_patch_size is 2."""
    extra_tokens: int = 0

    @property
    def visual_tokens(self) -> int:
        return self.thw[0] * self.tokens_per_step + self.extra_tokens


def video_grid(family: Family, settings: Settings, *, frames: int, height: int, width: int) -> Grid:
    """The grid that `family`'s processor makes of `frames` frames of height × width pixels.

    Raises CourseError where the processor raises: one frame for Qwen3-VL, a ribbon of more than 200 : 1.
    """
    if frames < 1 or height < 1 or width < 1:
        raise CourseError(f"a clip of {frames} frames of {width}×{height} has no grid")
    if family.rule == "fixed":
        return _fixed(family, settings, frames, height, width)
    if not settings.do_resize:
        high, wide = height, width
    elif family.rule == "whole_video":
        high, wide = resize_whole_video(
            frames, height, width, factor=settings.factor, temporal_factor=settings.temporal_patch_size,
            min_pixels=settings.shortest_edge, max_pixels=whole_video_pixels(settings, frames),
        )  # fmt: skip
    elif family.rule == "per_frame":
        high, wide = resize_per_frame(
            height, width, factor=settings.factor, min_pixels=settings.shortest_edge,
            max_pixels=per_frame_pixels(settings, frames),
        )  # fmt: skip
    else:
        patches = settings.max_soft_tokens * settings.pooling_kernel_size**2
        high, wide = resize_within_patches(
            height, width, patch=settings.patch_size, pool=settings.pooling_kernel_size, max_patches=patches
        )
    return _patched(family, settings, frames, high, wide)


def whole_video_pixels(settings: Settings, frames: int) -> int:
    """Most pixels of the whole video for Qwen3-VL's resize; `cap_pixels_per_frame` replaces longest_edge.

    Source: transformers 5.24 `Qwen3VLVideoProcessor.resize`.
    """
    if not settings.cap_pixels_per_frame:
        return settings.longest_edge
    cap = min(settings.max_video_tokens * settings.factor**2, settings.longest_edge // frames)
    return max(cap, int(settings.shortest_edge * 1.05)) * frames


def per_frame_pixels(settings: Settings, frames: int) -> int:
    """Most pixels of one frame for Qwen2-VL's resize; `cap_pixels_per_frame` adds an even share of a total.

    Source: transformers 5.24 `Qwen2VLVideoProcessor.resize`.
    """
    if not settings.cap_pixels_per_frame:
        return settings.longest_edge
    total = int(settings.max_video_tokens * settings.factor**2 * 0.9)
    share = min(settings.longest_edge, total * settings.temporal_patch_size // frames)
    return max(share, int(settings.shortest_edge * 1.05))


def _patched(family: Family, settings: Settings, frames: int, high: int, wide: int) -> Grid:
    patch = settings.patch_size
    if family.rule == "within_patches":
        tokens = (high // patch) * (wide // patch) // settings.pooling_kernel_size**2
        return Grid(thw=(frames, high // patch, wide // patch), height=high, width=wide, tokens_per_step=tokens)
    if high % settings.factor or wide % settings.factor:
        raise CourseError(
            f"pictures of {wide}×{high} are no multiple of {settings.factor}",
            fix="Leave do_resize on",
        )
    steps = ceil_div(frames, settings.temporal_patch_size)
    tokens = (high // settings.factor) * (wide // settings.factor)
    return Grid(thw=(steps, high // patch, wide // patch), height=high, width=wide, tokens_per_step=tokens)


def _fixed(family: Family, settings: Settings, frames: int, height: int, width: int) -> Grid:
    high, wide = (settings.height, settings.width) if settings.do_resize else (height, width)
    # LLaVA-OneVision closes a clip with one newline embedding.
    extra = 1 if family.name == "llava_onevision" else 0
    return Grid(
        thw=(frames, high // settings.patch_size, wide // settings.patch_size), height=high, width=wide,
        tokens_per_step=settings.tokens_per_frame, extra_tokens=extra,
    )  # fmt: skip
