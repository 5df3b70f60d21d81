"""Does a setting do anything? Change it, ask the real processor, compare; then once more beside every other setting.

A knob is judged by what moves: frames, grid, tokens or the text with its timestamps, on clips above every cap and below
every floor. Alone first, then in pairs, because some settings work only when another one is on.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course_lib.errors import CourseError
from course_lib.tokens.families import VideoModel
from course_lib.tokens.fetch_video import ENVIRONMENT
from course_lib.tokens.judge import processor_class
from course_lib.tokens.routes import OTHER_ROUTES, PROBES, ROUTES, Bench, Probe, Seen

if TYPE_CHECKING:
    from course_lib.media.video import VideoInfo

WORKS, NOTHING, TOGETHER, ERROR = "works", "does nothing", "only together", "error"
_SQUARE = 32 * 32
CANDIDATES: dict[str, tuple[Any, ...]] = {
    "size": ({"shortest_edge": 16 * _SQUARE, "longest_edge": 200 * _SQUARE}, {"height": 224, "width": 224}),
    "max_pixels": (100 * _SQUARE,),
    "min_pixels": (3000 * _SQUARE,),
    "total_pixels": (100 * _SQUARE,),
    "cap_pixels_per_frame": (True,),
    "max_video_tokens": (64,),
    "max_soft_tokens": (280,),
    "max_image_size": ({"longest_edge": 224},),
    "do_resize": (False,),
    "do_sample_frames": (True, False),
    "num_frames": (12,),
    "nframes": (12,),
    "fps": (0.5, None),
    "min_frames": (64,),
    "max_frames": (6,),
}
"""Values that must show on at least one probe if the knob does anything."""
LIKELY_COMPANIONS = ("cap_pixels_per_frame", "max_video_tokens", "do_sample_frames", "fps", "num_frames")
"""Asked first, so that the switch that a setting belongs to is named before a limit that makes it visible."""
SAMPLING_PAIRS = (
    {"do_sample_frames": True, "fps": 2.0},
    {"do_sample_frames": True, "num_frames": 12},
    {"num_frames": 12, "fps": 2.0},
)
"""Two companions at once: sampling switched on, and a rate or a number to limit."""
TRIED_EVERYWHERE = ("max_pixels", "min_pixels", "total_pixels", "nframes", "min_frames", "max_frames")
"""Knobs that people pass to every family, whether its processor knows them or not."""
ELEMENT_KNOBS = (
    "max_pixels", "min_pixels", "total_pixels", "nframes", "fps", "min_frames", "max_frames", "num_frames", "size",
    "max_video_tokens",
)  # fmt: skip
ENVIRONMENT_VARIABLES = {
    "VIDEO_MAX_TOKEN_NUM": 64, "VIDEO_MIN_TOKEN_NUM": 16, "FPS_MAX_FRAMES": 6, "FPS": 0.5, "MAX_PIXELS": 100_000,
    "VIDEO_MAX_PIXELS": 100_000, "VIDEO_TOTAL_PIXELS": 100_000, "MODEL_SEQ_LEN": 1000,
}  # fmt: skip
_PIXEL_KNOBS = ("size", "max_pixels", "min_pixels", "total_pixels")


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one knob does by one route. `companion`: the setting it needs; `meaning`: per frame or whole video."""

    knob: str
    route: str
    outcome: str
    companion: str = ""
    meaning: str = ""
    error: str = ""

    def words(self) -> str:
        if self.outcome == TOGETHER:
            alone = f" (alone: {self.error.split(':')[0]})" if self.error else ""
            return f"only together with {self.companion}{alone}"
        if self.outcome == ERROR:
            return f"error ({self.error.split(':')[0]})"
        return f"{self.outcome} ({self.meaning})" if self.meaning else self.outcome


