"""Closed forms against the installed library's own processors, on shapes without memory.

COURSE_CLIPS_PER_FAMILY sets how many random clips each family is asked (200; `make prove` asks 2,000).
"""

import os
import random
from dataclasses import replace

import numpy as np
import pytest

from course_lib.errors import CourseError
from course_lib.tokens import judge, sampling
from course_lib.tokens.families import BY_NAME, FAMILIES, VideoModel
from course_lib.tokens.grids import video_grid
from course_lib.tokens.text import clip_text

pytestmark = pytest.mark.slow

CLIPS = int(os.environ.get("COURSE_CLIPS_PER_FAMILY", "200"))
CHECKED = [family for family in FAMILIES if family.checked]


def random_side(rng: random.Random) -> int:
    """Any size, the odd ones on purpose: tiny, odd, ordinary, 4K."""
    return rng.choice([rng.randint(1, 60), rng.randint(30, 700), rng.randint(200, 2200), rng.choice([480, 1080, 2160])])


def random_settings(family, rng: random.Random):
    """The family's settings with random limits and pairs of limits."""
    settings, square = family.settings, family.settings.factor**2
    if family.rule == "fixed":
        side = rng.choice([196, 224, 364, 384, 448])
        return replace(settings, height=side, width=side)
    if family.rule == "within_patches":
        return replace(settings, max_soft_tokens=rng.choice([70, 140, 280, 560, 1120]))
    low = rng.choice([4, 16, 64, 128, 256]) * square * rng.choice([1, 1, 8])
    high = rng.choice([16, 64, 196, 768, 4096, 24576]) * square * rng.choice([1, 2, 32])
    if rng.random() < 0.3:
        low, high = rng.randint(1, 10**6), rng.randint(1, 3 * 10**7)
    return replace(
        settings, shortest_edge=low, longest_edge=high, cap_pixels_per_frame=rng.choice([None, False, True]),
        max_video_tokens=rng.choice([16, 64, 196, 768, 16_000, 128_000]),
    )  # fmt: skip


@pytest.mark.parametrize("family", CHECKED, ids=lambda family: family.name)
def test_grid_tokens_and_text_equal_the_real_processors(family):
    rng = random.Random(f"{family.name}-20")
    answered = 0
    for _ in range(CLIPS):
        settings = random_settings(family, rng)
        model = VideoModel(name=family.name, family=family, settings=settings)
        frames, height, width = rng.randint(1, 40), random_side(rng), random_side(rng)
        rate = rng.choice([1.0, 12.5, 23.976, 30.00003, 60.0])
        indices = sorted(rng.randint(0, 100_000) for _ in range(frames))
        metadata = {
            "total_num_frames": 100_001, "fps": rate, "duration": 100_001 / rate, "frames_indices": list(indices),
        }  # fmt: skip
        question = f"{frames} frames {height}×{width} {settings}"
        try:
            answer = judge.ask(
                model, judge.build_processor(model), frames=frames, height=height, width=width,
                metadata=metadata, do_sample_frames=False,
            )  # fmt: skip
        except Exception as refusal:  # noqa: BLE001 - whatever the library refuses, so must the closed form
            with pytest.raises((CourseError, ZeroDivisionError)):
                print(question, repr(refusal), video_grid(family, settings, frames=frames, height=height, width=width))
            continue
        answered += 1
        grid = video_grid(family, settings, frames=frames, height=height, width=width)
        assert grid.visual_tokens == answer.visual_tokens, question
        if answer.thw is not None:
            assert grid.thw == answer.thw, question
        if answer.height is not None:
            assert (grid.height, grid.width) == (answer.height, answer.width), question
        text = clip_text(family, settings, [index / rate for index in indices], 100_001 / rate)
        assert not text.labels or all(label in answer.text for label in text.labels), question
        assert len(text.labels) in (0, grid.thw[0])
    assert answered > CLIPS * 0.6


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen2_vl", "internvl", "llava_onevision", "gemma4", "smolvlm2"])
def test_sampled_indices_equal_the_real_processors(name):
    from transformers.video_utils import VideoMetadata, default_sample_indices_fn

    family, rng, answered = BY_NAME[name], random.Random(f"{name}-7"), 0
    whole_steps = default_sample_indices_fn(VideoMetadata(total_num_frames=10), num_frames=6)[-1] == 5
    if name in ("llava_onevision", "gemma4") and whole_steps:
        pytest.skip("this transformers steps by whole frames and misses the end of the clip; later ones do not")
    processor = judge.processor_class(family)()
    for _ in range(CLIPS):
        total, rate = rng.randint(1, 5000), rng.choice([1.0, 5.0, 23.976, 29.97, 30.00003, 60.0, None])
        duration = total / (rate or 24.0)
        num_frames = rng.choice([None, rng.randint(1, 64)])
        fps = None if num_frames is not None else rng.choice([None, 0.5, 1, 2, 3.3])
        limits = {"min_frames": rng.choice([1, 2, 4, 16]), "max_frames": rng.choice([6, 33, 768])}
        for limit, value in limits.items():
            setattr(processor, limit, value)
        # The processor's own rate stands in where the call gives none, as it does in a real call.
        own_fps = fps if fps is not None or num_frames is not None else getattr(processor, "fps", None)
        if name == "smolvlm2":
            num_frames, fps, own_fps = num_frames or 32, fps or 1, fps or 1
        metadata = VideoMetadata(total_num_frames=total, fps=rate, duration=duration)
        question = f"{total} at {rate}: num_frames {num_frames} fps {fps} {limits}"
        own = {"num_frames": num_frames, "fps": own_fps}

        def ours(total=total, rate=rate, own=own, num_frames=num_frames, fps=fps, limits=limits, duration=duration):
            if name == "qwen3_vl":
                return sampling.qwen3_indices(total, rate, **own, **limits)
            if name == "qwen2_vl":
                return sampling.qwen2_indices(total, rate, **own, **limits)
            if name == "internvl":
                return sampling.middle_indices(total, rate, **own)
            if name == "smolvlm2":
                return sampling.smolvlm_indices(total, rate, **own, duration_seconds=duration)
            # A number set on the processor (Gemma 4: 32) outranks the call's fps.
            return sampling.even_indices(total, rate, num_frames=num_frames or processor.num_frames, fps=fps)

        arguments = {"num_frames": num_frames, "fps": fps} | (limits if name == "qwen2_vl" else {})
        try:
            theirs = np.asarray(processor.sample_frames(metadata, **arguments)).tolist()
        except (ValueError, TypeError, ZeroDivisionError):
            with pytest.raises((CourseError, ZeroDivisionError)):
                print(question, ours())
            continue
        answered += 1
        assert ours().tolist() == theirs, question
    assert answered > CLIPS * 0.4


