"""qwen-vl-utils by arithmetic: the reported cases, and the package itself where it is installed."""

import random

import pytest

from course_lib.errors import CourseError
from course_lib.tokens import fetch_video, sampling
from course_lib.tokens.families import video_model
from course_lib.tokens.fetch_video import fetched_size, frame_limits, frame_list_size
from course_lib.tokens.routes import Bench, Probe

PORTRAIT = {"height": 1152, "width": 640}


def per_frame(factor: int = 32, **limits) -> int:
    size = fetched_size(**PORTRAIT, limits=frame_limits(32, factor=factor, **limits), factor=factor)
    return size[0] * size[1] // factor**2


def test_the_practitioners_cap():
    assert per_frame(max_tokens=196) * 16 == 2880


def test_a_cap_of_64_with_the_floor_left_at_128_gives_120():
    assert per_frame(max_tokens=64) == 120
    assert frame_limits(32, factor=32, max_tokens=64).limited_by == "min_tokens_per_frame"
    assert per_frame(max_tokens=64, min_tokens=16) == 50


def test_a_total_of_1024_over_32_frames_gives_1920():
    assert per_frame(total_tokens=1024) * 16 == 1920


def test_a_total_is_half_of_what_the_processor_calls_by_that_number():
    # total_pixels = N · 32² there is longest_edge = 2 · N · 32² in transformers: a pair of frames is one step.
    limits = frame_limits(32, factor=32, total_tokens=4096, min_tokens=4)
    assert limits.max_pixels * 32 == 2 * 4096 * 32**2


def test_a_frame_list_is_rounded_to_twice_the_factor():
    limits = frame_limits(8, factor=32)
    assert fetched_size(864, 480, limits, factor=32) == (864, 480)
    assert frame_list_size(864, 480, limits, factor=32) == (896, 512)


def test_an_own_max_pixels_can_only_lower_the_cap():
    assert frame_limits(8, factor=32, max_pixels=10**9).limited_by == "max_tokens_per_frame"
    assert frame_limits(8, factor=32, max_pixels=200_704).max_pixels == 200_704


def test_limits_that_cross_are_refused_as_the_package_does():
    with pytest.raises(CourseError, match="max_pixels 1000 is below min_pixels"):
        fetched_size(480, 640, frame_limits(8, factor=32, max_pixels=1000), factor=32)


def test_ten_seconds_at_30_00003_fps_are_18_frames():
    assert sampling.fetch_video_frames(300, 30.00003, fps=2) == 18
    assert sampling.fetch_video_frames(300, 30.0, fps=2) == 20


def test_a_window_starts_at_the_first_frame_inside():
    assert sampling.fetch_video_window(300, 30.00003, 4.0, 8.0)[0] == 121


def test_the_environment_report_says_which_variables_are_never_read():
    report = {line["variable"]: line for line in fetch_video.environment_report({"VIDEO_MAX_TOKEN_NUM": "64"})}
    assert report["VIDEO_MAX_TOKEN_NUM"]["value"] == "64"
    assert report["VIDEO_MAX_TOKEN_NUM"]["read"] == "never"
    assert report["MODEL_SEQ_LEN"]["read"] != "never"


@pytest.mark.parametrize("name", ["qwen2.5-vl-7b", "qwen3-vl-4b"])
def test_the_package_itself_agrees(name):
    pytest.importorskip("qwen_vl_utils")
    rng, model, answered = random.Random(name), video_model(name), 0
    factor = model.settings.factor
    with Bench(model) as bench:
        for _ in range(200):
            probe = Probe(
                frames=rng.randint(4, 2000), rate=rng.choice([5.0, 24.0, 29.97, 30.00003]),
                height=rng.randint(10, 2200), width=rng.randint(10, 2200),
            )  # fmt: skip
            element, limits = {}, {}
            if rng.random() < 0.5:
                tokens = rng.choice([4, 16, 64, 300])
                element["min_pixels"], limits["min_tokens"] = tokens * factor**2, tokens
            if rng.random() < 0.5:
                tokens = rng.choice([256, 1024, 20_000])
                element["total_pixels"], limits["total_tokens"] = tokens * factor**2, tokens
            if rng.random() < 0.5:
                element["max_pixels"] = limits["max_pixels"] = rng.randint(1, 2_000_000)
            sample = rng.choice([{}, {"fps": rng.choice([0.5, 1, 2.5])}, {"nframes": rng.randint(2, 40)}])
            sample |= rng.choice([{}, {"min_frames": 8}, {"max_frames": 12}]) if "nframes" not in sample else {}
            seen = bench.observe("qwen_vl_utils", {**element, **sample}, probe)
            try:
                frames = sampling.fetch_video_frames(probe.frames, probe.rate, **sample)
                size = fetched_size(
                    probe.height, probe.width, frame_limits(frames, factor=factor, **limits), factor=factor
                )
            except CourseError:
                assert seen.error, (element, sample, probe)
                continue
            if 0 in size:
                assert seen.error or seen.visual_tokens == 0
                continue
            answered += 1
            assert (seen.frames, seen.height) == (frames, size[0]), (element, sample, probe, seen.error)
            assert seen.visual_tokens == -(-frames // 2) * size[0] * size[1] // factor**2
    assert answered > 100


def test_the_frame_list_route_of_the_package_agrees():
    vision = pytest.importorskip("qwen_vl_utils.vision_process")
    image = pytest.importorskip("PIL.Image")
    for height, width in ((864, 480), (480, 864), (200, 333), (1080, 1920)):
        clip = vision.fetch_video({"video": [image.new("RGB", (width, height))] * 4}, image_patch_size=16)
        assert tuple(clip.shape[-2:]) == frame_list_size(height, width, frame_limits(4, factor=32), factor=32)
