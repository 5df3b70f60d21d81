"""Frames of a real file at real times, decoded in a child process that can be killed.

decord is unmaintained and can hang in native code with the interpreter lock held, so no time limit inside the process
would help: every FrameReader owns one child (decode_worker.py) and ends it when it stops making progress.
Not here: which frames a model wants (tokens/), windows of annotated clips (data/).
"""

import contextlib
import json
import os
import select
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from course_lib.errors import FINDING, CourseError

if TYPE_CHECKING:
    import numpy as np

Backend = Literal["decord", "pyav"]
WORKER = Path(__file__).with_name("decode_worker.py")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class VideoInfo:
    """What a video file really holds. `frames == len(timestamps_seconds)`."""

    path: Path
    width: int
    """As displayed: after the rotation that the file asks for."""
    height: int
    frames: int
    duration_seconds: float
    """End of the last frame, counted from the start of the file."""
    average_fps: float
    """What the container says; for a variable rate it places no frame (use the timestamps)."""
    rotation_degrees: int
    """Clockwise turn that the file asks for (0, 90, 180, 270); already applied to width, height and frames."""
    has_audio: bool
    timestamps_seconds: "np.ndarray"
    """Presentation time of each frame, float64 (frames,), ascending."""


class FrameReader:
    """Reads videos in one persistent child process; a context manager.

    Args:
        timeout_seconds: a request that makes no progress for so long ends with the child killed and a CourseError.
        backend: "decord" (PyAV takes over where decord has no wheel, no codec, or gives up) or "pyav" (PyAV alone).

    The child starts with the first request, in a fresh interpreter: it inherits no torch, gloo or CUDA state.
    It ends with `close()`, with this process, and by itself when this process is killed. After a fork (DataLoader
    workers) each process gets its own child. One request at a time per reader; threads wait for each other.
    """

    def __init__(self, timeout_seconds: float = 20.0, backend: Backend = "decord") -> None:
        if timeout_seconds <= 0:
            raise CourseError(f"timeout_seconds must be positive, got {timeout_seconds}")
        if backend not in ("decord", "pyav"):
            raise CourseError(f"unknown backend {backend!r}", fix="Known: decord, pyav")
        self.timeout_seconds, self.backend = timeout_seconds, backend
        self._child: subprocess.Popen | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._info: VideoInfo | None = None
        self._info_key: tuple | None = None
        self._open_answer = False

    def __enter__(self) -> "FrameReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        # Sent to another process (spawned DataLoader workers) it is a new reader with the same settings.
        return {"timeout_seconds": self.timeout_seconds, "backend": self.backend}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def close(self) -> None:
        """End the child and wait for it. The reader can be used again: the next request starts a new one."""
        child, self._child = self._child, None
        if child is None:
            return
        if self._owner == os.getpid():
            child.kill()
            child.wait()
        child.stdin.close()
        child.stdout.close()

    def info(self, path: Path | str) -> VideoInfo:
        """Size, rate and the real timestamps of a file; its first frame is decoded, the others are not.

        Raises CourseError (one line: path and reason) for a file that is missing, empty, audio only, truncated,
        shorter than its header says, or that hangs the decoder.
        """
        import numpy as np

        path, key = _regular_file(path)
        if key == self._info_key and self._info is not None:
            return self._info
        with self._exchange():
            answer = self._ask(path, {"do": "info"})
            times = np.empty(answer.pop("timestamps"), dtype=np.float64)
            self._fill(path, times)
        times.flags.writeable = False
        self._info, self._info_key = VideoInfo(path=path, timestamps_seconds=times, **answer), key
        return self._info

    def frames(self, path: Path | str, indices: Sequence[int]) -> "np.ndarray":
        """Frames at `indices` (any order, repeats allowed) as RGB uint8 (T, H, W, 3), rotation applied.

        Raises CourseError for an index outside the file and for everything that `info` refuses or that does not
        decode; a file is never padded with other frames.
        """
        import numpy as np

        info = self.info(path)
        wanted = np.asarray(indices)
        if wanted.size == 0 or wanted.ndim != 1 or wanted.dtype.kind not in "iu":
            raise CourseError(f"indices must be a non-empty list of integers, got {indices!r:.60}", where=str(path))
        outside = wanted[(wanted < 0) | (wanted >= info.frames)]
        if outside.size:
            raise CourseError(
                f"has no frame {outside[0]}; its {info.frames} frames are 0 to {info.frames - 1}", where=str(path)
            )
        distinct, back = np.unique(wanted, return_inverse=True)
        pictures = np.empty((len(distinct), info.height, info.width, 3), dtype=np.uint8)
        with self._exchange():
            answer, done = self._ask(info.path, {"do": "frames", "indices": distinct.tolist()}), 0
            while True:
                batch = pictures[done : done + answer["shape"][0]]
                if list(batch.shape) != answer["shape"]:
                    raise _bad(info.path, f"gave pictures {answer['shape']}, not {list(batch.shape)}")
                self._fill(info.path, batch)
                done += len(batch)
                if done == len(distinct):
                    break
                answer = self._head(info.path)
        return pictures if np.array_equal(back, np.arange(len(wanted))) else pictures[back]

    def sound(self, path: Path | str, max_seconds: float | None = None) -> "tuple[np.ndarray, int, float]":
        """The first sound track of a container: (float32 (n, channels), its rate, seconds that its header promises).

        Raises CourseError for a file without a sound track, or that does not decode. media/audio.py makes speech of it.
        """
        import numpy as np

        path, _ = _regular_file(path)
        blocks = []
        with self._exchange():
            head = self._ask(path, {"do": "sound", "max_seconds": max_seconds})
            while count := self._head(path)["samples"]:
                blocks.append(np.empty((count, head["channels"]), dtype=np.float32))
                self._fill(path, blocks[-1])
        samples = np.concatenate(blocks) if blocks else np.empty((0, head["channels"]), dtype=np.float32)
        return samples, head["rate"], head["total_seconds"]

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """One request and its whole answer; a child whose answer was not read to its end is not asked again."""
        with self._lock:
            self._open_answer = True
            try:
                yield
                self._open_answer = False
            finally:
                if self._open_answer:
                    self.close()

    def _start(self) -> subprocess.Popen:
        if self._child is None or self._owner != os.getpid() or self._child.poll() is not None:
            self.close()
            # -P: the folder of the script stays off sys.path, so nothing there can shadow a library.
            self._child = subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            self._owner = os.getpid()
            os.set_blocking(self._child.stdin.fileno(), False)
        return self._child

    def _ask(self, path: Path, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request, return the head of its first answer."""
        # The child's own alarm is for the case that this process is gone; while it lives, it is the one that kills.
        request |= {"path": str(path.absolute()), "backend": self.backend, "alarm_seconds": self.timeout_seconds + 5.0}
        left = memoryview(json.dumps(request).encode() + b"\n")
        child = self._start()
        while left:
            self._wait(path, child.stdin, select.POLLOUT)
            try:
                left = left[os.write(child.stdin.fileno(), left) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._died(path) from None
        return self._head(path)

    def _head(self, path: Path) -> dict[str, Any]:
        answer: dict[str, Any] = {"alive": True}
        while "alive" in answer:
            size = bytearray(4)
            self._fill(path, size)
            head = bytearray(struct.unpack("<I", size)[0])
            self._fill(path, head)
            answer = json.loads(head)
        if "error" in answer:
            self._open_answer = False
            raise _bad(path, answer["error"])
        return answer

    def _fill(self, path: Path, target: Any) -> None:
        """Read exactly as many bytes as `target` (a buffer or a contiguous array) holds."""
        left = memoryview(target).cast("B")
        while left:
            self._wait(path, self._child.stdout, select.POLLIN)
            count = os.readv(self._child.stdout.fileno(), [left])
            if count == 0:
                raise self._died(path)
            left = left[count:]

    def _wait(self, path: Path, pipe: Any, event: int) -> None:
        poll = select.poll()
        poll.register(pipe.fileno(), event)
        started = time.monotonic()
        if not poll.poll(self.timeout_seconds * 1000):
            self.close()
            waited = time.monotonic() - started
            raise _bad(path, f"the decoder made no progress for {waited:.0f} s and was stopped")

    def _died(self, path: Path) -> CourseError:
        code = self._child.wait()
        self.close()
        reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        return _bad(path, f"the decoder process died ({reason})")


def nearest_indices(timestamps_seconds: "np.ndarray", wanted_seconds: Sequence[float]) -> "np.ndarray":
    """Index of the frame whose timestamp is nearest to each wanted time (the earlier one in a tie), int64 (n,)."""
    import numpy as np

    times, wanted = np.asarray(timestamps_seconds, dtype=float), np.asarray(wanted_seconds, dtype=float)
    right = np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1))
    left = right - 1
    right = np.minimum(right, len(times) - 1)
    return np.where(wanted - times[left] <= times[right] - wanted, left, right)


def spread_indices(timestamps_seconds: "np.ndarray", count: int) -> "np.ndarray":
    """`count` distinct frames evenly over time, first and last included, int64 (count,); one frame: the first.

    Where a variable rate leaves fewer frames than an even spread wants, the nearest ones not yet taken stand in.
    """
    import numpy as np

    total = len(timestamps_seconds)
    if not 1 <= count <= total:
        raise CourseError(f"{count} distinct frames cannot be taken from {total}")
    wanted = np.linspace(timestamps_seconds[0], timestamps_seconds[-1], count)
    order = np.arange(count)
    later = np.maximum.accumulate(nearest_indices(timestamps_seconds, wanted) - order) + order
    return np.minimum(later, total - count + order)


def window_indices(info: VideoInfo, start_seconds: float, end_seconds: float, frames: int) -> "np.ndarray":
    """Indices of `frames` frames spread evenly over [start, end) by real timestamps, never outside the window.

    The first and the last frame inside the window are the ends, as in the processors' own sampling (linspace); a frame
    at `end_seconds` belongs to the next window. Frames repeat when the window holds fewer than asked. Times are the
    file's own: subtract `start_seconds` from the timestamps of these indices to count from the window's start.
    """
    import numpy as np

    if frames < 1:
        raise CourseError(f"frames must be at least 1, got {frames}", where=str(info.path))
    inside = np.flatnonzero(
        (info.timestamps_seconds >= start_seconds - 1e-6) & (info.timestamps_seconds < end_seconds - 1e-6)
    )
    if not inside.size:
        raise CourseError(
            f"has no frame between {start_seconds:g} s and {end_seconds:g} s; it is {info.duration_seconds:.2f} s long",
            where=str(info.path),
        )
    times = info.timestamps_seconds[inside]
    return inside[nearest_indices(times, np.linspace(times[0], times[-1], frames))]


def load_video_frames(video_path: Path | str, max_frames: int = 8) -> "tuple[np.ndarray, np.ndarray]":
    """At most `max_frames` frames evenly spread over the time of a clip: (uint8 (T, H, W, 3), seconds (T,)).

    Raises CourseError with path and reason for a file that cannot be read, and for max_frames below 1.
    """
    if max_frames < 1:
        raise CourseError(f"max_frames must be at least 1, got {max_frames}")
    with FrameReader() as reader:
        info = reader.info(video_path)
        indices = spread_indices(info.timestamps_seconds, min(max_frames, info.frames))
        return reader.frames(video_path, indices), info.timestamps_seconds[indices]


def _regular_file(path: Path | str) -> tuple[Path, tuple]:
    path = Path(path)
    try:
        status = path.stat()
    except OSError as error:
        raise CourseError(f"cannot be read ({error.strerror or error})", where=str(path)) from None
    if not stat.S_ISREG(status.st_mode):
        raise CourseError("is not a regular file", where=str(path))
    if status.st_size == 0:
        raise _bad(path, "is empty")
    return path, (str(path), status.st_mtime_ns, status.st_size)


def _bad(path: Path, reason: str) -> CourseError:
    return CourseError(reason, where=str(path), fix="Re-encode the file or leave it out", exit_code=FINDING)
