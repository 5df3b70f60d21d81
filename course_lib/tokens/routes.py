"""The ways people pass a setting to a video model, each as a question to the real library.

constructor: `VideoProcessor(**knobs)` · from_pretrained: of the video processor · call: `processor(video, **knobs)` ·
attribute: `processor.name = value` · full_processor: `Processor.from_pretrained(folder, **knobs)`, what AutoProcessor
does · full_call: `processor(text, videos, videos_kwargs=knobs)` · environment: variables, read by a fresh interpreter ·
qwen_vl_utils: keys of the video element, where that package is installed.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass
from typing import Any

from course_lib.errors import CourseError
from course_lib.tokens import judge
from course_lib.tokens.families import VideoModel, video_model

ROUTES = ("constructor", "from_pretrained", "call", "attribute", "full_processor", "full_call")
"""Routes that are tried for every knob; the two below only where they make sense."""
OTHER_ROUTES = ("environment", "qwen_vl_utils")
_SPECIAL = {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>", "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>", "audio_token": "<|audio_pad|>", "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}  # fmt: skip
_PROMPT = "<|vision_start|><|video_pad|><|vision_end|>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A clip as a processor meets it before its own sampling."""

    frames: int
    rate: float
    height: int
    width: int

    def metadata(self) -> dict[str, Any]:
        return {
            "total_num_frames": self.frames, "fps": self.rate, "duration": self.frames / self.rate,
            "frames_indices": list(range(self.frames)),
        }  # fmt: skip


PROBES = (
    Probe(frames=36, rate=3.6, height=1152, width=640),
    Probe(frames=36, rate=3.6, height=1568, width=896),
    Probe(frames=36, rate=3.6, height=56, width=28),
)
"""Ten seconds: the practitioner's portrait clip, one above the caps, one below the floors.

The last two fit the squares of 28 and 32 pixels, so that do_resize=False is a question and not an error.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What came out, for comparison. A refused setting is `error`."""

    frames: int = 0
    thw: tuple[int, int, int] | None = None
    visual_tokens: int = 0
    height: int | None = None
    text: str = ""
    error: str = ""


class Bench:
    """Asks one model's real classes, by any route; answers are remembered. A context manager (temporary folders)."""

    def __init__(self, model: VideoModel) -> None:
        self.model = model
        self._folder = tempfile.TemporaryDirectory(prefix="course-knobs-")
        self._seen: dict[tuple, Seen] = {}
        self._plain = judge.build_processor(model)
        self._plain.save_pretrained(self._folder.name)
        self._full_folder: str | None = None

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def routes(self) -> tuple[str, ...]:
        """Routes that can be asked for this model: the full processor is put together for Qwen's families only."""
        return ROUTES if self.model.family.name.startswith("qwen") else ROUTES[:4]

    def observe(self, route: str, knobs: dict[str, Any], probe: Probe) -> Seen:
        """What the library makes of `probe` with `knobs` passed by `route`."""
        key = (route, json.dumps(knobs, sort_keys=True, default=str), probe)
        if key not in self._seen:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    self._seen[key] = self._ask(route, json.loads(json.dumps(knobs)), probe)
                except Exception as error:  # noqa: BLE001 - a refusal of any kind is what the audit reports
                    self._seen[key] = Seen(error=_one_line(error))
        return self._seen[key]

    def _ask(self, route: str, knobs: dict[str, Any], probe: Probe) -> Seen:
        cls = judge.processor_class(self.model.family)
        if route == "constructor":
            arguments = judge.constructor_arguments(self.model.family, self.model.settings)
            return self._processor(cls(**{**arguments, **knobs}), probe)
        if route == "from_pretrained":
            return self._processor(cls.from_pretrained(self._folder.name, **knobs), probe)
        if route == "call":
            return self._processor(cls.from_pretrained(self._folder.name), probe, **knobs)
        if route == "attribute":
            processor = cls.from_pretrained(self._folder.name)
            for name, value in knobs.items():
                setattr(processor, name, value)
            return self._processor(processor, probe)
        if route in ("full_processor", "full_call"):
            return self._full(route, knobs, probe)
        if route == "environment":
            return _fresh_interpreter(self.model.name, knobs, probe)
        if route == "qwen_vl_utils":
            return _element(self.model, knobs, probe)
        raise CourseError(f"unknown route {route!r}", fix="Known: " + ", ".join(ROUTES + OTHER_ROUTES))

    def _processor(self, processor: Any, probe: Probe, **call: Any) -> Seen:
        answer = judge.ask(
            self.model, processor, frames=probe.frames, height=probe.height, width=probe.width,
            metadata=probe.metadata(), **call,
        )  # fmt: skip
        return Seen(
            frames=answer.frames, thw=answer.thw, visual_tokens=answer.visual_tokens, height=answer.height,
            text=answer.text,
        )  # fmt: skip

    def _full(self, route: str, knobs: dict[str, Any], probe: Probe) -> Seen:
        import torch

        cls = judge.wrapper_class(self.model.family)
        if self._full_folder is None:
            self._full_folder = os.path.join(self._folder.name, "full")
            _full_processor(self.model, self._plain).save_pretrained(self._full_folder)
        processor = cls.from_pretrained(self._full_folder, **(knobs if route == "full_processor" else {}))
        clip = torch.zeros(probe.frames, 3, probe.height, probe.width, device="meta", dtype=torch.uint8)
        answer = processor(
            text=[_PROMPT], videos=[clip], return_tensors="pt",
            videos_kwargs={"video_metadata": [probe.metadata()], **(knobs if route == "full_call" else {})},
        )  # fmt: skip
        ids = answer["input_ids"][0]
        visual = processor.tokenizer.convert_tokens_to_ids(_SPECIAL["video_token"])
        return Seen(
            thw=tuple(int(side) for side in answer["video_grid_thw"][0]), visual_tokens=int((ids == visual).sum()),
            text=processor.tokenizer.decode(ids[ids != visual]),
        )  # fmt: skip


