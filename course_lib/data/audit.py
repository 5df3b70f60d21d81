"""What every sample of a run will cost, before a GPU is paid for: from file headers and arithmetic, nothing is decoded.

Per sample: requested budget → effective budget → frames → grid → tokens → timestamps → supervised tokens, equal to
what GroundingDataset builds (a test holds it). Not here: what the installed library says about it (audit_built.py),
opening the files (audit_clips.py), the batches of a running training (train/audit_callback.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.config.run_config import BudgetSection
from course_lib.data.windows import Window
from course_lib.errors import CourseError
from course_lib.media.video import VideoInfo, nearest_indices
from course_lib.tokens.families import VideoModel, video_model
from course_lib.tokens.fetch_video import FLOOR_MARGIN
from course_lib.tokens.grids import video_grid
from course_lib.tokens.plan import Budget, plan_frames
from course_lib.tokens.text import pieces

if TYPE_CHECKING:
    import numpy as np

NO_LIMIT = 10**15
"""Pixels that no clip has."""
_TEMPLATE_TOKENS = 12
"""Turn marks and roles of a chat template, where no tokenizer is at hand to count them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleAudit:
    """One sample. `tokens == visual_tokens + text_tokens`."""

    index: int
    clip: Path
    start_seconds: float
    width: int
    """Of the clip, before the resize."""
    height: int
    frames: int
    """Frames that are handed to the processor."""
    distinct_frames: int
    grid: tuple[int, int, int]
    tokens_per_step: int
    limited_by: str
    """What decided the size: "own size", "max_tokens_per_frame", "min_tokens_per_frame", or "longest_edge" where
    the cap did not reach the processor."""
    effective_cap: float
    """Visual tokens per frame that the processor allows, floors and shares included."""
    visual_tokens: int
    text_tokens: int
    """Everything else: template, question, times, wrappers, answer."""
    supervised_tokens: int
    frame_seconds: tuple[float, ...]
    """Time of each frame, counted from the window's start, in whole milliseconds."""
    timestamps_seconds: tuple[float, ...]
    """Time of each grid step."""
    exact: bool
    """False: the text was counted without the model's tokenizer."""
    findings: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return self.visual_tokens + self.text_tokens

    @property
    def where(self) -> str:
        return f"{self.clip.name} at {self.start_seconds:g} s"

    def as_record(self) -> dict[str, Any]:
        """The stable JSON form."""
        names = (
            "index", "start_seconds", "width", "height", "frames", "distinct_frames", "tokens_per_step", "limited_by",
            "visual_tokens", "text_tokens", "tokens", "supervised_tokens", "exact",
        )  # fmt: skip
        return {
            "clip": str(self.clip), **{name: getattr(self, name) for name in names}, "grid": list(self.grid),
            "effective_cap": round(self.effective_cap, 2),
            "timestamps_seconds": [round(second, 4) for second in self.timestamps_seconds],
            "findings": list(self.findings),
        }  # fmt: skip


