"""How long FrameReader takes beside the bare decoders, as ratios on this machine; writes decode_speed.json.

Run: python benchmarks/media/decode_speed.py. Each figure is the median of several rounds, all readers in turn in each
round, so that a busy machine slows all of them alike. A decoder that is not installed is named and left out.
"""

import importlib.metadata
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from course_lib.files import write_json
from course_lib.media.video import FrameReader

ROUNDS = 3
CLIPS = ((320, 240, 300), (1280, 720, 96))
"""(width, height, frames) of the synthetic clips; H.264, a key frame every 48 frames."""
WANTED = 32


def write_noise(path: Path, width: int, height: int, frames: int) -> None:
    """A clip whose pictures move, so that decoding has work to do."""
    import av

    noise = np.random.default_rng(0).integers(0, 255, (height + frames, width, 3), dtype=np.uint8)
    noise = np.repeat(np.repeat(noise[::8, ::8], 8, axis=0), 8, axis=1)[: height + frames, :width]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = 48
        stream.options = {"preset": "veryfast"}
        for number in range(frames):
            picture = np.ascontiguousarray(noise[number : number + height])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def bare_decord(path: str, indices: list[int]) -> np.ndarray:
    import decord

    return decord.VideoReader(path, num_threads=1).get_batch(indices).asnumpy()


def bare_pyav(path: str, indices: list[int]) -> np.ndarray:
    """Decode from the start and keep the wanted frames: what most scripts do."""
    import av

    wanted, kept = set(indices), []
    with av.open(path) as container:
        container.streams.video[0].thread_count = 1
        for number, frame in enumerate(container.decode(video=0)):
            if number in wanted:
                kept.append(frame.to_ndarray(format="rgb24"))
            if number == indices[-1]:
                break
    return np.stack(kept)


def bare_torchcodec(path: str, indices: list[int]) -> np.ndarray:
    from torchcodec.decoders import VideoDecoder

    return VideoDecoder(path, num_ffmpeg_threads=1).get_frames_at(indices).data.permute(0, 2, 3, 1).numpy()


def available() -> tuple[dict[str, Callable[[str, list[int]], np.ndarray]], dict[str, str]]:
    """The bare readers that load here, and why the others do not."""
    readers, missing = {}, {}
    for name, reader in (("decord", bare_decord), ("pyav", bare_pyav), ("torchcodec", bare_torchcodec)):
        try:
            __import__({"pyav": "av"}.get(name, name))
            readers[name] = reader
        except (ImportError, OSError, RuntimeError) as error:
            missing[name] = str(error).splitlines()[0]
    return readers, missing


def measure(path: Path, frames: int) -> dict[str, float]:
    """Median seconds per reader for WANTED evenly spread frames of one clip; all give the same pictures."""
    readers, _ = available()
    indices = np.linspace(0, frames - 1, WANTED).round().astype(int).tolist()
    taken: dict[str, list[float]] = {}
    with FrameReader() as decord_child, FrameReader(backend="pyav") as pyav_child:
        ours = {"FrameReader": decord_child, "FrameReader(pyav)": pyav_child}
        asked = readers | {name: reader.frames for name, reader in ours.items()}
        truth = bare_pyav(str(path), indices).astype(int)
        for name, read in asked.items():
            assert np.abs(read(str(path), indices) - truth).mean() < 3, f"{name} gives other pictures"
        for _ in range(ROUNDS):
            for name, read in asked.items():
                if name in ours:
                    # The clip is opened anew, as the bare readers do it: touching it makes the child forget it.
                    os.utime(path)
                started = time.perf_counter()
                read(str(path), indices)
                taken.setdefault(name, []).append(time.perf_counter() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> None:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for width, height, frames in CLIPS:
            path = Path(folder) / f"{width}x{height}.mp4"
            write_noise(path, width, height, frames)
            seconds = measure(path, frames)
            ratio = {name: round(value / seconds.get("decord", seconds["pyav"]), 2) for name, value in seconds.items()}
            results.append(
                {"clip": f"{width}×{height}, {frames} frames, {WANTED} wanted", "seconds": seconds, "to_decord": ratio}
            )
    versions = {}
    for name in ("decord", "av", "torchcodec", "numpy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    record = {
        "label": "measured", "machine": f"{platform.machine()}, {os.cpu_count()} CPUs", "rounds": ROUNDS,
        "versions": versions, "not_loaded": available()[1], "results": results,
    }  # fmt: skip
    write_json(Path(__file__).with_suffix(".json"), record)
    for result in results:
        print(result["clip"], result["to_decord"])


if __name__ == "__main__":
    main()
