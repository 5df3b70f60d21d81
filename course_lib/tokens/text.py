"""The text that stands between visual tokens: timestamps, frame labels, separators, and how many tokens they are.

The texts are the wrappers' own (`replace_video_token`), held to them by tests. Their token counts follow one rule: a
digit, a mark and a word are one token each. That is exact for Qwen's tokenizers on "<0.2 seconds>"; for other families
it is an estimate until a folder with the checkpoint's tokenizer is given.
"""

import re
from dataclasses import dataclass

from course_lib.tokens.families import Family, Settings

_PIECES = re.compile(r" ?[^\W\d_]+|\d| ?[^\s\w]|\s")
"""Qwen's pre-tokenizer for the short labels here: words with their space, single digits, single marks."""
_EXACT = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni", "qwen3_vl", "qwen3_5", "qwen3_omni")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipText:
    """Text around the visual tokens of one clip. `tokens == before + sum(per_step) + after`."""

    labels: tuple[str, ...]
    """What the model reads before each step, empty for one run."""
    per_step: tuple[int, ...]
    """Text and separator tokens that come with each step; empty for one run."""
    before: int
    after: int
    exact: bool
    """False: counted by the rule above, with a tokenizer that was not seen."""

    @property
    def tokens(self) -> int:
        return self.before + sum(self.per_step) + self.after


def step_seconds(frame_seconds: list[float], temporal_patch_size: int) -> list[float]:
    """Time of each temporal step: the mean of its first and last frame; a missing last frame repeats the one before.

    Source: transformers 5.24 `Qwen3VLProcessor._calculate_timestamps`.
    """
    size = temporal_patch_size
    padded = list(frame_seconds) + [frame_seconds[-1]] * (-len(frame_seconds) % size)
    return [(padded[start] + padded[start + size - 1]) / 2 for start in range(0, len(padded), size)]


def clip_text(family: Family, settings: Settings, frame_seconds: list[float], duration_seconds: float) -> ClipText:
    """Labels and their tokens for frames shown at `frame_seconds`."""
    exact = family.name in _EXACT
    if family.text == "one_run":
        # vision_start and vision_end of the chat template; LLaVA-OneVision's template has no such pair.
        pair = 0 if family.name == "llava_onevision" else 1
        return ClipText(labels=(), per_step=(), before=pair, after=pair, exact=exact)
    if family.text == "timed_steps":
        labels = tuple(f"<{t:.1f} seconds>" for t in step_seconds(frame_seconds, settings.temporal_patch_size))
        return _labelled(labels, wrappers=2, before=1, after=1, exact=exact)
    if family.text == "numbered_frames":
        labels = tuple(f"{chr(10) if n else ''}Frame{n + 1}: " for n in range(len(frame_seconds)))
        return _labelled(labels, wrappers=2, before=0, after=0, exact=exact)
    if family.text == "clock_frames":
        labels = tuple(f"{' ' if n else ''}{clock(t)} " for n, t in enumerate(frame_seconds))
        return _labelled(labels, wrappers=2, before=0, after=0, exact=exact)
    if family.text == "intro_and_clock":
        labels = tuple(f"\nFrame from {clock(t)}:" for t in frame_seconds)
        intro = pieces(smolvlm_intro(str(len(frame_seconds)), duration_seconds))
        return _labelled(labels, wrappers=3, before=intro, after=pieces("\n\n"), exact=exact)
    labels = tuple(f"Second{int(t)}" for t in step_seconds(frame_seconds, settings.temporal_patch_size))
    return _labelled(labels, wrappers=0, before=0, after=0, exact=exact)


def clock(seconds: float) -> str:
    """mm:ss as Gemma 4 and SmolVLM print it, cut to whole seconds."""
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"


def smolvlm_intro(frame_count: str, duration_seconds: float) -> str:
    whole = int(duration_seconds)
    duration = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"You are provided the following series of {frame_count} frames from a {duration} [H:MM:SS] video.\n"


def pieces(text: str) -> int:
    """Tokens of a short label by the rule of this module: "<0.2 seconds>" is 6, "<10.0 seconds>" is 7."""
    return len(_PIECES.findall(text))


def _labelled(labels: tuple[str, ...], *, wrappers: int, before: int, after: int, exact: bool) -> ClipText:
    per_step = tuple(pieces(label) + wrappers for label in labels)
    return ClipText(labels=labels, per_step=per_step, before=before, after=after, exact=exact)