class SampleAuditor:
    """Audits windows one after the other; what depends on the picture's size alone is computed once.

    Args:
        model: family and effective settings (`effective_model`). budget: what was asked for.
        processor: the model's own, from load_processor; None counts the text by rule instead of by its tokenizer.
    """

    def __init__(self, model: VideoModel, budget: BudgetSection, processor: Any = None) -> None:
        self.model, self.budget, self.processor = model, budget, processor
        self._sizes: dict[tuple[int, int, int], str] = {}
        self._prompts: dict[str, str] = {}
        self._answers: dict[str, tuple[str, int]] = {}

    def audit(self, window: Window, info: VideoInfo) -> SampleAudit:
        """The bill of one window. Raises CourseError where the processor would raise."""
        indices, seconds = frames_of(window, info.timestamps_seconds, self.budget.frames)
        seconds = [max(0, round(1000 * float(second))) / 1000 for second in seconds]
        plan = plan_frames(
            self.model, Budget(), seconds=seconds, height=info.height, width=info.width,
            duration_seconds=window.seconds,
        )  # fmt: skip
        text_tokens, supervised = self._text_tokens(window, plan.text)
        sample = SampleAudit(
            index=window.index,
            clip=window.video,
            start_seconds=window.start_seconds,
            width=info.width,
            height=info.height,
            frames=len(seconds),
            distinct_frames=len(set(indices.tolist())),
            grid=plan.grid.thw,
            tokens_per_step=plan.grid.tokens_per_step,
            limited_by=self._limit(len(seconds), info.height, info.width),
            effective_cap=effective_cap(self.model, len(seconds)),
            visual_tokens=plan.visual_tokens,
            text_tokens=text_tokens,
            supervised_tokens=supervised,
            frame_seconds=tuple(seconds),
            timestamps_seconds=plan.timestamps,
            exact=self.processor is not None,
            findings=(),
        )
        return replace(sample, findings=tuple(budget_findings(sample, self.budget)))

    def _limit(self, frames: int, height: int, width: int) -> str:
        """Which setting the size depends on: the one without which it would be another."""
        key = (frames, height, width)
        if key not in self._sizes:
            settings, family = self.model.settings, self.model.family
            loose = replace(settings, longest_edge=NO_LIMIT, cap_pixels_per_frame=False)

            def grid(changed):
                return video_grid(family, changed, frames=frames, height=height, width=width).thw

            effective = grid(settings)
            if effective == grid(replace(loose, shortest_edge=1)):
                limit = "own size"
            elif effective == grid(loose) or _floor_wins(effective_cap(self.model, frames), self.budget):
                limit = "min_tokens_per_frame"
            elif effective_cap(self.model, frames) > self.budget.max_tokens_per_frame + 0.5:
                limit = "longest_edge"
            else:
                limit = "max_tokens_per_frame"
            self._sizes[key] = limit
        return self._sizes[key]

    def _text_tokens(self, window: Window, clip_text: Any) -> tuple[int, int]:
        """Tokens that are not visual, and those of the answer with its end."""
        if self.processor is None:
            answer = pieces(window.answer) + 1
            return clip_text.tokens + pieces(window.question) + _TEMPLATE_TOKENS + answer, answer
        answer, supervised = self._answer(window.answer)
        text = self._expanded(window.question, clip_text.labels) + answer
        ids = self.processor.tokenizer(text)["input_ids"]
        return len(ids) - max(len(clip_text.labels), 1), supervised

    def _answer(self, answer: str) -> tuple[str, int]:
        from course_lib.data.grounding import answer_text

        if answer not in self._answers:
            text = answer_text(self.processor, answer)
            self._answers[answer] = text, len(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"])
        return self._answers[answer]

    def _expanded(self, question: str, labels: Sequence[str]) -> str:
        """The prompt as the processor rewrites it, with one placeholder for each run of them."""
        from course_lib.data.grounding import render_prompt

        if question not in self._prompts:
            self._prompts[question] = render_prompt(self.processor, question)
        prompt, video = self._prompts[question], self.processor.video_token
        if not labels:
            return prompt
        # Source: transformers 5.24 `Qwen3VLProcessor.replace_video_token`.
        start, end = self.processor.vision_start_token, self.processor.vision_end_token
        return prompt.replace(video, "".join(f"{label}{start}{video}{end}" for label in labels), 1)


def effective_model(name: str, budget: BudgetSection, processor: Any = None) -> VideoModel:
    """The family of a model with the settings that really hold: those of `processor` as the budget left it.

    Without a processor, the published settings of the family under the rule of `load_processor`.
    Raises CourseError for a name that belongs to no family.
    """
    model = video_model(name)
    settings = model.settings
    if processor is None:
        per_token = settings.factor**2
        longest = max(settings.longest_edge or 0, budget.max_tokens_per_frame * per_token * budget.frames)
        changes = {
            "cap_pixels_per_frame": True, "max_video_tokens": budget.max_tokens_per_frame,
            "shortest_edge": budget.min_tokens_per_frame * per_token, "longest_edge": longest,
        }  # fmt: skip
    else:
        video = processor.video_processor
        names = (
            "patch_size",
            "merge_size",
            "temporal_patch_size",
            "cap_pixels_per_frame",
            "max_video_tokens",
            "do_resize",
        )
        changes = {name: getattr(video, name) for name in names if getattr(video, name, None) is not None}
        changes |= {edge: video.size[edge] for edge in ("shortest_edge", "longest_edge")}
        changes["source"] = f"the processor of {name}, with the run's budget"
    return replace(model, settings=replace(settings, do_sample_frames=False, **changes))


def frames_of(window: Window, timestamps_seconds: "np.ndarray", frames: int) -> "tuple[np.ndarray, np.ndarray]":
    """Indices of the frames that a window's sample takes, and their times from the window's start (frames,).

    The rule of GroundingDataset.frames: the frames nearest to the middles of equal parts.
    """
    wanted = [window.start_seconds + (k + 0.5) * window.seconds / frames for k in range(frames)]
    indices = nearest_indices(timestamps_seconds, wanted)
    return indices, timestamps_seconds[indices] - window.start_seconds


def effective_cap(model: VideoModel, frames: int) -> float:
    """Visual tokens per frame that the settings allow for a clip of `frames` frames."""
    from course_lib.tokens.grids import per_frame_pixels, whole_video_pixels

    settings = model.settings
    if model.family.rule == "per_frame":
        return per_frame_pixels(settings, frames) / settings.factor**2
    return whole_video_pixels(settings, frames) / frames / settings.factor**2


def budget_findings(sample: SampleAudit, asked: BudgetSection) -> list[str]:
    """Sentences for every part of the budget that did not do what it says for this sample."""
    found, cost = [], f"had no effect: {sample.tokens_per_step} tokens per frame"
    if sample.tokens_per_step > asked.max_tokens_per_frame:
        wins = _floor_wins(sample.effective_cap, asked)
        reason = f": the floor of {asked.min_tokens_per_frame} allows {int(sample.effective_cap)}" if wins else ""
        found.append(f"max_tokens_per_frame {asked.max_tokens_per_frame} {cost}{reason}")
    elif sample.limited_by != "own size" and sample.effective_cap < asked.max_tokens_per_frame - 0.5:
        found.append(
            f"max_tokens_per_frame {asked.max_tokens_per_frame} means {sample.effective_cap:.1f} here: this processor "
            f"counts its cap over the whole clip of {sample.frames} frames"
        )
    if sample.tokens_per_step < asked.min_tokens_per_frame:
        found.append(f"min_tokens_per_frame {asked.min_tokens_per_frame} {cost}")
    return found


def _floor_wins(cap: float, asked: BudgetSection) -> bool:
    """Whether the cap that holds is the margin over the floor, and that allows a token more than was asked."""
    floor = FLOOR_MARGIN * asked.min_tokens_per_frame
    return int(floor) > asked.max_tokens_per_frame and cap <= floor


@dataclass(frozen=True, kw_only=True)
class SetAudit:
    """All samples of one set of windows, in their order."""

    samples: tuple[SampleAudit, ...]
    left_out: tuple[dict[str, str], ...] = ()
    """{"clip", "reason"} of each clip that cannot be used."""
    max_tokens: int | None = None

    @cached_property
    def lengths(self) -> list[int]:
        return [sample.tokens for sample in self.samples]

    @property
    def longest(self) -> SampleAudit:
        return max(self.samples, key=lambda sample: sample.tokens)

    @property
    def over_length(self) -> tuple[SampleAudit, ...]:
        if self.max_tokens is None:
            return ()
        return tuple(sample for sample in self.samples if sample.tokens > self.max_tokens)

    def findings(self) -> list[str]:
        """What is wrong, each kind once, with the first sample it is true of and how many there are."""
        places: dict[str, list[SampleAudit]] = {}
        for sample in self.samples:
            for finding in sample.findings:
                places.setdefault(finding, []).append(sample)
        lines = [_line(what, samples, len(self.samples)) for what, samples in places.items()]
        if self.over_length:
            worst = max(self.over_length, key=lambda sample: sample.tokens)
            what = f"{worst.tokens} tokens, {worst.tokens - self.max_tokens} over the limit of {self.max_tokens}"
            lines.append(_line(what, [worst, *self.over_length[1:]], len(self.samples)))
        return lines

    def notes(self) -> list[str]:
        """What costs without being wrong."""
        short = [sample for sample in self.samples if sample.distinct_frames < sample.frames]
        if not short:
            return []
        least = min(short, key=lambda sample: sample.distinct_frames)
        what = f"only {least.distinct_frames} different frames for {least.frames}: the rest repeat their neighbours"
        return [_line(what, [least, *short[1:]], len(self.samples))]

    def histogram(self, bins: int = 10) -> list[dict[str, int]]:
        """Samples by tokens, bins of equal width: {"from", "to", "samples"}, both ends included."""
        low, high = min(self.lengths), max(self.lengths)
        width = max(-(-(high - low + 1) // bins), 1)
        counts = [0] * -(-(high - low + 1) // width)
        for length in self.lengths:
            counts[(length - low) // width] += 1
        return [
            {"from": low + n * width, "to": min(low + (n + 1) * width - 1, high), "samples": count}
            for n, count in enumerate(counts)
        ]


def audit_windows(
    windows: Sequence[Window],
    infos: Mapping[Path, VideoInfo],
    auditor: SampleAuditor,
    *,
    left_out: Sequence[dict[str, str]] = (),
    max_tokens: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> SetAudit:
    """Audit each window. `progress` is called with the number of windows done.

    Raises CourseError naming the sample that the processor would refuse.
    """
    samples = []
    for window in windows:
        try:
            samples.append(auditor.audit(window, infos[window.video]))
        except CourseError as error:
            where = f"{window.video.name} at {window.start_seconds:g} s"
            raise CourseError(error.what, where=where, fix=error.fix, exit_code=error.exit_code) from error
        if progress is not None:
            progress(len(samples))
    return SetAudit(samples=tuple(samples), left_out=tuple(left_out), max_tokens=max_tokens)


def _line(what: str, samples: Sequence[SampleAudit], total: int) -> str:
    more = f" ({len(samples)} of {total} samples)" if len(samples) > 1 else ""
    return f"{samples[0].where}: {what}{more}"