def test_the_practitioners_log():
    qwen3 = BY_NAME["qwen3_vl"]
    clip = {"height": 1152, "width": 640}
    assert video_grid(qwen3, qwen3.settings, frames=8, **clip).thw == (4, 72, 40)
    assert video_grid(qwen3, qwen3.settings, frames=32, **clip).visual_tokens == 11_520
    capped = replace(qwen3.settings, shortest_edge=128 * 1024 * 32, longest_edge=196 * 1024 * 32)
    assert video_grid(qwen3, capped, frames=32, **clip).thw == (16, 36, 20)


def test_one_size_means_a_frame_to_qwen2_and_the_whole_video_to_qwen3():
    tokens = {}
    for name in ("qwen2_vl", "qwen3_vl"):
        family = BY_NAME[name]
        # The limit of the public report; the floor is each class's own, as in its default size.
        low = 128 * family.settings.factor**2
        settings = replace(family.settings, shortest_edge=low, longest_edge=200_704)
        tokens[name] = video_grid(family, settings, frames=8, height=1152, width=640).visual_tokens
    assert tokens == {"qwen2_vl": 924, "qwen3_vl": 72}


def test_the_per_frame_cap_can_raise_the_cost_under_class_defaults():
    qwen3 = BY_NAME["qwen3_vl"]
    default = replace(qwen3.settings, shortest_edge=128 * 32 * 32, longest_edge=768 * 32 * 32)
    uncapped = video_grid(qwen3, default, frames=8, height=1152, width=640)
    capped = video_grid(qwen3, replace(default, cap_pixels_per_frame=True), frames=8, height=1152, width=640)
    assert (uncapped.thw, capped.thw) == ((4, 26, 14), (4, 30, 16))


def test_ninety_seconds_of_1080p_cost_what_the_public_report_says():
    omni = BY_NAME["qwen3_omni"]
    open_limits = replace(omni.settings, shortest_edge=3136, longest_edge=12_845_056)
    assert video_grid(omni, open_limits, frames=180, height=1080, width=1920).visual_tokens == 183_600


def test_32_frames_without_metadata_are_resampled_to_four():
    qwen3 = BY_NAME["qwen3_vl"]
    indices = sampling.qwen3_indices(32, None, num_frames=None, fps=2, min_frames=4, max_frames=768)
    assert len(indices) == 4
    assert video_grid(qwen3, qwen3.settings, frames=4, height=576, width=320).visual_tokens == 360
    assert video_grid(qwen3, qwen3.settings, frames=32, height=576, width=320).visual_tokens == 2880


def test_one_frame_is_refused_by_qwen3_and_padded_by_qwen2():
    with pytest.raises(CourseError, match="fewer than one temporal patch"):
        video_grid(BY_NAME["qwen3_vl"], BY_NAME["qwen3_vl"].settings, frames=1, height=64, width=64)
    assert video_grid(BY_NAME["qwen2_vl"], BY_NAME["qwen2_vl"].settings, frames=1, height=64, width=64).thw[0] == 1
