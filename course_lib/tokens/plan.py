"""The bill of one clip: requested budget → effective budget → frames → grid → tokens → timestamps → settings to pass.

Arithmetic only (thousands of clips a second); `check.py` asks the installed library the same question.
A budget is counted as the practitioner counts it, per frame: at most so many visual tokens for one picture. Where two
frames share a step (Qwen), a step costs what one frame is allowed, so n frames cost n/2 times the cap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from course_lib.errors import CourseError
from course_lib.tokens import sampling
from course_lib.tokens.families import Family, Settings, VideoModel
from course_lib.tokens.fetch_video import FLOOR_MARGIN, frame_limits
from course_lib.tokens.grids import Grid, video_grid
from course_lib.tokens.resize import round_to
from course_lib.tokens.text import ClipText, clip_text, step_seconds

if TYPE_CHECKING:
    from course_lib.media.video import VideoInfo

SOFT_TOKEN_CAPS = (70, 140, 280, 560, 1120)
"""The only values Gemma 4's max_soft_tokens takes."""
TICKS_PER_SECOND = 1000
"""Real times are handed to processors as whole milliseconds: index i at 1000 "frames" a second is i / 1000 s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What is asked for; None leaves the decision to the model's own settings."""

    frames: int | None = None
    fps: float | None = None
    max_tokens_per_frame: float | None = None
    min_tokens_per_frame: float | None = None
    total_tokens: float | None = None
    """Visual tokens of the whole clip."""

    def __post_init__(self) -> None:
        for name in ("frames", "fps", "max_tokens_per_frame", "total_tokens"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise CourseError(f"{name} must be above 0, got {value}")
        if self.min_tokens_per_frame is not None and self.min_tokens_per_frame < 0:
            raise CourseError(f"min_tokens_per_frame must not be negative, got {self.min_tokens_per_frame}")
        if self.frames is not None and self.fps is not None:
            raise CourseError("frames and fps exclude each other", fix="Give one of them")

    @property
    def limits_size(self) -> bool:
        given = (self.max_tokens_per_frame, self.min_tokens_per_frame, self.total_tokens)
        return any(value is not None for value in given)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPlan:
    """One clip's bill. `total_tokens == grid.visual_tokens + text.tokens`."""

    model: VideoModel
    requested: Budget
    frames: int
    """Frames that are handed to the processor."""
    padded_frames: int
    """Frames it computes: the last one is repeated to fill a temporal patch."""
    max_tokens_per_frame: float | None
    """The cap that holds after floors and totals; None: the model's own limits decide."""
    min_tokens_per_frame: float | None
    limited_by: str
    settings: Settings
    """The model's settings with the budget applied."""
    call: dict[str, Any] = field(hash=False)
    """Arguments for the video processor's call that make it so."""
    grid: Grid
    text: ClipText
    indices: tuple[int, ...]
    frame_seconds: tuple[float, ...]
    """Real time of each frame."""
    timestamps: tuple[float, ...]
    """Time of each step as the model reads it."""
    findings: tuple[str, ...]
    """Where the clip will not cost what was asked; empty when the request is met."""

    @property
    def visual_tokens(self) -> int:
        return self.grid.visual_tokens

    @property
    def total_tokens(self) -> int:
        return self.grid.visual_tokens + self.text.tokens


def plan_clip(info: "VideoInfo", model: VideoModel, budget: Budget) -> TokenPlan:
    """The bill of a real file: by real time when `budget.frames` is given, else the model's own frames."""
    from course_lib.media.video import spread_indices

    times = info.timestamps_seconds
    findings = []
    if budget.frames is not None:
        count = min(budget.frames, info.frames)
        if count < budget.frames:
            findings.append(f"{budget.frames} frames were asked for, the clip has {info.frames}")
        indices = spread_indices(times, count)
    else:
        indices = own_indices(model, info.frames, info.average_fps, info.duration_seconds, fps=budget.fps)
        findings += _uneven(times, info.average_fps)
    plan = plan_frames(
        model, budget, seconds=times[indices].tolist(), height=info.height, width=info.width,
        duration_seconds=info.duration_seconds,
    )  # fmt: skip
    return replace(plan, indices=tuple(int(index) for index in indices), findings=(*findings, *plan.findings))


def plan_frames(
    model: VideoModel, budget: Budget, *, seconds: Sequence[float], height: int, width: int, duration_seconds: float
) -> TokenPlan:
    """The bill of frames that are already chosen: `seconds` are their times, height × width their size."""
    frames, family = len(seconds), model.family
    settings, low, high, limited_by, call = _with_budget(model, budget, frames)
    grid = video_grid(family, settings, frames=frames, height=height, width=width)
    ticks = [round(t * TICKS_PER_SECOND) / TICKS_PER_SECOND for t in seconds]
    return TokenPlan(
        model=model,
        requested=budget,
        frames=frames,
        padded_frames=grid.thw[0] * settings.temporal_patch_size,
        max_tokens_per_frame=high,
        min_tokens_per_frame=low,
        limited_by=limited_by,
        settings=settings,
        call=call,
        grid=grid,
        text=clip_text(family, settings, ticks, duration_seconds),
        indices=tuple(range(frames)),
        frame_seconds=tuple(seconds),
        timestamps=tuple(step_seconds(ticks, settings.temporal_patch_size)),
        findings=tuple(_unmet(family, budget, grid, low, high)),
    )


def own_indices(model: VideoModel, total: int, rate: float, duration_seconds: float, *, fps: float | None = None):
    """Frames that the model's own tools take when no number is asked for. int64 (n,).

    Qwen2 families: qwen-vl-utils' rule (their processor does not sample by itself); the others: their processor's.
    Raises CourseError for a family without a rule of its own.
    """
    import numpy as np

    s, name = model.settings, model.family.name
    if model.family.processor == "Qwen2VLVideoProcessor" or name == "longcat_omni":
        count = sampling.fetch_video_frames(
            total,
            rate,
            fps=fps or s.fps or 2.0,
            min_frames=min(s.min_frames, total),
            max_frames=min(s.max_frames, total),
        )
        return np.linspace(0, total - 1, count).round().astype(np.int64)
    if model.family.processor == "Qwen3VLVideoProcessor":
        return sampling.qwen3_indices(
            total, rate, num_frames=None if fps else s.num_frames, fps=fps or s.fps, min_frames=s.min_frames,
            max_frames=s.max_frames,
        )  # fmt: skip
    count = None if fps else s.num_frames
    if name == "smolvlm2" and s.num_frames and (fps or s.fps):
        return sampling.smolvlm_indices(
            total, rate, num_frames=s.num_frames, fps=fps or s.fps, duration_seconds=duration_seconds
        )
    if name == "smolvlm2" or (count is None and not fps):
        raise CourseError(f"{model.family.title} has no sampling rule of its own", fix="Give --frames or --fps")
    if name == "internvl":
        return sampling.middle_indices(total, rate, num_frames=count, fps=fps)
    return sampling.even_indices(total, rate, num_frames=None if count is None else min(count, total), fps=fps)


def processor_metadata(seconds: Sequence[float], duration_seconds: float) -> dict[str, Any]:
    """VideoMetadata for a processor call that prints these real times, whatever the clip's rate.

    `frames_indices` are milliseconds at 1000 frames a second, so index / fps is the frame's own time; for a window,
    pass times counted from its start.
    """
    return {
        "total_num_frames": max(round(duration_seconds * TICKS_PER_SECOND), 1),
        "fps": float(TICKS_PER_SECOND),
        "duration": duration_seconds,
        "frames_indices": [round(t * TICKS_PER_SECOND) for t in seconds],
    }


def _with_budget(
    model: VideoModel, budget: Budget, frames: int
) -> tuple[Settings, float | None, float | None, str, dict[str, Any]]:
    """Settings, effective floor and cap per frame, what decided the cap, and the call's arguments."""
    family, settings = model.family, replace(model.settings, do_sample_frames=False)
    call: dict[str, Any] = {"do_sample_frames": False}
    if not budget.limits_size:
        return settings, None, None, "the model's own settings", call
    if family.rule == "fixed":
        fixed = settings.tokens_per_frame
        return settings, fixed, fixed, f"{family.title} fixes {fixed} tokens per frame", call
    if family.rule == "within_patches":
        if budget.max_tokens_per_frame is None and budget.total_tokens is None:
            return settings, None, settings.max_soft_tokens, "the model's own settings", call
        wanted = min(budget.max_tokens_per_frame or 1e9, (budget.total_tokens or 1e18) / frames)
        cap = max((c for c in SOFT_TOKEN_CAPS if c <= wanted), default=SOFT_TOKEN_CAPS[0])
        return replace(settings, max_soft_tokens=cap), None, cap, "max_soft_tokens", {**call, "max_soft_tokens": cap}
    low = family.reference_min_tokens if budget.min_tokens_per_frame is None else budget.min_tokens_per_frame
    limits = frame_limits(
        frames, factor=settings.factor, min_tokens=low, total_tokens=budget.total_tokens,
        max_tokens=_natural_cap(model, frames) if budget.max_tokens_per_frame is None else budget.max_tokens_per_frame,
    )  # fmt: skip
    # The whole-video rule multiplies by frames rounded to pairs: the smaller count keeps every step under the cap.
    shares = 1
    if family.rule == "whole_video":
        shares = min(frames, round_to(frames, settings.temporal_patch_size)) or frames
    size = {"shortest_edge": max(limits.min_pixels * shares, 1), "longest_edge": int(limits.max_pixels * shares)}
    settings = replace(settings, **size, cap_pixels_per_frame=None if settings.cap_pixels_per_frame is None else False)
    if model.settings.cap_pixels_per_frame:
        call["cap_pixels_per_frame"] = False
    return settings, low, limits.max_pixels / settings.factor**2, limits.limited_by, {**call, "size": size}


def _natural_cap(model: VideoModel, frames: int) -> float:
    """Tokens per frame that the model's own settings allow, for a budget that sets only the floor or the total."""
    settings = model.settings
    pixels = settings.longest_edge
    if model.family.rule == "whole_video":
        pixels = settings.longest_edge / max(round_to(frames, settings.temporal_patch_size), 1)
    return pixels / settings.factor**2


def _unmet(family: Family, budget: Budget, grid: Grid, low: float | None, high: float | None) -> list[str]:
    """Sentences for every part of the request that this clip does not keep."""
    found, per_frame = [], grid.tokens_per_step
    if budget.max_tokens_per_frame is not None and per_frame > budget.max_tokens_per_frame:
        reason = ""
        if low is not None and high is not None and low * FLOOR_MARGIN > budget.max_tokens_per_frame:
            reason = f": the floor of {low:g} tokens overrules the cap (give --min-tokens-per-frame)"
        if family.rule == "fixed":
            reason = f": {family.title} fixes it; only fewer frames make the clip cheaper"
        if family.rule == "within_patches":
            reason = f": its smallest cap is {SOFT_TOKEN_CAPS[0]}"
        found.append(f"{per_frame} tokens per frame, not at most {budget.max_tokens_per_frame:g}{reason}")
    floor = budget.min_tokens_per_frame
    if floor is not None and per_frame < floor and family.rule in ("fixed", "within_patches"):
        found.append(f"{per_frame} tokens per frame, not at least {floor:g}: {family.title} knows no floor")
    if budget.total_tokens is not None and grid.visual_tokens > budget.total_tokens:
        found.append(f"{grid.visual_tokens} visual tokens, not at most {budget.total_tokens:g}: take fewer frames")
    return found


def _uneven(times: Any, rate: float) -> list[str]:
    """A warning when index / average rate is more than half a second away from a frame's real time."""
    import numpy as np

    error = float(np.abs(times - times[0] - np.arange(len(times)) / max(rate, 1e-9)).max())
    if error <= 0.5:
        return []
    return [f"variable rate: index / average rate is wrong by up to {error:.2f} s; give --frames to go by real time"]
