"""Which frames a library takes by itself, from the number of frames and the average rate: indices, no decoding.

Each function is one library's rule, rounding included. All of them place frames by index / average rate; for a
variable rate that is wrong, which is why this course chooses frames by their real timestamps (media/video.py).
"""

import math
from typing import TYPE_CHECKING

from course_lib.errors import CourseError
from course_lib.tokens.resize import ceil_to, floor_to, round_to

if TYPE_CHECKING:
    import numpy as np

DEFAULT_FPS_WITHOUT_METADATA = 24
"""What Qwen3-VL's processor assumes when frames come without metadata: 32 frames become 1.33 s, and 4 frames."""


def qwen3_indices(
    total: int, rate: float | None, *, num_frames: int | None, fps: float | None, min_frames: int, max_frames: int
) -> "np.ndarray":
    """Qwen3VLVideoProcessor: evenly from the first frame to the last (linspace); the count is not rounded to pairs."""
    import numpy as np

    if num_frames is None and fps is not None:
        wanted = int(total / (rate or DEFAULT_FPS_WITHOUT_METADATA) * fps)
        num_frames = min(max(wanted, min_frames), max_frames, total)
    if num_frames is None:
        num_frames = min(max(total, min_frames), max_frames)
    return np.linspace(0, total - 1, num_frames).round().astype(np.int64)


def qwen2_indices(
    total: int, rate: float | None, *, num_frames: int | None, fps: float | None, min_frames: int, max_frames: int,
    temporal_patch_size: int = 2,
) -> "np.ndarray":  # fmt: skip
    """Qwen2VLVideoProcessor, when do_sample_frames is on: pairs, every total/frames-th frame from the first.

    Raises CourseError where the library raises ValueError: more frames wanted than the clip has, no rate known.
    """
    if num_frames is not None:
        frames = round_to(num_frames, temporal_patch_size)
    elif fps is not None:
        ceiling = floor_to(min(max_frames, total), temporal_patch_size)
        frames = min(max(total / _known(rate) * fps, min_frames), ceiling, total)
        frames = floor_to(frames, temporal_patch_size)
    else:
        raise CourseError("Qwen2-VL's processor samples only with num_frames or fps", fix="Give --frames or --fps")
    _refuse_too_many(frames, total)
    return _stepped(0.0, total, frames)


def middle_indices(total: int, rate: float | None, *, num_frames: int | None, fps: float | None) -> "np.ndarray":
    """InternVLVideoProcessor: the middles of num_frames equal parts (initial_shift=True)."""
    if num_frames is None:
        if fps is None:
            raise CourseError("InternVL's processor samples only with num_frames or fps", fix="Give --frames")
        num_frames = int(total / _known(rate) * fps)
    _refuse_too_many(num_frames, total)
    return _stepped(total / num_frames / 2, total, num_frames)


def even_indices(total: int, rate: float | None, *, num_frames: int | None, fps: float | None) -> "np.ndarray":
    """The common rule (LLaVA-OneVision, Gemma 4): index i·total//n, so the last frame is not reached.

    Source: transformers 5.24 `video_utils.default_sample_indices_fn`.
    """
    import numpy as np

    if num_frames is None and fps is not None:
        num_frames = max(1, int(total / _known(rate) * fps))
    num_frames = total if num_frames is None else num_frames
    _refuse_too_many(num_frames, total)
    return np.arange(num_frames, dtype=np.int64) * total // num_frames


def smolvlm_indices(
    total: int, rate: float | None, *, num_frames: int, fps: float, duration_seconds: float, skip_seconds: float = 1.0
) -> "np.ndarray":
    """SmolVLMVideoProcessor: fps capped by num_frames, a second left out at both ends of long clips."""
    import numpy as np

    rate = _known(rate)
    wanted = max(min(round(fps * duration_seconds), num_frames), 1)
    first, last = 0, total - 1
    if duration_seconds - 2 * skip_seconds > num_frames * fps:
        first, last = int(skip_seconds * rate), min(int(total - skip_seconds * rate), total - 1)
    if first >= last:
        first, last = 0, total - 1
    return np.unique(np.linspace(first, last, wanted, dtype=int))


def fetch_video_frames(
    total: int, rate: float, *, nframes: float | None = None, fps: float = 2.0, min_frames: int = 4,
    max_frames: int | None = None,
) -> int:  # fmt: skip
    """How many frames qwen-vl-utils 0.0.14 takes (`smart_nframes`): pairs, by nframes or by fps.

    10.0 s at 30.00003 frames per second and fps=2 give 18, not 20: 19.99998 is floored to a pair.
    """
    if nframes is not None:
        frames = round_to(nframes, 2)
    else:
        ceiling = floor_to(min(768, total) if max_frames is None else max_frames, 2)
        frames = floor_to(min(max(total / rate * fps, ceil_to(min_frames, 2)), ceiling, total), 2)
    if not 2 <= frames <= total:
        raise CourseError(f"qwen-vl-utils needs 2 to {total} frames, the settings ask for {frames}")
    return frames


def fetch_video_window(total: int, rate: float, start: float | None, end: float | None) -> tuple[int, int]:
    """First and last frame of qwen-vl-utils' video_start / video_end, both inside the window by index / rate."""
    longest = total / rate
    first = 0 if start is None else math.ceil(max(0.0, min(start, longest)) * rate)
    last = total - 1 if end is None else min(math.floor(max(0.0, min(end, longest)) * rate), total - 1)
    if first >= last:
        raise CourseError(f"the window {start}–{end} s holds fewer than two of the clip's {total} frames")
    return first, last


def _stepped(start: float, total: int, frames: int) -> "np.ndarray":
    """torch.arange(start, total, total / frames).int(), its float32 rounding included, without torch."""
    import numpy as np

    step = total / frames
    count = math.ceil((total - start) / step)
    return (start + np.arange(count) * step).astype(np.float32).astype(np.int64)


def _known(rate: float | None) -> float:
    if rate is None:
        raise CourseError("sampling by fps needs the clip's own rate", fix="Pass video_metadata with fps")
    return rate


def _refuse_too_many(frames: int, total: int) -> None:
    if not 1 <= frames <= total:
        raise CourseError(f"{frames} frames are wanted, the clip has {total}", fix="Change num_frames or fps")
