"""qwen-vl-utils 0.0.14 `fetch_video` by arithmetic: its caps, its two routes (file, list of frames), its environment.

It resizes BEFORE the processor sees the clip; the processor must then be called with do_resize=False and
do_sample_frames=False. Source: `qwen_vl_utils/vision_process.py` of 0.0.14, checked against it where it is importable.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.errors import CourseError
from course_lib.tokens.resize import ceil_to, floor_to, refuse_ribbon, round_to

VIDEO_MIN_TOKENS, VIDEO_MAX_TOKENS = 128, 768
IMAGE_MIN_TOKENS, IMAGE_MAX_TOKENS = 4, 16384
MODEL_SEQUENCE_TOKENS = 128_000
FLOOR_MARGIN = 1.05
"""The cap is never below 1.05 times the floor: a floor that stays at 128 overrules a cap of 64."""

ENVIRONMENT = (
    ("MODEL_SEQ_LEN", "when qwen_vl_utils is imported", "total pixels of a video: 0.9 · MODEL_SEQ_LEN · factor²"),
    ("FORCE_QWENVL_VIDEO_READER", "when qwen_vl_utils is imported", "which decoder reads; no effect on tokens"),
    ("TORCHCODEC_NUM_THREADS", "at each clip read by torchcodec", "decoding threads; no effect on tokens"),
    ("VIDEO_MAX_TOKEN_NUM", "never", "a constant in 0.0.14; ms-swift patches it when it loads a processor"),
    ("VIDEO_MIN_TOKEN_NUM", "never", "a constant in 0.0.14; ms-swift patches it when it loads a processor"),
    ("IMAGE_MAX_TOKEN_NUM", "never", "a constant in 0.0.14; ms-swift patches it when it loads a processor"),
    ("FPS_MAX_FRAMES", "never", "a constant in 0.0.14; ms-swift patches it when it loads a processor"),
    ("FPS", "never", "a constant in 0.0.14; ms-swift patches it when it loads a processor"),
    ("MAX_PIXELS", "never", "ms-swift reads it, for pictures only"),
    ("VIDEO_MAX_PIXELS", "never", "its README still names it; no line of 0.0.14 reads it"),
)
"""(variable, when qwen-vl-utils 0.0.14 reads it, what it moves). transformers reads none of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameLimits:
    """Pixels one frame may have. `limited_by` says which of the settings decided the cap."""

    min_pixels: int
    max_pixels: float
    limited_by: str


def frame_limits(
    frames: int,
    *,
    factor: int,
    min_tokens: float = VIDEO_MIN_TOKENS,
    max_tokens: float = VIDEO_MAX_TOKENS,
    total_tokens: float | None = None,
    max_pixels: float | None = None,
) -> FrameLimits:
    """The per-frame limits of fetch_video: max(min(max_tokens·f², total/n·2), 1.05·min), then the element's own cap.

    Args:
        frames: n, after sampling. factor: f, patch size · 2 (28 for Qwen2.5-VL, 32 for Qwen3-VL).
        min_tokens, max_tokens: visual tokens per frame (one step of two frames costs as much as one frame).
        total_tokens: budget of the whole clip (total_pixels / f²); None: 0.9 · MODEL_SEQ_LEN.
        max_pixels: the element's own max_pixels; it can only lower the cap.
    """
    square = factor**2
    total = MODEL_SEQUENCE_TOKENS * 0.9 if total_tokens is None else total_tokens
    low = int(min_tokens * square)
    bounds = {"max_tokens_per_frame": max_tokens * square, "total_tokens": total * square / frames * 2}
    limited_by = min(bounds, key=bounds.get)
    cap = bounds[limited_by]
    if (floor := int(low * FLOOR_MARGIN)) > cap:
        cap, limited_by = floor, "min_tokens_per_frame"
    if max_pixels is not None and max_pixels < cap:
        cap, limited_by = max_pixels, "max_pixels"
    return FrameLimits(min_pixels=low, max_pixels=cap, limited_by=limited_by)


def fetched_size(height: int, width: int, limits: FrameLimits, *, factor: int) -> tuple[int, int]:
    """(height, width) that fetch_video hands to the processor for a clip read from a file."""
    if limits.max_pixels < limits.min_pixels:
        raise CourseError(
            f"max_pixels {limits.max_pixels:g} is below min_pixels {limits.min_pixels}",
            fix="qwen-vl-utils stops here: lower min_pixels too",
        )
    refuse_ribbon(height, width)
    # transformers' own resize differs on tiny pictures: it rounds to zero first, and never floors below one factor.
    high, wide = max(factor, round_to(height, factor)), max(factor, round_to(width, factor))
    if high * wide > limits.max_pixels:
        shrink = math.sqrt((height * width) / limits.max_pixels)
        high, wide = floor_to(height / shrink, factor), floor_to(width / shrink, factor)
    elif high * wide < limits.min_pixels:
        grow = math.sqrt(limits.min_pixels / (height * width))
        high, wide = ceil_to(height * grow, factor), ceil_to(width * grow, factor)
    return high, wide


def frame_list_size(height: int, width: int, limits: FrameLimits, *, factor: int) -> tuple[int, int]:
    """(height, width) for a clip given as a list of pictures: each is first rounded to TWICE the factor.

    fetch_video hands its factor to fetch_image as the patch size, so 864×480 becomes 896×512 where the same clip as a
    file stays 864×480.
    """
    twice = 2 * factor
    picture = FrameLimits(
        min_pixels=IMAGE_MIN_TOKENS * twice**2, max_pixels=IMAGE_MAX_TOKENS * twice**2, limited_by="image"
    )
    return fetched_size(*fetched_size(height, width, picture, factor=twice), limits, factor=factor)


def environment_report(environment: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    """Each variable people set for video budgets: its value here, who reads it when, what it moves."""
    environment = os.environ if environment is None else environment
    return [
        {"variable": name, "value": environment.get(name, ""), "read": when, "moves": what}
        for name, when, what in ENVIRONMENT
    ]
