"""The families of video models: which processor they use, what it does to a clip, and which names belong to them.

A value that only a checkpoint can tell is taken from the model's folder when one is given; otherwise it is the value
of the published checkpoint or the class default, and `Settings.source` says which.
Not here: the arithmetic (resize.py, sampling.py, grids.py), the library itself (judge.py).
"""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from course_lib.errors import CourseError, did_you_mean
from course_lib.files import read_json

Rule = Literal["whole_video", "per_frame", "within_patches", "fixed"]
"""How size limits are read: over all frames, per frame, as patches per frame, or not at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What decides frames and grid; the names are the processors' own. None: the processor has no such setting."""

    patch_size: int | None = None
    merge_size: int = 1
    temporal_patch_size: int = 1
    shortest_edge: int | None = None
    """Fewest pixels: of the whole video ("whole_video") or of one frame ("per_frame")."""
    longest_edge: int | None = None
    height: int | None = None
    width: int | None = None
    cap_pixels_per_frame: bool | None = None
    max_video_tokens: int | None = None
    max_soft_tokens: int | None = None
    pooling_kernel_size: int | None = None
    tokens_per_frame: int | None = None
    """Visual tokens of one frame where the model fixes them (image_seq_length and the like)."""
    do_resize: bool = True
    do_sample_frames: bool = False
    num_frames: int | None = None
    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    source: str = "class default"

    @property
    def factor(self) -> int:
        """Side of the square of pixels that becomes one visual token."""
        return (self.patch_size or 1) * self.merge_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One kind of video model. `processor` is transformers' class for clips, `wrapper` the one that adds the text."""

    name: str
    title: str
    rule: Rule
    model_types: tuple[str, ...]
    names: tuple[str, ...]
    """Beginnings of public checkpoint names, lower case, without the organisation."""
    module: str | None
    processor: str | None
    wrapper: str | None
    text: Literal["one_run", "timed_steps", "numbered_frames", "clock_frames", "intro_and_clock", "seconds"]
    settings: Settings
    reference_min_tokens: int = 0
    """The floor per frame when none is asked for (qwen-vl-utils' VIDEO_MIN_TOKEN_NUM)."""
    checked: bool = True
    """False: a published rule that no installed library implements."""


_QWEN2 = Settings(
    patch_size=14, merge_size=2, temporal_patch_size=2, shortest_edge=128 * 28 * 28, longest_edge=768 * 28 * 28,
    max_video_tokens=128_000, min_frames=4, max_frames=768,
)  # fmt: skip
_QWEN2_PUBLISHED = replace(
    _QWEN2, shortest_edge=3136, longest_edge=12_845_056, source="published Qwen2-VL preprocessor_config.json"
)
_QWEN3 = Settings(
    patch_size=16, merge_size=2, temporal_patch_size=2, shortest_edge=4096, longest_edge=25_165_824,
    max_video_tokens=768, min_frames=4, max_frames=768, fps=2, do_sample_frames=True,
    source="published Qwen3-VL video_preprocessor_config.json",
)  # fmt: skip
_QWEN3_OMNI = replace(
    _QWEN2, patch_size=16, shortest_edge=128 * 32 * 32, longest_edge=768 * 32 * 32,
    source="Qwen3OmniMoeProcessor's own defaults, patch 16 as published",
)  # fmt: skip

