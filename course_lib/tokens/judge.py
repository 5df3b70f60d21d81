"""The installed library as the judge: its real video processor, asked with a tensor that has a shape and no memory.

On torch's meta device a processor does all of its arithmetic and none of its work: 768 frames of 1080p answer in
milliseconds. The text is asked of the wrapper class's own `replace_video_token`.
Importing this module costs nothing; the first question imports torch and transformers (seconds).
"""

import functools
import importlib
import warnings
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from course_lib.errors import CourseError
from course_lib.tokens.families import Family, Settings, VideoModel

_TOKENS = {
    "video_token": "<video>", "image_token": "<image>", "vision_start_token": "<start>", "vision_end_token": "<end>",
    "start_image_token": "<start>", "end_image_token": "<end>", "boi_token": "<start>", "eoi_token": "<end>",
    "fake_image_token": "<fake>", "global_image_token": "<global>",
}  # fmt: skip
_VISUAL = {"internvl": "<image>", "smolvlm2": "<image>"}
"""The placeholder that a family counts as visual where it is not the video token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the library makes of a clip. `thw` is None where a processor reports no grid."""

    frames: int
    """Frames that went in after the processor's own sampling."""
    thw: tuple[int, int, int] | None
    height: int | None
    width: int | None
    visual_tokens: int
    text: str
    """What replaces the video in the prompt, with the visual tokens taken out."""


def library_version() -> str:
    import transformers

    return transformers.__version__


@functools.cache
def processor_class(family: Family) -> type:
    """transformers' video processor class. Raises CourseError for a family without one."""
    if family.processor is None:
        raise CourseError(f"no installed library has a processor for {family.title}; its rule is not checked")
    # transformers imports stay quiet: their advice about backends is not about the clip.
    from transformers.utils import logging

    logging.set_verbosity_error()
    module = importlib.import_module(f"transformers.models.{family.module}.video_processing_{family.module}")
    return getattr(module, family.processor)


@functools.cache
def wrapper_class(family: Family) -> type:
    """transformers' class that puts the text around the visual tokens."""
    folder, name = family.wrapper.split(".")
    module = importlib.import_module(f"transformers.models.{folder}.processing_{folder}")
    if getattr(module, "num2words", "present") is None:
        # SmolVLM writes the number of frames as a word; without the package the digits stand in its place.
        module.num2words = str
    return getattr(module, name)


def constructor_arguments(family: Family, settings: Settings) -> dict[str, Any]:
    """Arguments that build `family`'s processor with `settings`; what is None stays the class's own default."""
    names = (
        "patch_size", "merge_size", "temporal_patch_size", "cap_pixels_per_frame", "max_video_tokens",
        "max_soft_tokens", "pooling_kernel_size", "do_resize", "do_sample_frames", "num_frames", "fps", "min_frames",
        "max_frames",
    )  # fmt: skip
    if family.rule == "fixed":
        names = ("do_resize", "do_sample_frames", "num_frames", "fps")
    values = {name: getattr(settings, name) for name in names}
    values = {name: value for name, value in values.items() if value is not None}
    if family.rule == "within_patches":
        values = {k: v for k, v in values.items() if k not in ("merge_size", "temporal_patch_size")}
    if settings.longest_edge is not None:
        values["size"] = {"shortest_edge": settings.shortest_edge, "longest_edge": settings.longest_edge}
    elif family.name == "smolvlm2":
        values["max_image_size"] = {"longest_edge": settings.height}
    elif settings.height is not None:
        values["size"] = {"height": settings.height, "width": settings.width}
    return values


def build_processor(model: VideoModel, **arguments: Any) -> Any:
    """The model's video processor: from its folder when it has one, else the class with the model's settings."""
    cls = processor_class(model.family)
    if model.folder is not None:
        return cls.from_pretrained(str(model.folder), **arguments)
    return cls(**{**constructor_arguments(model.family, model.settings), **arguments})


def ask(
    model: VideoModel,
    processor: Any,
    *,
    frames: int,
    height: int,
    width: int,
    metadata: dict[str, Any] | None = None,
    **call: Any,
) -> Answer:
    """Ask `processor` about a clip of `frames` frames of height × width; `call` goes into the processor's call.

    Args:
        metadata: transformers' VideoMetadata fields (total_num_frames, fps, duration, frames_indices).
    Raises whatever the library raises: the audit reports it.
    """
    import torch

    clip = torch.zeros(frames, 3, height, width, device="meta", dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if metadata is not None:
            call["video_metadata"] = [dict(metadata)]
        answer = processor(clip, return_tensors="pt", return_metadata=True, input_data_format="channels_first", **call)
    used = answer["video_metadata"][0]
    text = _replacement(model, processor, answer)
    visual = _VISUAL.get(model.family.name, "<video>")
    grid = answer.get("video_grid_thw")
    high, wide = _picture_size(model.family, answer)
    return Answer(
        frames=len(used.frames_indices) if used.frames_indices is not None else frames,
        thw=None if grid is None else tuple(int(side) for side in grid[0]),
        height=high,
        width=wide,
        visual_tokens=text.count(visual),
        text=text.replace(visual, ""),
    )


def _replacement(model: VideoModel, processor: Any, answer: Any) -> str:
    cls, settings = wrapper_class(model.family), model.settings
    per_frame = settings.tokens_per_frame
    wrapper = SimpleNamespace(
        **_TOKENS,
        video_processor=processor,
        image_seq_length=per_frame,
        image_seq_len=per_frame,
        # LLaVA-OneVision pools its 27 × 27 features to 14 × 14: the wrapper knows the number before pooling.
        num_image_tokens=(2 * round((per_frame or 0) ** 0.5) - 1) ** 2,
    )
    if hasattr(cls, "_calculate_timestamps"):
        wrapper._calculate_timestamps = functools.partial(cls._calculate_timestamps, wrapper)
    try:
        return cls.replace_video_token(wrapper, answer, 0, load_audio_from_video=False)
    except NotImplementedError:
        # Older Omni wrappers (5.17) expand the placeholder inside their call: the grid is all the processor tells.
        return _TOKENS["video_token"] * (int(answer["video_grid_thw"][0].prod()) // settings.merge_size**2)


def _picture_size(family: Family, answer: Any) -> tuple[int | None, int | None]:
    if family.rule != "fixed":
        return None, None
    pixels = answer.get("pixel_values_videos", answer.get("pixel_values"))
    return tuple(pixels.shape[-2:])