def _full_processor(model: VideoModel, video_processor: Any) -> Any:
    """A whole processor around a tokenizer that knows the special tokens and nothing else."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    vocabulary = {token: number for number, token in enumerate([*_SPECIAL.values(), "<unk>", "<pad>"])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", extra_special_tokens=dict(_SPECIAL)
    )
    parts = {
        "image_processor": Qwen2VLImageProcessor(patch_size=model.settings.patch_size),
        "tokenizer": tokenizer,
        "video_processor": video_processor,
    }
    if "omni" in model.family.name:
        from transformers import WhisperFeatureExtractor

        parts["feature_extractor"] = WhisperFeatureExtractor()
    return judge.wrapper_class(model.family)(**parts)


def _fresh_interpreter(name: str, variables: dict[str, Any], probe: Probe) -> Seen:
    """Ask in a new process whose environment has the variables: they may be read at import."""
    question = json.dumps({"model": name, "probe": asdict(probe)})
    child = subprocess.run(
        [sys.executable, "-c", "from course_lib.tokens.routes import answer_from_environment as a; a()", question],
        env={**os.environ, **{key: str(value) for key, value in variables.items()}},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if child.returncode:
        return Seen(error=(child.stderr.strip().splitlines() or ["no message"])[-1])
    record = json.loads(child.stdout.splitlines()[-1])
    return Seen(**{**record, "thw": None if record["thw"] is None else tuple(record["thw"])})


def answer_from_environment() -> None:
    """The other side of the environment route: answer one question on standard output."""
    question = json.loads(sys.argv[1])
    with Bench(video_model(question["model"])) as bench:
        print(json.dumps(asdict(bench.observe("constructor", {}, Probe(**question["probe"])))))


def _element(model: VideoModel, element: dict[str, Any], probe: Probe) -> Seen:
    """qwen-vl-utils' own fetch_video with a reader that delivers a clip without memory."""
    if importlib.util.find_spec("qwen_vl_utils") is None:
        return Seen(error="qwen_vl_utils is not installed")
    import torch
    from qwen_vl_utils import vision_process

    def read(ele: dict[str, Any]):
        first, last, total = vision_process.calculate_video_frame_range(ele, probe.frames, probe.rate)
        count = vision_process.smart_nframes(ele, total_frames=total, video_fps=probe.rate)
        clip = torch.zeros(count, 3, probe.height, probe.width, device="meta", dtype=torch.uint8)
        indices = torch.linspace(first, last, count).round().long().tolist()
        return clip, {"fps": probe.rate, "frames_indices": indices, "total_num_frames": total}, probe.rate

    readers = dict(vision_process.VIDEO_READER_BACKENDS)
    vision_process.VIDEO_READER_BACKENDS.update(dict.fromkeys(readers, read))
    try:
        clip, used = vision_process.fetch_video(
            {"video": "probe.mp4", **element}, image_patch_size=model.settings.patch_size, return_video_metadata=True
        )
    finally:
        vision_process.VIDEO_READER_BACKENDS.update(readers)
    factor = model.settings.factor
    frames, _, height, width = clip.shape
    patch = model.settings.patch_size
    tokens = -(-frames // 2) * (height // factor) * (width // factor)
    return Seen(
        frames=frames, thw=(-(-frames // 2), height // patch, width // patch), visual_tokens=tokens, height=height,
        text=str(used["frames_indices"]),
    )  # fmt: skip


def _one_line(error: Exception) -> str:
    text = " ".join((str(error).strip() or "no message").split())
    return f"{type(error).__name__}: {text[:160]}"
