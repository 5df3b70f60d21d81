"""A traced step of the short model, given its real depth.

Every segment between two block boundaries becomes a template; the real sequence of blocks replays the template that
stands for each block. A tensor made in one block and dropped in another keeps that distance: what a traced layer
hands to the next one, every real layer hands to its next one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from course_lib.memory.trace.recorder import ALLOC, FREE, MARK
from course_lib.memory.trace.step import Boundary, GradientReady, StepTrace
from course_lib.shapes.stacks import Stack

ALLOCATE, RELEASE, NOTE = 0, 1, 2


@dataclass(slots=True)
class Segment:
    """Events between two boundaries. `stage` F, B or None (outside of the stacks); `region` names the part."""

    stage: str | None
    stack: str | None
    at: int
    region: str
    events: list[tuple] = field(default_factory=list)


def cut(events: list[tuple]) -> list[Segment]:
    """Split a trace at its boundaries; order is kept and every event lands in exactly one segment."""
    segments = [Segment(None, None, -1, "embeddings")]
    text_ended = 0
    for event in events:
        if event[0] != MARK or not isinstance(event[1], Boundary):
            segment = segments[-1]
            leaving = event[0] == FREE and segment.stage is None and not segment.events and len(segments) > 1
            # What a block's caller drops right after it belongs to the block, for the last one too.
            (segments[-2] if leaving else segment).events.append(event)
            continue
        mark = event[1]
        if mark.stage in ("F", "B"):
            segments.append(Segment(mark.stage, mark.stack, mark.at, mark.stack))
            continue
        text_ended += mark.stack == "text"
        # Between the end of the text stack in forward and its end in backward: final norm, logits, loss.
        region = "logits_and_loss" if text_ended == 1 else "embeddings"
        segments.append(Segment(None, None, -1, region))
    return segments


def parts(segments: list[Segment], *, checkpointing: bool) -> dict[int, str]:
    """Slot → the part it is counted under."""
    frees = _frees(segments)
    named: dict[int, str] = {}
    for index, segment in enumerate(segments):
        for event in segment.events:
            if event[0] != ALLOC:
                continue
            slot = event[1]
            if segment.region != "text":
                named[slot] = segment.region
            elif segment.stage == "B" or frees.get(slot) == index:
                named[slot] = "block_in_flight"
            else:
                named[slot] = "checkpoint_boundaries" if checkpointing else "activations"
    return named


def expand(trace: StepTrace, stacks: tuple[Stack, ...], *, checkpointing: bool) -> Iterator[tuple]:
    """Events of the real model: (ALLOCATE, key, bytes, part), (RELEASE, key) and (NOTE, mark, layer, key).

    A key (slot, layer) names one tensor of the real model; layer is None outside of the stacks.
    """
    segments = cut(trace.events)
    named = parts(segments, checkpointing=checkpointing)
    by_name = {stack.name: stack for stack in stacks}
    home = _homes(segments)
    frees = _frees(segments)
    handed = _handed_over(segments, home, frees)
    index = 0
    live_long: dict[int, list[Any]] = defaultdict(list)
    while index < len(segments):
        segment = segments[index]
        if segment.stage is None:
            yield from _replay(segment, segments, home, handed, None, live_long, named)
            index += 1
            continue
        run_end = index
        while run_end < len(segments) and (segments[run_end].stage, segments[run_end].stack) == (
            segment.stage,
            segment.stack,
        ):
            run_end += 1
        templates = {segments[i].at: segments[i] for i in range(index, run_end)}
        stands_for = by_name[segment.stack].stands_for
        layers = range(len(stands_for)) if segment.stage == "F" else range(len(stands_for) - 1, -1, -1)
        for layer in layers:
            template = templates.get(stands_for[layer])
            if template is not None:
                yield from _replay(template, segments, home, handed, layer, live_long, named)
        index = run_end


def _homes(segments: list[Segment]) -> dict[int, int]:
    """Slot → index of the segment that made it."""
    return {e[1]: i for i, segment in enumerate(segments) for e in segment.events if e[0] == ALLOC}


def _frees(segments: list[Segment]) -> dict[int, int]:
    """Slot → index of the segment that dropped it."""
    return {e[1]: i for i, segment in enumerate(segments) for e in segment.events if e[0] == FREE}


def _handed_over(
    segments: list[Segment], home: dict[int, int], frees: dict[int, int]
) -> dict[int, tuple[str, str | None, int, int]]:
    """Slots that one block makes and another block of the same stack drops.

    Returns slot → (stage that drops it, stack, distance in layers, rank): the rank-th such tensor of its block. Two
    kinds of blocks hand over the same things under different slots; the rank is what they share.
    """
    handed: dict[int, tuple[str, str | None, int, int]] = {}
    count: dict[tuple, int] = defaultdict(int)
    for slot in sorted(home):
        made, dropped = segments[home[slot]], segments[frees[slot]] if slot in frees else None
        if made.stage is None or dropped is None or dropped.stage is None or made.stack != dropped.stack:
            continue
        distance = dropped.at - made.at
        if distance:
            key = (home[slot], dropped.stage, distance)
            handed[slot] = (dropped.stage, made.stack, 1 if distance > 0 else -1, count[key])
            count[key] += 1
    return handed


def _replay(
    segment: Segment,
    segments: list[Segment],
    home: dict[int, int],
    handed: dict[int, tuple],
    layer: int | None,
    live_long: dict[Any, list[Any]],
    named: dict[int, str],
) -> Iterator[tuple]:
    """One segment's events with keys of the real model.

    Keys: (slot, layer) for what a block makes; what it hands over is filed under its maker's stage, layer and rank.
    """
    for event in segment.events:
        kind = event[0]
        if kind == ALLOC:
            slot = event[1]
            key = (slot, layer)
            if layer is not None and slot in handed:
                stage, stack, step, rank = handed[slot]
                live_long[(segment.stage, stack, layer, stage, step, rank)].append(key)
            elif layer is not None:
                live_long[slot].append(key)
            yield ALLOCATE, key, event[2], named[slot]
        elif kind == FREE:
            yield from _release(event[1], segment, segments, home, handed, layer, live_long)
        else:
            mark = event[1]
            if isinstance(mark, GradientReady):
                yield NOTE, mark, layer, (mark.slot, layer if segments[home[mark.slot]].stage else None)
            else:
                yield NOTE, mark, layer, None


def _release(
    slot: int,
    segment: Segment,
    segments: list[Segment],
    home: dict[int, int],
    handed: dict[int, tuple],
    layer: int | None,
    live_long: dict[Any, list[Any]],
) -> Iterator[tuple]:
    maker = segments[home[slot]]
    if maker.stage is None:
        yield RELEASE, (slot, None)
    elif slot in handed:
        stage, stack, step, rank = handed[slot]
        for key in live_long.pop((maker.stage, stack, layer - step, stage, step, rank), ()):
            yield RELEASE, key
    elif segment.stage is not None and segment.stack == maker.stack:
        yield RELEASE, (slot, layer)
    else:
        # Made in every block that this one stands for, dropped after the stack: all of them go now.
        for key in live_long.pop(slot, ()):
            yield RELEASE, key