def judge_knob(
    bench: Bench,
    knob: str,
    *,
    route: str,
    values: tuple[Any, ...] | None = None,
    beside: dict[str, Any] | None = None,
    pairs: bool = True,
) -> Verdict:
    """What `knob` does when it is passed by `route`.

    Args:
        values: tried in turn; None: CANDIDATES. beside: other settings that are passed too.
        pairs: look for a setting that it needs beside it when it does nothing alone.
    """
    beside, values = beside or {}, CANDIDATES.get(knob, ()) if values is None else values
    moved, error = _first_move(bench, knob, values, route, beside)
    if moved is not None:
        return _working(bench, knob, moved[0], route, beside)
    if pairs and (companion := _companion(bench, knob, values, route, beside)):
        return Verdict(knob=knob, route=route, outcome=TOGETHER, companion=companion, error=error)
    return Verdict(knob=knob, route=route, outcome=ERROR if error else NOTHING, error=error)


def audit_model(model: VideoModel, knobs: tuple[str, ...] | None = None) -> list[Verdict]:
    """Every knob by every route that can be asked for `model` (the environment is asked separately: it is slow).

    knobs: None: those that the processor's class names as its own, and those that people try everywhere.
    """
    with Bench(model) as bench:
        own = processor_class(model.family).valid_kwargs.__annotations__
        knobs = knobs or tuple(name for name in CANDIDATES if name in own or name in TRIED_EVERYWHERE)
        return [judge_knob(bench, knob, route=route) for knob in knobs for route in bench.routes]


def audit_environment(model: VideoModel, variables: dict[str, Any] | None = None) -> dict[str, bool]:
    """Which environment variables move what the processor answers, asked of fresh interpreters.

    All are set at once first: when nothing moves, none of them is read, and two questions were enough.
    """
    variables = ENVIRONMENT_VARIABLES if variables is None else variables
    with Bench(model) as bench:
        base = bench.observe("environment", {}, PROBES[0])
        if bench.observe("environment", variables, PROBES[0]) == base:
            return dict.fromkeys(variables, False)
        return {
            name: bench.observe("environment", {name: value}, PROBES[0]) != base for name, value in variables.items()
        }


def parse_knobs(pairs: list[str]) -> dict[str, Any]:
    """{"max_pixels": 200704} from ["max_pixels=200704"]; values are JSON, else text. Raises CourseError."""
    knobs = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals and text):
            raise CourseError(f"{pair!r} is not NAME=VALUE", where="--knob", fix="For example --knob max_pixels=200704")
        try:
            knobs[name] = json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
        except json.JSONDecodeError:
            knobs[name] = text
    return knobs


def audit_knobs(model: VideoModel, knobs: dict[str, Any], *, info: "VideoInfo", route: str) -> list[dict[str, Any]]:
    """For `course tokens --knob`: each knob, beside the others, by one route or by all; JSON-ready records."""
    if route != "all" and route not in ROUTES + OTHER_ROUTES:
        raise CourseError(
            f"unknown route {route!r}", where="--route", fix="Known: all, " + ", ".join(ROUTES + OTHER_ROUTES)
        )
    clip = Probe(frames=info.frames, rate=info.average_fps, height=info.height, width=info.width)
    with Bench(model) as bench:
        return [_knob_record(bench, name, knobs, clip, route) for name in knobs]


def _knob_record(bench: Bench, name: str, knobs: dict[str, Any], clip: Probe, route: str) -> dict[str, Any]:
    beside = {other: value for other, value in knobs.items() if other != name}
    # Variables are written in capitals and have one way in; they are not arguments of anything.
    routes = (("environment",) if name.isupper() else bench.routes) if route == "all" else (route,)
    if name.isupper():
        beside = {other: value for other, value in beside.items() if other.isupper()}
    else:
        beside = {other: value for other, value in beside.items() if not other.isupper()}
    verdicts, on_clip = [], []
    for way in routes:
        moves = _moves(bench, name, knobs[name], way, beside, clip)
        if moves is True:
            on_clip.append(way)
            verdicts.append(_working(bench, name, knobs[name], way, beside))
        elif isinstance(moves, str):
            verdicts.append(Verdict(knob=name, route=way, outcome=ERROR, error=moves))
        else:
            values = (knobs[name],) if way == "environment" else (knobs[name], *CANDIDATES.get(name, ()))
            verdicts.append(judge_knob(bench, name, route=way, values=values, beside=beside, pairs=False))
    if not any(v.outcome == WORKS for v in verdicts):
        # Only a knob that does nothing anywhere is worth the long search for what it needs beside it.
        searched = ("constructor", "call") if len(verdicts) > 1 else routes
        verdicts = [
            judge_knob(bench, name, route=v.route, values=(knobs[name],), beside=beside) if v.route in searched else v
            for v in verdicts
        ]
    works = [v.route for v in verdicts if v.outcome == WORKS]
    others = "; ".join(f"{v.route}: {v.words()}" for v in verdicts if v.outcome != WORKS)
    best = next((v for v in verdicts if v.outcome == WORKS), verdicts[0])
    if on_clip:
        sentence = f"{name} moves this clip by {', '.join(on_clip)}" + (f" ({best.meaning})" if best.meaning else "")
    elif works:
        sentence = f"{name} works by {', '.join(works)}, but this value changes nothing on this clip"
    else:
        sentence = f"{name} is inert for {bench.model.family.title}"
        known = next((what for variable, _, what in ENVIRONMENT if variable == name), "")
        sentence += f"; qwen-vl-utils: {known}" if known else ""
    return {
        "name": name,
        "value": knobs[name],
        "inert": not works,
        "moves_this_clip": bool(on_clip),
        "verdict": best.words(),
        "routes": {v.route: v.words() for v in verdicts},
        "sentence": sentence + (f" ({others})" if others else ""),
    }