FAMILIES = (
    Family(
        name="qwen2_vl", title="Qwen2-VL", rule="per_frame", model_types=("qwen2_vl",), names=("qwen2-vl",),
        module="qwen2_vl", processor="Qwen2VLVideoProcessor", wrapper="qwen2_vl.Qwen2VLProcessor",
        text="one_run", settings=_QWEN2_PUBLISHED, reference_min_tokens=128,
    ),
    Family(
        name="qwen2_5_vl", title="Qwen2.5-VL", rule="per_frame", model_types=("qwen2_5_vl",),
        names=("qwen2.5-vl", "qwen2_5-vl"), module="qwen2_vl", processor="Qwen2VLVideoProcessor",
        wrapper="qwen2_5_vl.Qwen2_5_VLProcessor", text="one_run", settings=_QWEN2_PUBLISHED, reference_min_tokens=128,
    ),
    Family(
        name="qwen2_5_omni", title="Qwen2.5-Omni", rule="per_frame",
        model_types=("qwen2_5_omni", "qwen2_5_omni_thinker"), names=("qwen2.5-omni", "qwen2_5-omni"),
        module="qwen2_vl", processor="Qwen2VLVideoProcessor", wrapper="qwen2_5_omni.Qwen2_5OmniProcessor",
        text="one_run", settings=replace(_QWEN2, source="Qwen2_5OmniProcessor's own defaults"),
        reference_min_tokens=128,
    ),
    Family(
        name="qwen3_vl", title="Qwen3-VL", rule="whole_video", model_types=("qwen3_vl", "qwen3_vl_moe"),
        names=("qwen3-vl",), module="qwen3_vl", processor="Qwen3VLVideoProcessor",
        wrapper="qwen3_vl.Qwen3VLProcessor", text="timed_steps", settings=_QWEN3, reference_min_tokens=128,
    ),
    Family(
        name="qwen3_5", title="Qwen3.5", rule="whole_video", model_types=("qwen3_5", "qwen3_5_moe"),
        names=("qwen3.5", "qwen3_5"), module="qwen3_vl", processor="Qwen3VLVideoProcessor",
        wrapper="qwen3_vl.Qwen3VLProcessor", text="timed_steps",
        settings=replace(_QWEN3, source="as published for Qwen3-VL; Qwen3.5's own file was not seen"),
        reference_min_tokens=128,
    ),
    Family(
        name="qwen3_omni", title="Qwen3-Omni", rule="per_frame",
        model_types=("qwen3_omni_moe", "qwen3_omni_moe_thinker"), names=("qwen3-omni",), module="qwen2_vl",
        processor="Qwen2VLVideoProcessor", wrapper="qwen3_omni_moe.Qwen3OmniMoeProcessor", text="one_run",
        settings=_QWEN3_OMNI, reference_min_tokens=128,
    ),
    Family(
        name="internvl", title="InternVL", rule="fixed", model_types=("internvl",), names=("internvl",),
        module="internvl", processor="InternVLVideoProcessor", wrapper="internvl.InternVLProcessor",
        text="numbered_frames",
        settings=Settings(
            patch_size=14, merge_size=2, height=448, width=448, tokens_per_frame=256,
            source="published InternVL3 size 448; image_seq_length 256",
        ),
    ),
    Family(
        name="llava_onevision", title="LLaVA-OneVision", rule="fixed", model_types=("llava_onevision",),
        names=("llava-onevision",), module="llava_onevision", processor="LlavaOnevisionVideoProcessor",
        wrapper="llava_onevision.LlavaOnevisionProcessor", text="one_run",
        settings=Settings(
            patch_size=14, height=384, width=384, tokens_per_frame=196, source="class default; num_image_tokens 729"
        ),
    ),
    Family(
        name="smolvlm2", title="SmolVLM2", rule="fixed", model_types=("smolvlm",), names=("smolvlm",),
        module="smolvlm", processor="SmolVLMVideoProcessor", wrapper="smolvlm.SmolVLMProcessor",
        text="intro_and_clock",
        settings=Settings(
            patch_size=14, merge_size=2, height=364, width=364, tokens_per_frame=169,
            source="class default (364, image_seq_len 169); checkpoints differ",
        ),
    ),
    Family(
        name="gemma4", title="Gemma 4", rule="within_patches", model_types=("gemma4", "gemma4_unified"),
        names=("gemma-4", "gemma4"), module="gemma4", processor="Gemma4VideoProcessor",
        wrapper="gemma4.Gemma4Processor", text="clock_frames",
        settings=Settings(
            patch_size=16, max_soft_tokens=70, pooling_kernel_size=3, num_frames=32, do_sample_frames=True
        ),
    ),
    Family(
        name="longcat_omni", title="LongCat-Flash-Omni", rule="per_frame", model_types=("longcat_omni",),
        names=("longcat-flash-omni", "longcat"), module=None, processor=None, wrapper=None, text="seconds",
        settings=Settings(
            patch_size=14, merge_size=2, temporal_patch_size=2, shortest_edge=576 * 196, longest_edge=5832 * 196,
            fps=2, min_frames=8, max_frames=128, source="its report: 576 to 5832 patches; not checked against code",
        ),
        checked=False,
    ),
)  # fmt: skip
BY_NAME = {family.name: family for family in FAMILIES}


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoModel:
    """A family with the settings of one checkpoint."""

    name: str
    family: Family
    settings: Settings
    folder: Path | None = None


