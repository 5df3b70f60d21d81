"""Small synthetic clips, made when a test needs them.

The grey of a picture tells its number, so that a test sees which frame it was given.
"""

from fractions import Fraction
from pathlib import Path

import numpy as np


def grey(number: int) -> int:
    """The grey of frame `number`: 17 apart for neighbours, so that compression never confuses two of them."""
    return 20 + 17 * number % 200


def numbers(frames: np.ndarray, *, centre: bool = True) -> list[int]:
    """Which grey each picture has, from its middle."""
    height, width = frames.shape[1:3]
    middle = frames[:, height // 2 - 2 : height // 2 + 2, width // 2 - 2 : width // 2 + 2]
    return [round(float(picture.mean())) for picture in middle]


def write_clip(
    path: Path,
    *,
    frames: int = 30,
    fps: Fraction | int = 30,
    width: int = 64,
    height: int = 48,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    times: list[int] | None = None,
    time_base: Fraction | None = None,
    rotation: int = 0,
    audio: bool = False,
    corner: bool = False,
    key_every: int = 12,
    options: dict[str, str] | None = None,
) -> Path:
    """Write `frames` grey pictures. `times`: presentation ticks of `time_base` (variable rate).

    corner: paint the top left quarter of the stored picture red, to see how it is turned.
    """
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(fps))
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.codec_context.gop_size = key_every
        if codec == "libx264":
            stream.options = {"preset": "ultrafast", "crf": "10", **(options or {})}
        if time_base is not None:
            stream.codec_context.time_base = stream.time_base = time_base
        if rotation:
            stream.set_display_rotation(rotation)
        sound = container.add_stream("aac", rate=16000, layout="mono") if audio else None
        for number in range(frames):
            picture = np.full((height, width, 3), grey(number), dtype=np.uint8)
            if corner:
                picture[: height // 2, : width // 2] = (255, 0, 0)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pixel_format)
            if times is not None:
                frame.pts, frame.time_base = times[number], time_base
            else:
                frame.pts, frame.time_base = number, 1 / Fraction(fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if sound is not None:
            samples = np.zeros((1, 16000), dtype=np.float32)
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate = 16000
            container.mux(sound.encode(frame))
            container.mux(sound.encode(None))
    return path
