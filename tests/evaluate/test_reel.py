"""The reel, decoded again: what is kept is bright, what is cut is dim, and the bars stand where the seconds are."""

import resource

import numpy as np
import pytest

from course_lib.errors import CourseError
from course_lib.evaluate.reel import (
    ANSWER_TOP,
    BAR_HEIGHT,
    BAR_LEFT,
    BAR_RIGHT,
    FRAMES_PER_SECOND,
    HEIGHT,
    MAX_REEL_BYTES,
    TRUTH_TOP,
    WIDTH,
    ReelClip,
    reel_pictures,
    write_reel,
)

SECONDS = 8.0


def make_clip(truth=((1.0, 3.0),), answer=((2.0, 6.0),), *, height=32, width=32, level=200, **changes):
    count = 16
    values = {
        "frames": np.full((count, height, width, 3), level, dtype=np.uint8),
        "timestamps": [index * SECONDS / count for index in range(count)],
        "seconds": SECONDS,
        "truth": truth,
        "answer": answer,
        "caption": "When is it there?",
    }
    return ReelClip(**(values | changes))


def grey(picture):
    return np.asarray(picture.convert("L")).astype(int)


def middle_brightness(picture):
    """Mean of the picture's middle, where the clip's frame is."""
    return grey(picture)[150:210, 210:270].mean()


def times_of(pictures, seconds=SECONDS):
    return [(index + 0.5) / len(pictures) * seconds for index in range(len(pictures))]


def column(time, seconds=SECONDS):
    return round(BAR_LEFT + time / seconds * (BAR_RIGHT - BAR_LEFT))


def test_what_the_answer_keeps_is_bright_and_the_rest_dim():
    pictures = list(reel_pictures([make_clip()]))
    for time, picture in zip(times_of(pictures), pictures, strict=True):
        if 2.0 <= time < 6.0:
            assert middle_brightness(picture) == pytest.approx(200, abs=2)
        else:
            assert middle_brightness(picture) < 80


def test_an_answer_that_cannot_be_read_keeps_nothing():
    pictures = list(reel_pictures([make_clip(usable=False)]))
    assert max(map(middle_brightness, pictures)) < 80


