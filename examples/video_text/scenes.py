"""Little films of coloured shapes: what is on screen when, and the pictures of it.

A scene is a description (who is shown from when to when, moving how); rendering turns scenes into frames.
The base model is trained on 8-second scenes rendered on the fly (train_base.py); the sample clips are
48-second scenes written as mp4 files (make_data.py). The questions differ: see QUESTIONS and HOUSE_QUESTION.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

COLOURS = {
    "red": (224, 48, 40),
    "green": (40, 190, 70),
    "blue": (50, 90, 240),
    "yellow": (240, 215, 50),
    "white": (245, 245, 245),
    "violet": (190, 60, 220),
}
SHAPES = ("circle", "square", "triangle", "cross")
LANES = 3
STEP_SECONDS = 0.5
"""Appearances start and end on this grid, which is also the distance of two sampled frames (16 in 8 s)."""

HOUSE_QUESTION = "Which parts are worth keeping?"
"""The editor's question. The rule behind it (two or more shapes on screen) stands only in the answers."""

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Actor:
    """One shape: looks, a lane of its own (no shape ever covers another), and when it is shown."""

    colour: str
    shape: str
    lane: int
    radius: float
    """Half the width, as a fraction of the frame's height."""
    start_x: float
    speed: float
    """Frame widths per second; the shape bounces off the sides."""
    shown: tuple[Interval, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    seconds: float
    background: tuple[int, int, int]
    actors: tuple[Actor, ...]


def random_scene(
    rng: random.Random,
    seconds: float,
    actors: int,
    on_seconds: Interval,
    off_seconds: Interval,
    step_seconds: float = STEP_SECONDS,
) -> Scene:
    """A scene in which each actor is shown and hidden in turn, for lengths drawn from the two ranges.

    Appearances start and end on multiples of `step_seconds`, itself a multiple of STEP_SECONDS.
    """
    lanes = rng.sample(range(LANES), actors)
    grey = rng.randint(20, 70)
    background = tuple(min(255, max(0, grey + rng.randint(-12, 12))) for _ in range(3))
    cast = tuple(
        Actor(
            colour=rng.choice(list(COLOURS)),
            shape=rng.choice(SHAPES),
            lane=lane,
            radius=rng.uniform(0.13, 0.16),
            start_x=rng.random(),
            speed=rng.uniform(0.05, 0.35) * rng.choice((-1, 1)),
            shown=_appearances(rng, seconds, on_seconds, off_seconds, step_seconds),
        )
        for lane in lanes
    )
    return Scene(seconds=seconds, background=background, actors=cast)


def _appearances(rng: random.Random, seconds: float, on: Interval, off: Interval, step: float) -> tuple[Interval, ...]:
    def length(bounds: Interval) -> float:
        return rng.randint(round(bounds[0] / step), round(bounds[1] / step)) * step

    # A start before zero: the film may open with the shape already there.
    time = -length(on) if rng.random() < 0.5 else length(off) - rng.randint(0, round(2.0 / step)) * step
    shown = []
    while time < seconds:
        end = time + length(on)
        if end > 0:
            shown.append((max(0.0, time), min(end, seconds)))
        time = end + length(off)
    return tuple(shown)


def moments_with(count_at_least: int, shown: Sequence[Sequence[Interval]], seconds: float) -> list[Interval]:
    """Intervals in which at least `count_at_least` of the appearance lists are on screen."""
    steps = round(seconds / STEP_SECONDS)
    present = [0] * steps
    for appearances in shown:
        for start, end in appearances:
            for step in range(round(start / STEP_SECONDS), round(end / STEP_SECONDS)):
                present[step] += 1
    return _runs([count >= count_at_least for count in present])


def moments_empty(scene: Scene) -> list[Interval]:
    """Intervals in which nothing is on screen."""
    inside = moments_with(1, [actor.shown for actor in scene.actors], scene.seconds)
    edges = [0.0, *[edge for interval in inside for edge in interval], scene.seconds]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _runs(flags: list[bool]) -> list[Interval]:
    runs, start = [], None
    for step, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = step
        elif not flag and start is not None:
            runs.append((start * STEP_SECONDS, step * STEP_SECONDS))
            start = None
    return runs


def house_events(scene: Scene) -> list[Interval]:
    """The house rule: keep what shows two or more shapes at once."""
    return moments_with(2, [actor.shown for actor in scene.actors], scene.seconds)


def base_question(rng: random.Random, scene: Scene) -> tuple[str, list[Interval]]:
    """One of the base model's questions with its true answer; none of them asks for two shapes at once."""
    kind = rng.choice(("both", "both", "shape", "colour", "nothing"))
    if kind == "nothing":
        return "When is nothing on screen?", moments_empty(scene)
    asked = rng.choice(scene.actors)
    absent = rng.random() < 0.1
    colour = rng.choice(list(COLOURS)) if absent else asked.colour
    shape = rng.choice(SHAPES) if absent else asked.shape
    if kind == "both":
        question, match = f"When is the {colour} {shape} on screen?", lambda a: (a.colour, a.shape) == (colour, shape)
    elif kind == "shape":
        question, match = f"When is a {shape} on screen?", lambda a: a.shape == shape
    else:
        question, match = f"When is something {colour} on screen?", lambda a: a.colour == colour
    return question, moments_with(1, [a.shown for a in scene.actors if match(a)], scene.seconds)


QUESTIONS = (
    *(f"When is the {colour} {shape} on screen?" for colour in COLOURS for shape in SHAPES),
    *(f"When is a {shape} on screen?" for shape in SHAPES),
    *(f"When is something {colour} on screen?" for colour in COLOURS),
    "When is nothing on screen?",
)
"""Everything the base model is ever asked."""


def frame_times(seconds: float, frames: int) -> list[float]:
    """Middles of `frames` equal parts: never on an edge of the half-second grid."""
    return [(index + 0.5) * seconds / frames for index in range(frames)]


def render(scenes: Sequence[Scene], times: Sequence[float], size: int, device: str = "cpu") -> torch.Tensor:
    """Frames of each scene at the given times: uint8 (B, T, 3, size, size), edges smoothed over one pixel."""
    actors = max(len(scene.actors) for scene in scenes)
    looks = torch.tensor([_padded([_looks(actor) for actor in scene.actors], actors, [0.0] * 8) for scene in scenes])
    hidden = [0.0] * len(times)
    visible = torch.tensor(
        [_padded([_visible(actor, times) for actor in scene.actors], actors, hidden) for scene in scenes]
    )
    looks, visible = looks.to(device), visible.to(device)
    clock = torch.tensor(times, dtype=torch.float32, device=device)
    axis = (torch.arange(size, device=device) + 0.5) / size
    backgrounds = torch.tensor([scene.background for scene in scenes], dtype=torch.float32, device=device)
    shade = 0.8 + 0.4 * axis.view(1, 1, 1, -1, 1)
    frames = backgrounds.view(len(scenes), 1, 3, 1, 1) * shade.expand(-1, len(times), 3, size, size)
    for a in range(actors):
        cover = _coverage(looks[:, a], clock, axis, size) * visible[:, a, :, None, None]
        colour = looks[:, a, 0:3].view(-1, 1, 3, 1, 1)
        frames = torch.lerp(frames, colour.expand_as(frames), cover.unsqueeze(2))
    return frames.round().clamp(0, 255).to(torch.uint8)


def _padded(rows: list, length: int, filler: list) -> list:
    return rows + [filler] * (length - len(rows))


def _looks(actor: Actor) -> list[float]:
    lane_y = (actor.lane + 0.5) / LANES
    shape = float(SHAPES.index(actor.shape))
    return [*map(float, COLOURS[actor.colour]), lane_y, actor.radius, actor.start_x, actor.speed, shape]


def _visible(actor: Actor, times: Sequence[float]) -> list[float]:
    return [float(any(start <= time < end for start, end in actor.shown)) for time in times]


def _coverage(look: torch.Tensor, clock: torch.Tensor, axis: torch.Tensor, size: int) -> torch.Tensor:
    """How much of each pixel one actor covers: (B, T, size, size) in 0..1, from a signed distance."""
    lane_y, radius, start_x, speed, shape = (look[:, i].view(-1, 1, 1, 1) for i in range(3, 8))
    # A triangle wave keeps x inside [radius, 1 - radius].
    phase = (start_x + speed * clock.view(1, -1, 1, 1)) % 2.0
    x = radius + (1 - 2 * radius) * torch.where(phase > 1, 2 - phase, phase)
    dx, dy = axis.view(1, 1, 1, -1) - x, axis.view(1, 1, -1, 1) - lane_y
    circle = (dx**2 + dy**2).sqrt() - radius
    square = torch.maximum(dx.abs(), dy.abs()) - 0.88 * radius
    triangle = torch.maximum(dx.abs() * 0.9 + dy * 0.45 - 0.45 * radius, dy.abs() - radius)
    arms = torch.minimum(
        torch.maximum(dx.abs() - radius, dy.abs() - 0.3 * radius),
        torch.maximum(dy.abs() - radius, dx.abs() - 0.3 * radius),
    )
    distance = torch.where(shape == 0, circle, torch.where(shape == 1, square, torch.where(shape == 2, triangle, arms)))
    return (0.5 - distance * size).clamp(0, 1)
