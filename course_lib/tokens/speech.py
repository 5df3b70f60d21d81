"""How many tokens a question that is spoken costs: audio tokens from samples, by arithmetic.

Each rule is the feature extractor's framing and the encoder's strides, kept with its rounding. LongCat-Flash-Omni's is
its published rate and is not checked against code.
Not here: reading and resampling (media/audio.py), codec tokens of a spoken answer (models/).
"""

from collections.abc import Callable

from course_lib.errors import CourseError, did_you_mean
from course_lib.units import ceil_div

SAMPLE_RATE = 16_000
HOP_SAMPLES = 160
"""One mel frame every 10 ms."""
WRAPPERS = 2
"""Begin-of-audio and end-of-audio of the chat templates."""


def _two_strides(samples: int) -> int:
    """Qwen2.5-Omni: one convolution and one pooling of stride 2, 25 tokens a second.

    Source: transformers 5.24 `processing_qwen2_5_omni._get_feat_extract_output_lengths`.
    """
    frames = (ceil_div(samples, HOP_SAMPLES) - 1) // 2 + 1
    return (frames - 2) // 2 + 1


def _three_strides_in_windows(samples: int) -> int:
    """Qwen3-Omni: 13 tokens for each whole second of 100 frames, three strides of 2 over the rest.

    Source: transformers 5.24 `processing_qwen3_omni_moe._get_feat_extract_output_lengths` with n_window 50.
    """
    # Its extractor pads to the longest clip and drops a last, unfinished frame; Qwen2.5-Omni's pads to 30 s.
    frames = samples // HOP_SAMPLES
    rest = (frames % 100 - 1) // 2 + 1
    rest = (rest - 1) // 2 + 1
    return (rest - 1) // 2 + 1 + frames // 100 * 13


def _spliced(samples: int) -> int:
    """LongCat-Flash-Omni: eight 10 ms frames make one 80 ms token, 12.5 a second (published, not checked)."""
    return ceil_div(ceil_div(samples, HOP_SAMPLES), 8)


RULES: dict[str, Callable[[int], int]] = {
    "qwen2_5_omni": _two_strides,
    "qwen3_omni": _three_strides_in_windows,
    "longcat_omni": _spliced,
}
"""Families that hear, by their name in families.py."""


def audio_tokens(family_name: str, samples: int) -> int:
    """Audio tokens of `samples` mono samples at 16 kHz, without the two wrappers.

    Raises CourseError for a family that does not hear, and for a clip without samples.
    """
    if family_name not in RULES:
        raise CourseError(f"{family_name!r} takes no audio here", fix=did_you_mean(family_name, RULES))
    if samples < 1:
        raise CourseError(f"a sound of {samples} samples has no tokens")
    return RULES[family_name](samples)
