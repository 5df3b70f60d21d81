"""Sound of a real file as 16 kHz mono float32, with what is wrong with it said aloud.

Any rate, any number of channels, 8-bit to float: libsndfile reads (wav, flac, ogg, mp3, aiff …), soxr resamples. The
track of a video file is read by the same child process as its frames (video.py).
Not here: tokens of speech (tokens/).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.errors import FINDING, CourseError

if TYPE_CHECKING:
    import numpy as np
    import soundfile

SILENCE_PEAK = 10 ** (-60 / 20)
"""Below -60 dBFS everywhere a clip is called silent: 16-bit speech peaks 40 dB above that."""
CLIPPED_LEVEL = 0.999
CLIPPED_SHARE = 0.001
"""More than one sample in a thousand at full scale is clipping; single full-scale samples are loud music."""
BLOCK_FRAMES = 1 << 18
CONTAINERS = (".mp4", ".m4a", ".mov", ".mkv", ".webm", ".ts", ".avi", ".aac", ".3gp", ".flv", ".wma")
"""What libsndfile does not open."""
_UNKNOWN_LENGTH = 0x7FFF_0000
"""A WAV written to a pipe has a length near 2 or 4 GiB in its header: not a promise, the writer could not know."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sound:
    """One file's sound. `findings` are sentences; an empty tuple means nothing is wrong with it."""

    path: Path
    samples: "np.ndarray"
    """float32 (n,), mono, at `sample_rate`; never NaN, within -1 to 1."""
    sample_rate: int
    duration_seconds: float
    source_rate: int
    source_channels: int
    source_seconds: float
    """Length of the whole file, also when only its beginning was kept."""
    findings: tuple[str, ...]


def read_sound(audio_path: Path | str, sample_rate: int = 16000, max_duration: float | None = 10.0) -> Sound:
    """Read the first `max_duration` seconds (None: all) as mono float32 at `sample_rate`.

    A clip that is clipped, silent, or cut by the cap is returned with a finding. Raises CourseError with path and
    reason for a file that is missing, empty, no sound file, without samples, or holds NaN or infinite samples.
    """
    import numpy as np

    if sample_rate < 1 or (max_duration is not None and not max_duration > 0):
        raise CourseError(f"sample_rate and max_duration must be above 0, got {sample_rate} and {max_duration}")
    path = Path(audio_path)
    channels, rate, total = _read(path, max_duration)
    if not len(channels):
        raise _bad(path, "holds no samples")
    broken = ~np.isfinite(channels)
    if broken.any():
        first = int(np.flatnonzero(broken.any(axis=1))[0])
        raise _bad(path, f"holds {int(broken.sum())} NaN or infinite samples, the first at {first / rate:.3f} s")
    findings = _findings(channels, rate, total, max_duration)
    samples = _resampled(channels.mean(axis=1, dtype=np.float32), rate, sample_rate)
    if not len(samples):
        raise _bad(path, f"is shorter than one sample at {sample_rate} Hz")
    return Sound(
        path=path,
        samples=np.clip(samples, -1.0, 1.0),
        sample_rate=sample_rate,
        duration_seconds=len(samples) / sample_rate,
        source_rate=rate,
        source_channels=channels.shape[1],
        source_seconds=total / rate,
        findings=tuple(findings),
    )


def load_audio(audio_path: Path | str, sample_rate: int = 16000, max_duration: float = 10.0) -> "np.ndarray":
    """At most `max_duration` seconds of a file as mono float32 (n,) at `sample_rate`; `read_sound` without findings."""
    return read_sound(audio_path, sample_rate, max_duration).samples


def _read(path: Path, max_duration: float | None) -> tuple["np.ndarray", int, int]:
    """float32 (frames, channels), the rate, and the frames of the whole file; only what is needed is read."""
    import numpy as np
    import soundfile

    if not path.is_file():
        raise CourseError("is a folder" if path.is_dir() else "cannot be read (no such file)", where=str(path))
    if path.stat().st_size == 0:
        raise _bad(path, "is empty")
    if path.suffix.lower() in CONTAINERS:
        from course_lib.media.video import FrameReader

        with FrameReader() as reader:
            samples, rate, seconds = reader.sound(path, max_duration)
        return samples, rate, max(round(seconds * rate), len(samples))
    blocks: list[np.ndarray] = []
    try:
        with soundfile.SoundFile(path) as file:
            rate, channels, total = file.samplerate, file.channels, file.frames + _missing_frames(file)
            wanted = total if max_duration is None else min(round(max_duration * rate), total)
            left = wanted
            # In blocks: a header that promises hours of a short file would otherwise ask for all that memory at once.
            while left > 0 and len(block := file.read(min(left, BLOCK_FRAMES), dtype="float32", always_2d=True)):
                blocks.append(block)
                left -= len(block)
    except (soundfile.SoundFileError, ValueError, TypeError) as error:
        raise _bad(path, f"is no sound file that can be read ({str(error).split(': ')[-1].strip()})") from None
    samples = np.concatenate(blocks) if blocks else np.empty((0, channels), dtype=np.float32)
    if 0 < len(samples) < wanted:
        held = len(samples) / rate
        raise _bad(path, f"is truncated: its header promises {total / rate:.2f} s, it holds {held:.2f} s")
    return samples, rate, total


def _missing_frames(file: "soundfile.SoundFile") -> int:
    """Frames that a WAV header promises beyond the end of the file; libsndfile shortens such a file silently."""
    match = re.search(r"^data : (\d+) \(should be (\d+)\)", file.extra_info, re.MULTILINE)
    width = re.search(r"Block Align\s*: (\d+)", file.extra_info)
    if not (match and width):
        return 0
    promised, held = int(match[1]), int(match[2])
    return 0 if promised >= _UNKNOWN_LENGTH else max(promised - held, 0) // max(int(width[1]), 1)


def _resampled(mono: "np.ndarray", rate: int, sample_rate: int) -> "np.ndarray":
    if rate == sample_rate:
        return mono
    import soxr

    return soxr.resample(mono, rate, sample_rate, quality="HQ")


def _findings(channels: "np.ndarray", rate: int, total: int, max_duration: float | None) -> list[str]:
    import numpy as np

    found, level = [], np.abs(channels)
    if len(channels) < total:
        found.append(f"cut to its first {max_duration:g} s of {total / rate:.2f} s")
    if level.max() < SILENCE_PEAK:
        found.append("silent: no sample above -60 dBFS")
    share = float((level >= CLIPPED_LEVEL).any(axis=1).mean())
    if share > CLIPPED_SHARE:
        found.append(f"clipped: {share:.1%} of its samples are at full scale")
    if channels.shape[1] > 1 and level.max() >= SILENCE_PEAK:
        mixed = float(np.abs(channels.mean(axis=1)).max())
        if mixed < 0.1 * float(level.max()):
            found.append("its channels cancel each other: mixed to mono almost nothing is left")
    return found


def _bad(path: Path, reason: str) -> CourseError:
    return CourseError(reason, where=str(path), fix="Re-encode the file or leave it out", exit_code=FINDING)
