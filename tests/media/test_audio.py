"""Sound of any kind becomes 16 kHz mono float; what is wrong with a file is said in one line."""

import struct
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import CourseError
from course_lib.media.audio import load_audio, read_sound

sys.path.insert(0, str(Path(__file__).parent))
from clips import write_clip


def tone(seconds: float, rate: int, hertz: float = 440.0, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def loudest_hertz(samples: np.ndarray, rate: int) -> float:
    return float(np.fft.rfftfreq(len(samples), 1 / rate)[np.abs(np.fft.rfft(samples)).argmax()])


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000, 96000])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_any_rate_and_channels_keep_pitch_level_and_length(tmp_path, rate, channels):
    path = tmp_path / "t.wav"
    soundfile.write(path, np.repeat(tone(1.0, rate)[:, None], channels, axis=1), rate)
    sound = read_sound(path)
    assert (sound.samples.dtype, sound.samples.ndim, sound.sample_rate) == (np.float32, 1, 16000)
    assert abs(len(sound.samples) - 16000) <= 1
    assert loudest_hertz(sound.samples, 16000) == pytest.approx(440, abs=1.5)
    assert np.abs(sound.samples[1000:-1000]).max() == pytest.approx(0.5, abs=0.02)
    assert (sound.source_rate, sound.source_channels, sound.findings) == (rate, channels, ())


@pytest.mark.parametrize(
    ("name", "subtype"),
    [("a.wav", "PCM_U8"), ("a.wav", "PCM_16"), ("a.wav", "PCM_24"), ("a.wav", "PCM_32"), ("a.wav", "FLOAT"),
     ("a.wav", "DOUBLE"), ("a.wav", "ULAW"), ("a.flac", "PCM_16"), ("a.ogg", "VORBIS"), ("a.mp3", "MPEG_LAYER_III")],
)  # fmt: skip
def test_any_sample_format_gives_the_same_sound(tmp_path, name, subtype):
    soundfile.write(tmp_path / name, tone(1.0, 16000), 16000, subtype=subtype)
    samples = load_audio(tmp_path / name)
    assert loudest_hertz(samples, 16000) == pytest.approx(440, abs=2)
    assert np.abs(samples[2000:-2000]).max() == pytest.approx(0.5, abs=0.03)


def test_the_duration_cap_is_kept_and_reported_and_little_is_read(tmp_path):
    path = tmp_path / "long.wav"
    soundfile.write(path, tone(600.0, 16000), 16000)
    started = time.monotonic()
    sound = read_sound(path, max_duration=2.5)
    assert time.monotonic() - started < 1.0
    assert len(sound.samples) == 40_000
    assert sound.source_seconds == 600
    assert sound.findings == ("cut to its first 2.5 s of 600.00 s",)
    assert len(load_audio(path)) == 160_000
    assert len(read_sound(path, max_duration=None).samples) == 9_600_000


@pytest.mark.parametrize(
    ("samples", "finding"),
    [
        (np.zeros(16000, np.float32), "silent"),
        (tone(1.0, 16000, level=0.0005), "silent"),
        (np.clip(tone(1.0, 16000, level=3.0), -1, 1), "clipped"),
        (np.stack([tone(1.0, 16000), -tone(1.0, 16000)], axis=1), "cancel"),
    ],
)
def test_what_is_wrong_with_readable_sound_is_a_finding(tmp_path, samples, finding):
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    assert finding in " ".join(read_sound(tmp_path / "a.wav").findings)


def test_ordinary_speech_levels_have_no_finding(tmp_path):
    samples = tone(1.0, 16000, level=0.05)
    samples[8000] = 1.0  # one full-scale sample is no clipping
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    assert read_sound(tmp_path / "a.wav").findings == ()


def _bad_files(folder):
    soundfile.write(folder / "nan.wav", np.array([0.1, np.nan, np.inf, 0.2], np.float32), 16000, subtype="FLOAT")
    soundfile.write(folder / "no_samples.wav", np.empty(0, np.float32), 16000)
    (folder / "empty.wav").write_bytes(b"")
    (folder / "text.wav").write_text("not a sound " * 30)
    soundfile.write(folder / "whole.flac", np.random.default_rng(0).normal(0, 0.1, 160_000), 16000)
    flac = (folder / "whole.flac").read_bytes()
    (folder / "cut.flac").write_bytes(flac[: len(flac) // 3])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nan.wav", "holds 2 NaN or infinite samples, the first at 0.000 s"),
        ("no_samples.wav", "holds no samples"),
        ("empty.wav", "is empty"),
        ("text.wav", "is no sound file"),
        ("cut.flac", "lost sync"),
        ("missing.wav", "no such file"),
        ("", "is a folder"),
    ],
)
def test_a_bad_file_gives_one_line_with_path_and_reason(tmp_path, name, reason):
    _bad_files(tmp_path)
    with pytest.raises(CourseError) as caught:
        read_sound(tmp_path / name)
    line = str(caught.value)
    assert reason in line
    assert str(tmp_path / name) in line
    assert "\n" not in line


