"""The reel: held-out windows played as the answers would cut them, the truth drawn below.

What is kept plays at full brightness, what is cut is dimmed. Two bars under the picture: the truth in a solid bar,
the answer in a striped one, so that they can be told apart without colour. Not here: answers and their scores
(grounding.py), and the page that shows the reel (report.py).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.data.intervals import Interval
from course_lib.errors import CourseError
from course_lib.evaluate.grounding import temporal_iou
from course_lib.files import whole_file

FRAMES_PER_SECOND = 12
MAX_REEL_BYTES = 2_000_000
WIDTH, HEIGHT = 480, 432
"""Of the film, in pixels; even, as 4:2:0 needs."""
PICTURE = (12, 36, 468, 324)
"""Box that the enlarged frame is centred in: 456 × 288, so that its longer side is 288 or more."""
BAR_LEFT, BAR_RIGHT = 84, 456
TRUTH_TOP, ANSWER_TOP, BAR_HEIGHT = 340, 370, 20
AXIS_TOP = 398
DIMMED = 0.3
"""Brightness of what is cut."""

PAPER, INK, QUIET, TRACK = (18, 18, 22), (240, 240, 240), (160, 160, 168), (34, 34, 40)
TRUTH_COLOUR, ANSWER_COLOUR, CURSOR = (232, 232, 232), (240, 158, 60), (255, 255, 255)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReelClip:
    """One window with its truth and an answer; all times in seconds from the window's start."""

    frames: Any
    """uint8 array (T, H, W, 3), T ≥ 1."""
    timestamps: Sequence[float]
    """When each frame is shown; rising, one per frame."""
    seconds: float
    """Length of the window."""
    truth: Sequence[Interval]
    answer: Sequence[Interval]
    """What would be kept."""
    caption: str
    usable: bool = True
    """False when the answer's text could not be read as intervals: then nothing is kept, and the reel says why."""