def _working(bench: Bench, knob: str, value: Any, route: str, beside: dict[str, Any]) -> Verdict:
    meaning = _meaning(bench, knob, (value,), route, beside)
    return Verdict(knob=knob, route=route, outcome=WORKS, meaning=meaning)


def _first_move(
    bench: Bench, knob: str, values: tuple[Any, ...], route: str, beside: dict[str, Any]
) -> tuple[Any, str]:
    """The first value that moves a probe (None, when none does), and the error when every try was refused."""
    errors, tried = [], 0
    for value in values:
        for probe in PROBES:
            tried += 1
            outcome = _moves(bench, knob, value, route, beside, probe)
            if outcome is True:
                return (value,), ""
            if isinstance(outcome, str):
                errors.append(outcome)
    return None, errors[0] if errors and len(errors) == tried else ""


def _moves(bench: Bench, knob: str, value: Any, route: str, beside: dict[str, Any], probe: Probe) -> bool | str:
    """True when adding the knob changes the answer; the library's words when it refuses."""
    before, after = bench.observe(route, beside, probe), bench.observe(route, {**beside, knob: value}, probe)
    if after.error:
        return after.error
    return after != before


def _companion(bench: Bench, knob: str, values: tuple[Any, ...], route: str, beside: dict[str, Any]) -> str:
    """The first other setting beside which `knob` moves something, as name=value; empty when there is none."""
    if route == "environment":
        return ""
    own = processor_class(bench.model.family).valid_kwargs.__annotations__
    names = (*LIKELY_COMPANIONS, *(name for name in CANDIDATES if name not in LIKELY_COMPANIONS))
    pairs = [{other: value} for other in names if other in own for value in CANDIDATES[other]]
    for pair in (*pairs, *SAMPLING_PAIRS):
        if knob in pair or beside.keys() & pair.keys():
            continue
        for value in values:
            if any(_moves(bench, knob, value, route, {**beside, **pair}, probe) is True for probe in PROBES):
                return " and ".join(f"{name}={json.dumps(other)}" for name, other in pair.items())
    return ""


def _meaning(bench: Bench, knob: str, moved: tuple[Any], route: str, beside: dict[str, Any]) -> str:
    """Whether a pixel limit counts one frame or the whole video: ask for 8 and for 16 frames of the same clip."""
    if knob not in _PIXEL_KNOBS or bench.model.family.rule == "fixed":
        return ""
    seen = []
    for frames in (8, 16):
        probe = Probe(frames=frames, rate=2.0, height=1152, width=640)
        seen.append(bench.observe(route, {**beside, knob: moved[0]}, probe))
    return _per_step_change(*seen)


def _per_step_change(few: Seen, many: Seen) -> str:
    if few.error or many.error or few.thw is None or many.thw is None or few.thw[0] == many.thw[0]:
        return ""
    one, other = few.thw[1] * few.thw[2], many.thw[1] * many.thw[2]
    return "per frame" if one == other else "whole video"
