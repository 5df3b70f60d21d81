"""The child that decodes: one request per line on stdin, answers on a private pipe. Run as a script, never imported.

It stands alone (no course_lib, no torch), so that it starts fast and can be killed at any moment.
decord delivers the pixels; PyAV reads the timestamps, turns rotated pictures, and takes over where decord cannot.
Not here: who asks, how long they wait, what an error looks like (video.py).
"""

import json
import os
import signal
import struct
import sys
import time
from collections.abc import Callable

CHUNK_BYTES = 32 * 1024**2
"""About how much decoded picture is held here at once: a clip of any length takes the same memory."""


class BadVideo(Exception):
    """Why a file gives no frames; one line."""


class Clip:
    """One opened file: its real timestamps, and frames by index from one of the two readers."""

    def __init__(self, path: str, backend: str, alive: Callable[[], None] = lambda: None) -> None:
        import av

        self.path, self.alive = path, alive
        self.container = av.open(path)
        if not self.container.streams.video:
            raise BadVideo("has no video stream")
        self.stream = self.container.streams.video[0]
        # One thread: ranks and loader workers share the machine's cores.
        self.stream.thread_count = 1
        self._read_packets()
        first = self._first_frame()
        self.turns = round(first.rotation / 90) % 4
        """Quarter turns counter-clockwise that the display matrix asks for, as numpy.rot90 counts them."""
        self.height, self.width = (first.width, first.height) if self.turns % 2 else (first.height, first.width)
        self.sampled = None
        # decord applies the rotation of mp4 only, and only that: a turned picture is PyAV's, so it is turned once.
        if backend == "decord" and self.turns == 0:
            self.sampled = self._open_decord()

    def _read_packets(self) -> None:
        """Presentation times in stream ticks, sorted, and the key frames, without decoding anything."""
        import numpy as np

        ticks, keys, durations, file_end_seconds = [], [], [], 0.0
        for number, packet in enumerate(self.container.demux()):
            if number % 1024 == 0:
                self.alive()
            if packet.size == 0 or packet.is_discard:
                continue
            tick = packet.pts if packet.pts is not None else packet.dts
            if tick is not None:
                file_end_seconds = max(file_end_seconds, float((tick + (packet.duration or 0)) * packet.time_base))
            if packet.stream_index != self.stream.index:
                continue
            if tick is None:
                raise BadVideo("has frames without timestamps")
            ticks.append(tick)
            durations.append(packet.duration or 0)
            if packet.is_keyframe:
                keys.append(tick)
        if not ticks:
            raise BadVideo("holds no frame")
        order = np.argsort(ticks, kind="stable")
        self.ticks = np.asarray(ticks, dtype=np.int64)[order]
        self.keys = np.sort(np.asarray(keys or [self.ticks[0]], dtype=np.int64))
        self.base = float(self.stream.time_base)
        # Players count from the start of the file, not of the clock it was cut from (MPEG-TS starts at 1.4 s).
        start_seconds = max((self.container.start_time or 0) / 1_000_000, 0.0)
        self.seconds = self.ticks * self.base - start_seconds
        gap = int(durations[order[-1]]) or (int(self.ticks[-1] - self.ticks[-2]) if len(ticks) > 1 else 0)
        self.end_seconds = float(self.seconds[-1] + gap * self.base)
        self._refuse_truncated(file_end_seconds)

    def _refuse_truncated(self, file_end_seconds: float) -> None:
        """A header that promises more than all streams hold: the rest of the file was never written or copied.

        `file_end_seconds` counts from zero of the clock: Matroska's duration does so too where a clip starts late.
        """
        promised_seconds, held = (self.container.duration or 0) / 1_000_000, len(self.ticks)
        gap_seconds = self.end_seconds / held
        missing_seconds = promised_seconds - max(file_end_seconds, self.end_seconds)
        if self.stream.frames > held and missing_seconds > 2 * gap_seconds:
            raise BadVideo(f"is truncated: its header promises {self.stream.frames} frames, it holds {held}")
        # Matroska counts no frames, and its durations are rounded: only a gap that rounding cannot explain counts.
        if missing_seconds > max(3 * gap_seconds, 0.02 * promised_seconds):
            raise BadVideo(
                f"is truncated: its header promises {promised_seconds:.2f} s, it holds {self.end_seconds:.2f} s"
            )

    def _first_frame(self):
        self.container.seek(int(self.ticks[0]), stream=self.stream)
        for frame in self.container.decode(self.stream):
            return frame
        raise BadVideo("holds no frame that decodes")

    def _open_decord(self):
        try:
            import decord

            # fault_tol close to zero: a frame that decord would repeat in place of a broken one is an error.
            reader = decord.VideoReader(self.path, num_threads=1, fault_tol=1e-9)
        except Exception:  # noqa: BLE001
            # No wheel here, or a codec that decord's own FFmpeg does not know (AV1): PyAV decides about the file.
            return None
        # Another count means another idea of which frame is frame i (edit lists): then PyAV, which goes by time.
        return reader if len(reader) == len(self.ticks) and reader[0].shape[:2] == (self.height, self.width) else None

    def info(self) -> dict:
        rate = self.stream.average_rate or self.stream.guessed_rate
        return {
            "width": self.width,
            "height": self.height,
            "frames": len(self.ticks),
            "duration_seconds": self.end_seconds - min(float(self.seconds[0]), 0.0),
            "average_fps": float(rate) if rate else len(self.ticks) / max(self.end_seconds, 1e-9),
            "rotation_degrees": -90 * self.turns % 360,
            "has_audio": bool(self.container.streams.audio),
        }

    def batches(self, indices: list[int]):
        """Yield uint8 arrays (n, H, W, 3) that together are the frames at the sorted, distinct `indices`."""
        import numpy as np

        step = max(1, CHUNK_BYTES // (self.height * self.width * 3))
        done = 0
        if self.sampled is not None:
            try:
                for start in range(0, len(indices), step):
                    yield self.sampled.get_batch(indices[start : start + step]).asnumpy()
                    done = min(start + step, len(indices))
                return
            except Exception:  # noqa: BLE001
                # PyAV is the judge of a file that decord gives up on; it goes on where decord stopped.
                self.sampled = None
        for index, picture in self._by_time(indices[done:]):
            if picture.shape[:2] != (self.height, self.width):
                raise BadVideo(f"changes its picture size at frame {index}")
            yield np.ascontiguousarray(picture)[None]

    def _by_time(self, indices: list[int]):
        """Yield (index, picture) with PyAV: seek to the key frame before each wanted time, decode up to it."""
        import numpy as np

        position, frames = None, None
        for index in indices:
            wanted = int(self.ticks[index])
            key = int(self.keys[max(np.searchsorted(self.keys, wanted, side="right") - 1, 0)])
            if frames is None or key > position:
                self.container.seek(key, stream=self.stream)
                frames = self.container.decode(self.stream)
            for frame in frames:
                position = frame.pts if frame.pts is not None else frame.dts
                if position >= wanted:
                    break
            else:
                raise BadVideo(f"ends before frame {index} ({self.seconds[index]:.2f} s) decodes")
            if position != wanted or frame.is_corrupt:
                raise BadVideo(f"frame {index} ({self.seconds[index]:.2f} s) is damaged")
            yield index, np.rot90(frame.to_ndarray(format="rgb24"), self.turns)


def sound_blocks(path: str, max_seconds: float | None):
    """Yield first (rate, channels, seconds of the file), then float32 arrays (n, channels) of its first sound track."""
    import av
    import numpy as np

    with av.open(path) as container:
        if not container.streams.audio:
            raise BadVideo("has no audio track")
        stream = container.streams.audio[0]
        rate, channels = stream.rate, stream.codec_context.channels
        total = float(stream.duration * stream.time_base) if stream.duration else (container.duration or 0) / 1_000_000
        yield rate, channels, total
        to_float = av.AudioResampler(format="flt", layout=stream.layout, rate=rate)
        left = round(max_seconds * rate) if max_seconds is not None else None
        for frame in container.decode(stream):
            for part in to_float.resample(frame):
                block = part.to_ndarray().reshape(-1, channels)[:left]
                left = None if left is None else left - len(block)
                if len(block):
                    yield np.ascontiguousarray(block, dtype="<f4")
                if left == 0:
                    return


class Server:
    """Answers requests until stdin closes, which it does when the asking process ends, however it ends."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.clip: Clip | None = None
        self.key: tuple | None = None
        self.said = 0.0
        self.alarm_seconds = 0.0

    def send(self, record: dict, *payloads) -> None:
        head = json.dumps(record).encode()
        for part in (struct.pack("<I", len(head)), head, *payloads):
            view = memoryview(part).cast("B")
            while view:
                view = view[os.write(self.answers, view) :]
        self.said = time.monotonic()

    def alive(self) -> None:
        """Reading the whole of a very long file takes its time: say once a second that it goes on."""
        if time.monotonic() - self.said > 1.0:
            signal.setitimer(signal.ITIMER_REAL, self.alarm_seconds)
            self.send({"alive": True})

    def open(self, path: str, backend: str) -> Clip:
        status = os.stat(path)
        key = (path, backend, status.st_mtime_ns, status.st_size)
        if key != self.key:
            # Only the last file stays open: rows of a data set come clip after clip.
            self.clip = self.key = None
            self.clip, self.key = Clip(path, backend, self.alive), key
        return self.clip

    def answer(self, request: dict) -> None:
        self.said, self.alarm_seconds = time.monotonic(), request["alarm_seconds"]
        try:
            if request["do"] == "sound":
                self.answer_sound(request)
                return
            clip = self.open(request["path"], request["backend"])
            if request["do"] == "info":
                self.send({**clip.info(), "timestamps": len(clip.seconds)}, clip.seconds.astype("<f8").tobytes())
                return
            for batch in clip.batches(request["indices"]):
                # Progress: the alarm counts from the last batch, as the asking side does.
                signal.setitimer(signal.ITIMER_REAL, request["alarm_seconds"])
                self.send({"shape": batch.shape}, batch.data)
        except BadVideo as problem:
            self.send({"error": str(problem)})
        except Exception as problem:  # noqa: BLE001 - every reason travels to the asking process as one line
            self.clip = self.key = None
            self.send({"error": _reason(problem)})

    def answer_sound(self, request: dict) -> None:
        blocks = sound_blocks(request["path"], request["max_seconds"])
        rate, channels, total = next(blocks)
        self.send({"rate": rate, "channels": channels, "total_seconds": total})
        for block in blocks:
            signal.setitimer(signal.ITIMER_REAL, request["alarm_seconds"])
            self.send({"samples": len(block)}, block.data)
        self.send({"samples": 0})


def _reason(problem: Exception) -> str:
    """FFmpeg's own words without its error number and the path, which the asking side adds."""
    if isinstance(problem, EOFError):
        return "ends before its first frame: it holds no frame"
    text = (getattr(problem, "strerror", None) or str(problem) or type(problem).__name__).strip()
    return f"cannot be decoded ({text.splitlines()[0]})"


def main() -> None:
    # Libraries print to stdout; the answers go over a copy of it that they do not know.
    answers = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A native hang holds the interpreter lock, so only the kernel can end it when nobody is left to kill us.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    server = Server(answers)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["alarm_seconds"])
        server.answer(request)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)
