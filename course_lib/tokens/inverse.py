"""The bill read backwards: so many tokens are there, what can a clip have? Frames, size, and the settings that do it.

At one price a clip can be seen often and small or seldom and sharp: `curve` is that trade, `fit_tokens` one point.
Every offer is a plan, so `check.check_plan` asks the installed library whether the settings do what they say.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from course_lib.errors import FINDING, CourseError
from course_lib.tokens.families import VideoModel
from course_lib.tokens.plan import SOFT_TOKEN_CAPS, Budget, TokenPlan, own_indices, plan_clip

if TYPE_CHECKING:
    from course_lib.media.video import VideoInfo

SMALLEST_FRAME_TOKENS = 4
"""The floor that offers use: qwen-vl-utils' own for pictures. Its 128 for video frames would overrule small caps."""
MOST_FRAMES = 768


def curve(
    info: "VideoInfo", model: VideoModel, total_tokens: int, *, most_frames: int = MOST_FRAMES
) -> list[TokenPlan]:
    """For each number of frames: the sharpest plan whose total (visual and text tokens) is at most `total_tokens`.

    Frame counts are whole temporal patches; counts that do not fit at any size are left out, so the list may be empty.
    """
    step = model.settings.temporal_patch_size
    counts = _counts(step, min(info.frames, most_frames))
    return [plan for count in counts if (plan := sharpest(info, model, total_tokens, frames=count)) is not None]


def sharpest(info: "VideoInfo", model: VideoModel, total_tokens: int, *, frames: int) -> TokenPlan | None:
    """The plan with the most tokens per frame for `frames` frames within `total_tokens`; None when none fits."""
    for cap in _caps(info, model, total_tokens, frames):
        plan = plan_clip(info, model, Budget(frames=frames, max_tokens_per_frame=cap, min_tokens_per_frame=_floor(cap)))
        if plan.total_tokens <= total_tokens:
            return plan
    return None


def fit_tokens(
    info: "VideoInfo", model: VideoModel, total_tokens: int, *, frames: int | None = None,
    least_tokens_per_frame: float | None = None,
) -> TokenPlan:  # fmt: skip
    """One plan within `total_tokens`.

    Args:
        frames: fixed: the sharpest plan for that number.
        least_tokens_per_frame: detail that must remain (None: the family's reference floor, 128 for Qwen): the plan has
            as many frames as that allows, but no more than the model's own rate takes.
    Raises CourseError when nothing fits, with the least that would.
    """
    if frames is not None:
        plan = sharpest(info, model, total_tokens, frames=frames)
        if plan is None:
            raise _nothing_fits(model, total_tokens, f"{frames} frames")
        return plan
    least = model.family.reference_min_tokens if least_tokens_per_frame is None else least_tokens_per_frame
    most = min(_own_count(info, model), info.frames)
    offers = curve(info, model, total_tokens, most_frames=most)
    # The clip itself may be smaller than the detail asked for: its natural size is all there is.
    sharp = [plan for plan in offers if plan.grid.tokens_per_step >= least or not _is_capped(plan, info, model)]
    if not sharp:
        raise _nothing_fits(model, total_tokens, f"frames of {least:g} tokens")
    return sharp[-1]


def _counts(step: int, limit: int) -> Iterator[int]:
    """Whole temporal patches up to `limit`: each up to 64 patches, then every eighth, so that curves stay short."""
    for patches in range(1, limit // step + 1):
        if patches <= 64 or patches % 8 == 0:
            yield patches * step


def _caps(info: "VideoInfo", model: VideoModel, total_tokens: int, frames: int) -> Iterator[float]:
    """Caps per frame worth trying, the largest first."""
    if model.family.rule == "fixed":
        yield float(model.settings.tokens_per_frame)
        return
    if model.family.rule == "within_patches":
        yield from reversed(SOFT_TOKEN_CAPS)
        return
    text = plan_clip(info, model, Budget(frames=frames)).text.tokens
    steps = -(-frames // model.settings.temporal_patch_size)
    cap = (total_tokens - text) // steps
    # Rounding up of very small or very long pictures can overshoot a cap: then a smaller one is tried.
    while cap >= 1:
        yield float(cap)
        cap = min(cap - 1, int(cap * 0.9))


def _floor(cap: float) -> float:
    return min(SMALLEST_FRAME_TOKENS, cap / 2)


def _is_capped(plan: TokenPlan, info: "VideoInfo", model: VideoModel) -> bool:
    free = plan_clip(info, model, Budget(frames=plan.frames))
    return plan.grid.tokens_per_step < free.grid.tokens_per_step


def _own_count(info: "VideoInfo", model: VideoModel) -> int:
    try:
        return len(own_indices(model, info.frames, info.average_fps, info.duration_seconds))
    except CourseError:
        # A family without a rule of its own: two frames a second, as Qwen's tools take.
        return max(round(2 * info.duration_seconds), 1)


def _nothing_fits(model: VideoModel, total_tokens: int, what: str) -> CourseError:
    return CourseError(
        f"{total_tokens} tokens do not buy {what} for {model.family.title}",
        fix="Raise the budget, take fewer frames, or accept less detail",
        exit_code=FINDING,
    )