def video_model(name: str) -> VideoModel:
    """The model behind a public name ("qwen3-vl-4b"), a family's name, or a folder with a checkpoint's files.

    Raises CourseError for a name that belongs to no family, or a folder whose config says none of them.
    """
    folder = Path(name)
    if folder.is_dir():
        return _from_folder(folder)
    plain = name.rsplit("/", 1)[-1].lower()
    for family in FAMILIES:
        if plain == family.name or plain.startswith(family.names):
            return VideoModel(name=name, family=family, settings=family.settings)
    known = [beginning for family in FAMILIES for beginning in family.names]
    raise CourseError(
        f"{name!r} is no known video model and no folder", where="--model", fix=did_you_mean(plain, known)
    )


def _from_folder(folder: Path) -> VideoModel:
    model_type = read_json(folder / "config.json").get("model_type", "")
    family = next((family for family in FAMILIES if model_type in family.model_types), None)
    if family is None:
        known = [model_type for family in FAMILIES for model_type in family.model_types]
        raise CourseError(
            f"model_type {model_type!r} is no known video family", where=str(folder / "config.json"),
            fix=did_you_mean(model_type, known),
        )  # fmt: skip
    values, source = _processor_values(folder)
    known = {field.name for field in fields(Settings)} - {"source", "height", "width", "tokens_per_frame"}
    changes = {name: value for name, value in values.items() if name in known and value is not None}
    changes |= _size_of(family, values, folder)
    if source is not None:
        changes["source"] = source
    return VideoModel(name=str(folder), family=family, settings=replace(family.settings, **changes), folder=folder)


def _processor_values(folder: Path) -> tuple[dict[str, Any], str | None]:
    """The video processor's section, found in transformers' own order: nested, its own file, the picture's file."""
    nested = folder / "processor_config.json"
    if nested.is_file() and "video_processor" in (record := read_json(nested)):
        outer = {key: value for key, value in record.items() if not isinstance(value, dict)}
        return {**outer, **record["video_processor"]}, f"{nested.name} of {folder}"
    outer = read_json(nested) if nested.is_file() else {}
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            return {**outer, **read_json(folder / name)}, f"{name} of {folder}"
    return outer, None


def _size_of(family: Family, values: dict[str, Any], folder: Path) -> dict[str, Any]:
    size = dict(values.get("size") or {})
    if family.processor == "Qwen2VLVideoProcessor":
        size["shortest_edge"] = values.get("min_pixels") or size.get("shortest_edge")
        size["longest_edge"] = values.get("max_pixels") or size.get("longest_edge")
    if family.name == "smolvlm2":
        side = (values.get("max_image_size") or {}).get("longest_edge")
        size = {"height": side, "width": side}
    allowed = {"fixed": ("height", "width"), "within_patches": ()}.get(family.rule, ("shortest_edge", "longest_edge"))
    if unknown := {key for key in size if size[key] is not None} - set(allowed) - {"min_pixels", "max_pixels"}:
        raise CourseError(f"size has {json.dumps(sorted(unknown))}, {family.title} reads {allowed}", where=str(folder))
    found = {key: size[key] for key in allowed if size.get(key) is not None}
    per_frame = next((values[k] for k in ("image_seq_length", "image_seq_len") if values.get(k)), None)
    if family.name == "llava_onevision" and values.get("num_image_tokens"):
        per_frame = -((-int(values["num_image_tokens"] ** 0.5) // 2) ** 2)
    if family.rule == "fixed" and per_frame:
        found["tokens_per_frame"] = per_frame
    return found