def write_reel(path: Path | str, clips: Sequence[ReelClip], *, seconds_per_clip: float = 4.0) -> Path:
    """Write one film, whole or not at all: H.264, at most MAX_REEL_BYTES, each clip in `seconds_per_clip`.

    Args:
        path: .mp4 file. clips: played one after the other. seconds_per_clip: longer windows play faster, and say so.

    Returns: the path. Raises CourseError when there is no clip or the file cannot be written, ValueError for frames
    of the wrong shape.
    """
    import av

    path = Path(path)
    if not clips:
        raise CourseError("a reel needs at least one clip", where=str(path))
    total_seconds = seconds_per_clip * len(clips)
    with whole_file(path) as temporary, av.open(str(temporary), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FRAMES_PER_SECOND)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        # Constant quality, but never more bits than the file may have (a tenth is left for the container).
        most_kbits = max(1, int(MAX_REEL_BYTES * 8 * 0.9 / total_seconds / 1000))
        stream.options = {
            "crf": "20",
            "preset": "veryfast",
            "threads": "1",
            "maxrate": f"{most_kbits}k",
            "bufsize": f"{most_kbits}k",
        }
        container.metadata["title"] = path.stem
        for picture in reel_pictures(clips, seconds_per_clip=seconds_per_clip):
            for packet in stream.encode(av.VideoFrame.from_image(picture)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def reel_pictures(clips: Sequence[ReelClip], *, seconds_per_clip: float = 4.0) -> Iterator[Any]:
    """The film's pictures (PIL images of WIDTH × HEIGHT), FRAMES_PER_SECOND · seconds_per_clip for each clip."""
    count = max(1, round(FRAMES_PER_SECOND * seconds_per_clip))
    for number, clip in enumerate(clips, start=1):
        _check(clip)
        still = _still(clip, number, len(clips), clip.seconds / seconds_per_clip)
        enlarged: dict[int, Any] = {}
        for step in range(count):
            # The middle of each picture's share of the window.
            time = (step + 0.5) / count * clip.seconds
            index = _frame_at(clip.timestamps, time)
            if index not in enlarged:
                enlarged[index] = _enlarge(clip.frames[index])
            yield _picture(clip, still, enlarged[index], time)


def _check(clip: ReelClip) -> None:
    shape = clip.frames.shape
    if len(shape) != 4 or shape[3] != 3 or shape[0] < 1 or str(clip.frames.dtype) != "uint8":
        raise ValueError(f"frames must be uint8 (T, H, W, 3), got {clip.frames.dtype} {tuple(shape)}")
    if len(clip.timestamps) != shape[0]:
        raise ValueError(f"{shape[0]} frames have {len(clip.timestamps)} timestamps")
    if not clip.seconds > 0:
        raise ValueError(f"a window must be longer than 0 s, got {clip.seconds}")


def _frame_at(timestamps: Sequence[float], time: float) -> int:
    """The last frame shown at or before `time`; the first one before any is."""
    return max((index for index, shown in enumerate(timestamps) if shown <= time), default=0)


def _inside(intervals: Sequence[Interval], time: float) -> bool:
    return any(start <= time < end for start, end in intervals)


def _enlarge(frame: Any) -> Any:
    """Scale a frame into PICTURE, keeping its shape: pixels stay squares when it is small."""
    from PIL import Image

    box_width, box_height = PICTURE[2] - PICTURE[0], PICTURE[3] - PICTURE[1]
    image = Image.fromarray(frame)
    scale = min(box_width / image.width, box_height / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS)


def _picture(clip: ReelClip, still: Any, frame: Any, time: float) -> Any:
    """One picture: the still parts, the frame at its brightness, the verdict, the cursor."""
    from PIL import ImageDraw, ImageEnhance

    picture = still.copy()
    draw = ImageDraw.Draw(picture)
    keep = clip.usable and _inside(clip.answer, time)
    if not keep:
        frame = ImageEnhance.Brightness(frame).enhance(DIMMED)
    left = (PICTURE[0] + PICTURE[2] - frame.width) // 2
    top = (PICTURE[1] + PICTURE[3] - frame.height) // 2
    picture.paste(frame, (left, top))
    if keep:
        draw.rectangle((left - 3, top - 3, left + frame.width + 2, top + frame.height + 2), outline=INK, width=3)
    draw.text((PICTURE[2], 12), "KEEP" if keep else "CUT", INK if keep else QUIET, font=_font(18), anchor="ra")
    x = _x(time, clip.seconds)
    # A dark edge, or the cursor would vanish on the truth's bar.
    draw.line((x, TRUTH_TOP - 4, x, AXIS_TOP - 2), PAPER, width=6)
    draw.line((x, TRUTH_TOP - 4, x, AXIS_TOP - 2), CURSOR, width=2)
    draw.polygon([(x - 6, TRUTH_TOP - 11), (x + 6, TRUTH_TOP - 11), (x, TRUTH_TOP - 3)], fill=CURSOR)
    return picture


def _still(clip: ReelClip, number: int, count: int, speed: float) -> Any:
    """What does not move in a clip: title, bars, axis."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((12, 12), _fit(draw, f"{number}/{count}  {clip.caption}", WIDTH - 90), INK, font=_font(15))
    for top, label in ((TRUTH_TOP, "truth"), (ANSWER_TOP, "answer")):
        draw.text((BAR_LEFT - 8, top + BAR_HEIGHT // 2), label, INK, font=_font(14), anchor="rm")
        draw.rectangle((BAR_LEFT, top, BAR_RIGHT, top + BAR_HEIGHT), fill=TRACK)
    for start, end in clip.truth:
        draw.rectangle(_bar(start, end, clip.seconds, TRUTH_TOP), fill=TRUTH_COLOUR)
    for start, end in clip.answer if clip.usable else ():
        _stripe(image, _bar(start, end, clip.seconds, ANSWER_TOP))
    if not clip.usable:
        middle = ((BAR_LEFT + BAR_RIGHT) // 2, ANSWER_TOP + BAR_HEIGHT // 2)
        draw.text(middle, "no usable answer", INK, font=_font(13), anchor="mm")
    _axis(draw, clip.seconds)
    iou = temporal_iou(clip.truth, clip.answer) if clip.usable else 0.0
    played = "" if math.isclose(speed, 1.0, rel_tol=0.01) else f"   played {speed:.2g} times as fast"
    draw.text((BAR_LEFT, 416), f"IoU {iou:.2f}{played}", INK, font=_font(13), anchor="lm")
    return image


def _axis(draw: Any, seconds: float) -> None:
    """A tick at each whole step of 1, 2, 5, 10 … s, at most nine of them."""
    step = next(s for s in (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 3600, 86400) if seconds / s <= 9)
    for index in range(int(seconds / step + 1e-9) + 1):
        x = _x(index * step, seconds)
        draw.line((x, ANSWER_TOP + BAR_HEIGHT, x, ANSWER_TOP + BAR_HEIGHT + 5), QUIET, width=1)
        draw.text((x, AXIS_TOP), f"{index * step:g}", INK, font=_font(11), anchor="mt")
    draw.text((BAR_LEFT - 8, AXIS_TOP), "seconds", INK, font=_font(11), anchor="rt")


def _x(time: float, seconds: float) -> int:
    share = min(max(time / seconds, 0.0), 1.0)
    return round(BAR_LEFT + share * (BAR_RIGHT - BAR_LEFT))


def _bar(start: float, end: float, seconds: float, top: int) -> tuple[int, int, int, int]:
    return _x(start, seconds), top, max(_x(end, seconds), _x(start, seconds) + 2), top + BAR_HEIGHT


def _stripe(image: Any, box: tuple[int, int, int, int]) -> None:
    """Diagonal stripes with an outline, clipped to the box."""
    from PIL import Image, ImageDraw

    width, height = box[2] - box[0] + 1, box[3] - box[1] + 1
    tile = Image.new("RGB", (width, height), TRACK)
    draw = ImageDraw.Draw(tile)
    for x in range(-height, width, 10):
        draw.line((x, height, x + height, 0), ANSWER_COLOUR, width=4)
    draw.rectangle((0, 0, width - 1, height - 1), outline=ANSWER_COLOUR, width=2)
    image.paste(tile, box[:2])


def _fit(draw: Any, text: str, width: int) -> str:
    """`text`, shortened with an ellipsis until it is at most `width` pixels wide."""
    text = " ".join(text.split())
    if draw.textlength(text, font=_font(15)) <= width:
        return text
    while text and draw.textlength(text + "…", font=_font(15)) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)
