"""Clips as the planner meets them: what a file would say, without the file."""

from pathlib import Path

import numpy as np
import pytest

from course_lib.media.video import VideoInfo


def clip_info(
    *, frames: int = 300, rate: float = 30.0, width: int = 640, height: int = 1152, times: list[float] | None = None
) -> VideoInfo:
    seconds = np.arange(frames) / rate if times is None else np.asarray(times)
    return VideoInfo(
        path=Path("clip.mp4"), width=width, height=height, frames=len(seconds),
        duration_seconds=float(seconds[-1] + 1 / rate), average_fps=rate, rotation_degrees=0, has_audio=False,
        timestamps_seconds=seconds,
    )  # fmt: skip


@pytest.fixture
def portrait() -> VideoInfo:
    """The practitioner's clip: ten seconds, 640 wide and 1152 high."""
    return clip_info()


@pytest.fixture
def make_clip():
    return clip_info
