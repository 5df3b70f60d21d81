"""Closed forms of how a picture is resized before it is cut into patches: integers in, integers out, no tensor.

Each function is one library's arithmetic, kept step by step (its rounding included), because one pixel of difference
is a row of tokens. Tests hold each of them to the library's own processor.
Not here: which frames are taken (sampling.py), what a model makes of the patches (grids.py).
"""

import math

from course_lib.errors import FINDING, CourseError

MAX_ASPECT_RATIO = 200


def round_to(value: float, factor: int) -> int:
    """Multiple of `factor` nearest to value; halves go to the even multiple, as Python's round does."""
    return round(value / factor) * factor


def floor_to(value: float, factor: int) -> int:
    return math.floor(value / factor) * factor


def ceil_to(value: float, factor: int) -> int:
    return math.ceil(value / factor) * factor


def resize_per_frame(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: float) -> tuple[int, int]:
    """(height, width) after Qwen2-VL's resize: the limits hold for ONE frame.

    Source: transformers 5.24 `models/qwen2_vl/video_processing_qwen2_vl.smart_resize`.
    """
    refuse_ribbon(height, width)
    high, wide = round_to(height, factor), round_to(width, factor)
    if high * wide > max_pixels:
        shrink = math.sqrt((height * width) / max_pixels)
        high, wide = max(factor, floor_to(height / shrink, factor)), max(factor, floor_to(width / shrink, factor))
    elif high * wide < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        high, wide = ceil_to(height * grow, factor), ceil_to(width * grow, factor)
    return high, wide


def resize_whole_video(
    frames: int, height: int, width: int, *, factor: int, temporal_factor: int, min_pixels: int, max_pixels: float
) -> tuple[int, int]:
    """(height, width) after Qwen3-VL's resize: the limits hold for frames · height · width together.

    Raises CourseError for fewer frames than one temporal patch, as the library raises ValueError.
    Source: transformers 5.24 `models/qwen3_vl/video_processing_qwen3_vl.smart_resize`.
    """
    if frames < temporal_factor:
        raise CourseError(
            f"{frames} frame is fewer than one temporal patch of {temporal_factor}",
            fix="This processor refuses it: take at least two frames (the same one twice for a picture)",
            exit_code=FINDING,
        )
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    refuse_ribbon(height, width)
    high, wide = round_to(height, factor), round_to(width, factor)
    paired = round_to(frames, temporal_factor)
    if paired * high * wide > max_pixels:
        shrink = math.sqrt((frames * height * width) / max_pixels)
        high, wide = max(factor, floor_to(height / shrink, factor)), max(factor, floor_to(width / shrink, factor))
    elif paired * high * wide < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        high, wide = ceil_to(height * grow, factor), ceil_to(width * grow, factor)
    return high, wide


def resize_within_patches(height: int, width: int, *, patch: int, pool: int, max_patches: int) -> tuple[int, int]:
    """(height, width) after Gemma 4's resize: the largest of that shape with at most `max_patches` patches.

    Source: transformers 5.24 `models/gemma4/video_processing_gemma4.get_aspect_ratio_preserving_size`.
    """
    budget_pixels, side = max_patches * patch**2, pool * patch
    scale = math.sqrt(budget_pixels / (height * width))
    high, wide = math.floor(scale * height / side) * side, math.floor(scale * width / side) * side
    longest = (max_patches // pool**2) * side
    if high == 0 and wide == 0:
        raise CourseError(f"a {width}×{height} picture would shrink to nothing", fix="Raise max_soft_tokens")
    if high == 0:
        high, wide = side, min(math.floor(width / height) * side, longest)
    elif wide == 0:
        high, wide = min(math.floor(height / width) * side, longest), side
    if high * wide > budget_pixels:
        raise CourseError(f"a {width}×{height} picture does not fit {max_patches} patches of {patch}×{patch}")
    return high, wide


def refuse_ribbon(height: int, width: int) -> None:
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise CourseError(
            f"a {width}×{height} picture is more than {MAX_ASPECT_RATIO} times longer than wide",
            fix="The processor refuses it: crop it or leave it out",
            exit_code=FINDING,
        )
