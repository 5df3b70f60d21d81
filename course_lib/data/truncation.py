"""Cut a sample to a maximum length by leaving out whole steps of its videos; never a part of a step, never the answer.

Cutting ids from the end (what `truncation=True` does) takes the answer first and leaves placeholders without pixels.
Not here: samples whose text alone is too long (they are refused, and the finding says by how much).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.errors import FINDING, CourseError
from course_lib.models.supervised_loss import IGNORED

PER_TOKEN = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids", "labels")
"""Entries of a sample with one value per token; the others are per video, or single numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoSteps:
    """Where the steps of one video stand. `spans[k]` are the positions [start, end) that go when step k goes."""

    grid: tuple[int, int, int]
    spans: tuple[tuple[int, int], ...]
    even: bool
    """True: one run without times, so only every n-th step may stay, or the steps would no longer be evenly spaced."""

    def tokens(self, steps: Iterable[int]) -> int:
        return sum(self.spans[k][1] - self.spans[k][0] for k in steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A sample that fits, and what it lost."""

    item: dict[str, Any]
    kept_steps: tuple[tuple[int, ...], ...]
    """Per video: the steps that stayed, counted as before the cut."""
    dropped_tokens: int
    dropped_steps: int


def cut_to_length(
    item: dict[str, Any],
    max_tokens: int,
    *,
    video_token_id: int,
    merge_size: int,
    special_ids: Iterable[int],
    min_steps: int = 1,
    where: str = "sample",
) -> Cut:
    """Leave out as few steps as possible, evenly over each video.

    Args:
        item: one sample without padding: the entries of PER_TOKEN (S,), pixel_values_videos (patches, size),
            video_grid_thw (videos, 3), and what goes with them (second_per_grid_ts, prompt_tokens, index).
        merge_size: patches per side that become one token. special_ids: of the tokenizer (`all_special_ids`), to tell
            the times written before a step from its wrappers.
        min_steps: steps that every video keeps. where: names the sample in findings.

    Returns: the Cut; an item that fits already comes back as it is. Raises CourseError that says how many tokens are
    missing when the text, the answer and `min_steps` of each video do not fit, or when the placeholders are not those
    of the grids.
    """
    ids = [int(token) for token in item["input_ids"]]
    grids = [tuple(int(side) for side in grid) for grid in item.get("video_grid_thw", ())]
    if len(ids) <= max_tokens:
        every = tuple(tuple(range(grid[0])) for grid in grids)
        return Cut(item=item, kept_steps=every, dropped_tokens=0, dropped_steps=0)
    videos = video_steps(ids, grids, video_token_id, merge_size, frozenset(special_ids), where=where)
    kept = _choose(videos, len(ids) - max_tokens, min_steps)
    dropped = _dropped_positions(videos, kept)
    missing = len(ids) - len(dropped) - max_tokens
    if missing > 0:
        raise CourseError(
            f"too long by {_count(missing, 'token')}: {len(ids) - len(dropped)} are needed for the text, the answer "
            f"and {_count(min_steps, 'step')} of each video, {max_tokens} are allowed",
            where=where,
            fix="Raise the limit, lower the cap per frame, or shorten the question",
            exit_code=FINDING,
        )
    if any(int(item["labels"][place]) != IGNORED for place in dropped):
        raise CourseError("steps of the video have labels, so none can be left out", where=where, exit_code=FINDING)
    return Cut(
        item=_without(item, videos, kept, dropped),
        kept_steps=tuple(tuple(steps) for steps in kept),
        dropped_tokens=len(dropped),
        dropped_steps=sum(grid[0] for grid in grids) - sum(map(len, kept)),
    )


def video_steps(
    ids: Sequence[int],
    grids: Sequence[tuple[int, int, int]],
    video_token_id: int,
    merge_size: int,
    special_ids: frozenset[int],
    *,
    where: str = "sample",
) -> tuple[VideoSteps, ...]:
    """Where each step of each video stands: one run of placeholders per step (Qwen3-VL), or one run per video.

    Raises CourseError when the runs are neither.
    """
    runs = _runs(ids, video_token_id)
    per_step = [high * wide // merge_size**2 for _, high, wide in grids]
    lengths = [end - start for start, end in runs]
    if lengths == [grid[0] * size for grid, size in zip(grids, per_step, strict=True)]:
        return tuple(
            VideoSteps(
                grid=grid,
                spans=tuple((run[0] + k * size, run[0] + (k + 1) * size) for k in range(grid[0])),
                # A single step has no spacing, and no step that could go.
                even=True,
            )
            for grid, size, run in zip(grids, per_step, runs, strict=True)
        )
    if lengths != [size for grid, size in zip(grids, per_step, strict=True) for _ in range(grid[0])]:
        raise CourseError(
            f"runs of {_few(lengths)} video placeholders do not belong to grids {[list(grid) for grid in grids]}",
            where=where,
            fix="Was the sample cut before? Build it again",
            exit_code=FINDING,
        )
    videos, at = [], 0
    for grid in grids:
        spans = [_around(ids, run, special_ids) for run in runs[at : at + grid[0]]]
        videos.append(VideoSteps(grid=grid, spans=tuple(spans), even=False))
        at += grid[0]
    return tuple(videos)


def _runs(ids: Sequence[int], token: int) -> list[tuple[int, int]]:
    runs, start = [], None
    for place, value in enumerate([*ids, None]):
        if value == token and start is None:
            start = place
        elif value != token and start is not None:
            runs.append((start, place))
            start = None
    return runs


def _around(ids: Sequence[int], run: tuple[int, int], special_ids: frozenset[int]) -> tuple[int, int]:
    """A step with its wrappers and its time: time, start, placeholders, end. The first step of a video may take words
    before it along, so it always stays (`_choose`)."""
    start, end = run
    if start and ids[start - 1] in special_ids:
        start -= 1
        while start and ids[start - 1] not in special_ids:
            start -= 1
    if end < len(ids) and ids[end] in special_ids:
        end += 1
    return start, end


def _choose(videos: Sequence[VideoSteps], excess: int, min_steps: int) -> list[list[int]]:
    """Steps to keep per video: fewer and fewer of the one that costs most, until `excess` tokens are gone."""
    kept = [list(range(video.grid[0])) for video in videos]
    while excess > sum(
        video.tokens(range(video.grid[0])) - video.tokens(k) for video, k in zip(videos, kept, strict=True)
    ):
        smaller = {n: steps for n, video in enumerate(videos) if (steps := _fewer(video, kept[n], min_steps))}
        if not smaller:
            break
        most = max(smaller, key=lambda n: videos[n].tokens(kept[n]))
        kept[most] = smaller[most]
    return kept


def _fewer(video: VideoSteps, kept: list[int], min_steps: int) -> list[int] | None:
    """The next smaller choice of steps, the first always among them; None when it would fall below `min_steps`."""
    total = video.grid[0]
    if video.even:
        stride = kept[1] - kept[0] if len(kept) > 1 else total
        steps = list(range(0, total, stride + 1))
    else:
        count = len(kept) - 1
        steps = [k * total // count for k in range(count)] if count else []
    return steps if len(steps) >= max(min_steps, 1) and len(steps) < total and steps != kept else None


def _dropped_positions(videos: Sequence[VideoSteps], kept: Sequence[Sequence[int]]) -> list[int]:
    dropped: list[int] = []
    for video, steps in zip(videos, kept, strict=True):
        stay = set(steps)
        for k, (start, end) in enumerate(video.spans):
            if k not in stay:
                dropped.extend(range(start, end))
    return dropped


def _without(
    item: dict[str, Any], videos: Sequence[VideoSteps], kept: Sequence[Sequence[int]], dropped: list[int]
) -> dict[str, Any]:
    gone = set(dropped)
    places = [place for place in range(len(item["input_ids"])) if place not in gone]
    cut = dict(item)
    for name in PER_TOKEN:
        if name in item:
            cut[name] = item[name][places]
    cut["video_grid_thw"] = item["video_grid_thw"].clone()
    rows, first = [], 0
    for n, (video, steps) in enumerate(zip(videos, kept, strict=True)):
        patches = video.grid[1] * video.grid[2]
        rows += [first + k * patches + row for k in steps for row in range(patches)]
        first += video.grid[0] * patches
        cut["video_grid_thw"][n, 0] = len(steps)
    if "pixel_values_videos" in item:
        cut["pixel_values_videos"] = item["pixel_values_videos"][rows]
    if "second_per_grid_ts" in item:
        # Qwen2.5-VL places step i at i times this: with every n-th step left, n times as many seconds apart.
        strides = [steps[1] - steps[0] if len(steps) > 1 else 1 for steps in kept]
        cut["second_per_grid_ts"] = item["second_per_grid_ts"] * item["second_per_grid_ts"].new_tensor(strides)
    if "prompt_tokens" in item:
        cut["prompt_tokens"] = item["prompt_tokens"] - sum(place < item["prompt_tokens"] for place in gone)
    return cut


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _few(numbers: Sequence[int], most: int = 6) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"
