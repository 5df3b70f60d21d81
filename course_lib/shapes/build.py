"""The real transformers class for a config, built on any device (meta by default).

Not here: reading configs (config.py), shortening the layer stacks (stacks.py), adapters (lora.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.errors import CourseError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

DTYPES = ("bfloat16", "float16", "float32")
ATTENTION = ("eager", "sdpa", "flash_attention_2")


def model_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class that trains this config: image-text-to-text when it has a vision tower, else causal LM.

    Raises CourseError when transformers has neither for this config.
    """
    from transformers.models.auto import modeling_auto as auto

    mappings = [auto.MODEL_FOR_CAUSAL_LM_MAPPING]
    if getattr(config, "vision_config", None) is not None:
        mappings.insert(0, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
    if getattr(config, "thinker_config", None) is not None:
        mappings.insert(0, auto.MODEL_FOR_MULTIMODAL_LM_MAPPING)
    for mapping in mappings:
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise CourseError(
        f"'{config.model_type}' has no causal language model in transformers",
        fix="Choose a config whose model can be trained on next-token labels, such as llama or qwen3_vl",
    )


def build_model(
    config: PretrainedConfig, *, dtype: str = "bfloat16", attention: str = "sdpa", device: str = "meta"
) -> PreTrainedModel:
    """The model of `config` with uninitialised (meta) or freshly initialised weights.

    `attention` is recorded as transformers' `_attn_implementation`. flash_attention_2 is built as sdpa, because the
    package need not be here; what its kernel keeps is what the sdpa flash kernel keeps.
    """
    import torch

    if dtype not in DTYPES:
        raise CourseError(f"unknown dtype '{dtype}'", fix="One of: " + ", ".join(DTYPES))
    if attention not in ATTENTION:
        raise CourseError(f"unknown attention '{attention}'", fix="One of: " + ", ".join(ATTENTION))
    kind = model_class(config)
    implementation = "sdpa" if attention == "flash_attention_2" and device == "meta" else attention
    try:
        with torch.device(device):
            return kind._from_config(config, dtype=getattr(torch, dtype), attn_implementation=implementation)
    except CourseError:
        raise
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CourseError(f"{kind.__name__} cannot be built from this config: {line}") from error


def torch_dtype(name: str) -> torch.dtype:
    import torch

    return getattr(torch, name)