def _with_promised_bytes(path, promised: int) -> None:
    content = bytearray(path.read_bytes())
    content[40:44], content[4:8] = struct.pack("<I", promised), struct.pack("<I", min(promised + 36, 2**32 - 1))
    path.write_bytes(content)


def test_a_wav_that_promises_hours_is_truncated_and_does_not_ask_for_the_memory(tmp_path):
    path = tmp_path / "boast.wav"
    soundfile.write(path, tone(1.0, 16000), 16000)
    _with_promised_bytes(path, 2_000_000_000)
    with pytest.raises(CourseError, match=r"is truncated: its header promises 62500\.00 s, it holds 1\.00 s"):
        read_sound(path, max_duration=None)
    assert len(load_audio(path, max_duration=0.5)) == 8000


@pytest.mark.parametrize("unknown", [0x7FFFFFFF, 0xFFFFFFFF])
def test_a_wav_written_to_a_pipe_has_no_promise_to_break(tmp_path, unknown):
    path = tmp_path / "pipe.wav"
    soundfile.write(path, tone(1.0, 16000), 16000)
    _with_promised_bytes(path, unknown)
    assert len(load_audio(path)) == 16000


def test_a_wav_cut_in_half_is_truncated(tmp_path):
    path = tmp_path / "cut.wav"
    soundfile.write(path, tone(2.0, 16000), 16000)
    path.write_bytes(path.read_bytes()[:32_000])
    with pytest.raises(CourseError, match=r"is truncated: its header promises 2\.00 s"):
        load_audio(path)


def _clip_with_sound(path, seconds: float) -> None:
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=10)
        picture.width, picture.height, picture.pix_fmt = 64, 48, "yuv420p"
        picture.options = {"preset": "ultrafast"}
        sound = container.add_stream("aac", rate=44100, layout="stereo")
        for _ in range(round(seconds * 10)):
            frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            container.mux(picture.encode(frame.reformat(format="yuv420p")))
        container.mux(picture.encode(None))
        both = np.repeat(tone(seconds, 44100)[None], 2, axis=0)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(both), format="fltp", layout="stereo")
        frame.sample_rate = 44100
        container.mux(sound.encode(frame))
        container.mux(sound.encode(None))


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.mov"])
def test_the_track_of_a_video_is_read_too(tmp_path, name):
    _clip_with_sound(tmp_path / name, 2.0)
    sound = read_sound(tmp_path / name, max_duration=1.5)
    assert len(sound.samples) == 24_000
    assert loudest_hertz(sound.samples, 16000) == pytest.approx(440, abs=2)
    assert (sound.source_rate, sound.source_channels) == (44100, 2)
    assert sound.source_seconds == pytest.approx(2.0, abs=0.1)
    assert sound.findings[0].startswith("cut to its first 1.5 s of")


def test_a_video_without_a_sound_track_is_one_line(tmp_path):
    path = write_clip(tmp_path / "mute.mp4", frames=5)
    with pytest.raises(CourseError, match=f"{path}: has no audio track"):
        load_audio(path)


def test_a_file_too_short_for_one_sample_is_refused(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(1, 0.5, np.float32), 44100)
    with pytest.raises(CourseError, match="is shorter than one sample at 8000 Hz"):
        load_audio(tmp_path / "a.wav", sample_rate=8000)


@given(
    rate=st.sampled_from([8000, 12345, 16000, 44100]),
    count=st.integers(100, 30_000),
    target=st.sampled_from([8000, 16000, 24000]),
)
@settings(max_examples=40, deadline=None)
def test_length_follows_the_rates(tmp_path_factory, rate, count, target):
    path = tmp_path_factory.mktemp("l") / "a.wav"
    soundfile.write(path, np.full(count, 0.25, np.float32), rate, subtype="FLOAT")
    samples = load_audio(path, sample_rate=target, max_duration=60.0)
    assert abs(len(samples) - count * target / rate) <= 1.0
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() <= 1.0


def test_importing_the_module_loads_nothing_heavy():
    code = "import sys, course_lib.media.audio; print({'numpy', 'soundfile', 'soxr', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