def test_the_truth_is_a_solid_bar_at_its_seconds():
    row = grey(next(reel_pictures([make_clip(truth=[(1.0, 3.0), (5.0, 7.0)], answer=[])])))[TRUTH_TOP + BAR_HEIGHT // 2]
    for start, end in ((1.0, 3.0), (5.0, 7.0)):
        assert row[column(start) + 1 : column(end)].min() > 200
    for start, end in ((0.5, 1.0), (3.0, 5.0), (7.0, 8.0)):
        assert row[column(start) + 2 : column(end) - 2].max() < 60


def test_the_answer_is_a_striped_bar_at_its_seconds_that_differs_without_colour():
    picture = grey(next(reel_pictures([make_clip(truth=[], answer=[(2.0, 6.0)])])))
    row = picture[ANSWER_TOP + BAR_HEIGHT // 2]
    inside = row[column(2.0) + 3 : column(6.0) - 3]
    stripes = np.count_nonzero(np.diff((inside > 100).astype(int)))
    assert stripes > 20
    assert row[column(1.0) : column(2.0) - 2].max() < 60
    assert row[column(6.0) + 2 : column(7.5)].max() < 60
    # The truth's bar at the same seconds has no stripes at all.
    truth = grey(next(reel_pictures([make_clip(truth=[(2.0, 6.0)], answer=[])])))[TRUTH_TOP + BAR_HEIGHT // 2]
    assert np.count_nonzero(np.diff((truth[column(2.0) + 3 : column(6.0) - 3] > 100).astype(int))) == 0


def test_the_cursor_moves_with_time():
    pictures = list(reel_pictures([make_clip(truth=[], answer=[])]))
    for time, picture in zip(times_of(pictures), pictures, strict=True):
        row = grey(picture)[ANSWER_TOP + BAR_HEIGHT // 2]
        assert abs(int(row.argmax()) - column(time)) <= 1


def test_a_frame_is_shown_from_its_own_timestamp_on_also_at_a_variable_rate():
    frames = np.stack([np.full((32, 32, 3), level, dtype=np.uint8) for level in (50, 120, 240)])
    clip = make_clip(answer=[(0.0, 8.0)], frames=frames, timestamps=[0.0, 5.0, 5.5])
    pictures = list(reel_pictures([clip]))
    for time, picture in zip(times_of(pictures), pictures, strict=True):
        expected = 50 if time < 5.0 else 120 if time < 5.5 else 240
        assert middle_brightness(picture) == pytest.approx(expected, abs=2)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (64, 48), (1152, 640), (360, 640), (31, 33), (8, 200)])
def test_any_frame_is_enlarged_to_at_least_256_pixels(height, width):
    pictures = reel_pictures([make_clip(answer=[(0.0, 8.0)], height=height, width=width, level=180)])
    picture = grey(next(pictures))
    assert picture.shape == (HEIGHT, WIDTH)
    inside = np.abs(picture[:330] - 180) <= 3
    assert max(inside.sum(axis=0).max(), inside.sum(axis=1).max()) >= 256


def test_the_film_can_be_played_and_lasts_as_long_as_asked(tmp_path):
    import av

    path = write_reel(tmp_path / "out" / "after.mp4", [make_clip(), make_clip(level=90)], seconds_per_clip=2.0)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        decoded = [frame.to_image() for frame in container.decode(stream)]
        assert float(stream.duration * stream.time_base) == pytest.approx(4.0, abs=0.2)
    assert len(decoded) == 4 * FRAMES_PER_SECOND
    expected = list(reel_pictures([make_clip(), make_clip(level=90)], seconds_per_clip=2.0))
    for got, drawn in zip(decoded, expected, strict=True):
        assert middle_brightness(got) == pytest.approx(middle_brightness(drawn), abs=8)
    assert path.stat().st_size <= MAX_REEL_BYTES
    assert [entry.name for entry in path.parent.iterdir()] == ["after.mp4"]


def test_noise_the_worst_case_stays_below_the_size_limit(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (24, 288, 456, 3), dtype=np.uint8)
    clip = make_clip(answer=[(0.0, 8.0)], frames=noise, timestamps=[index / 3 for index in range(24)])
    path = write_reel(tmp_path / "noise.mp4", [clip] * 6)
    assert path.stat().st_size <= MAX_REEL_BYTES


def test_a_failure_leaves_the_older_film_and_nothing_else(tmp_path):
    path = write_reel(tmp_path / "after.mp4", [make_clip()], seconds_per_clip=0.5)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="timestamps"):
        write_reel(path, [make_clip(), make_clip(timestamps=[0.0])], seconds_per_clip=0.5)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["after.mp4"]


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CourseError, match="cannot write"):
        write_reel(tmp_path / "file" / "after.mp4", [make_clip()])


def test_a_disk_that_fills_up_while_writing_leaves_nothing_behind(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (4, 288, 456, 3), dtype=np.uint8)
    clip = make_clip(answer=[(0.0, 8.0)], frames=noise, timestamps=[0.0, 2.0, 4.0, 6.0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files stands in for the full disk: the write fails in the same place.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(CourseError, match="cannot write"):
            write_reel(tmp_path / "after.mp4", [clip])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_no_clips_are_one_clear_line(tmp_path):
    with pytest.raises(CourseError, match="at least one clip"):
        write_reel(tmp_path / "after.mp4", [])


@pytest.mark.parametrize(
    "frames", [np.zeros((4, 8, 8), np.uint8), np.zeros((4, 8, 8, 3)), np.zeros((0, 8, 8, 3), np.uint8)]
)
def test_frames_of_another_shape_are_refused(frames):
    with pytest.raises(ValueError, match="must be uint8"):
        next(reel_pictures([make_clip(frames=frames)]))


def test_a_long_caption_stays_in_the_picture():
    picture = grey(next(reel_pictures([make_clip(caption="a very long question " * 20)])))
    assert picture[8:30, 400:412].max() < 60
