"""From what a person names (catalogue name, HF id, directory, dict) to a transformers config object.

Nothing is downloaded. Not here: building the model (build.py), counting it (parameters.py).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.catalog import catalogue, find_entry
from course_lib.errors import CourseError, did_you_mean
from course_lib.files import read_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def load_config(source: str | Path | dict[str, Any]) -> PretrainedConfig:
    """The transformers config of `source`.

    Args:
        source: a catalogue name or HF id (`qwen3-vl-4b`, `Qwen/Qwen3-VL-4B-Instruct`), a directory or file with a
            config.json, or a dict: either {"model_type": …, "config": {…}} or the content of a config.json.

    Raises CourseError for an unknown name (with near names), a missing file or a config transformers refuses.
    """
    if isinstance(source, dict):
        return _from_dict(source, where="model")
    path = Path(source)
    if path.is_dir() or path.suffix == ".json":
        file = path / "config.json" if path.is_dir() else path
        return _from_dict(read_json(file), where=str(file))
    entry = find_entry(str(source))
    if entry is None:
        raise CourseError(f"unknown model '{source}'", fix=did_you_mean(str(source), [*catalogue(), *_hub_ids()]))
    return _from_dict({"model_type": entry.model_type, "config": entry.config}, where=entry.name)


def text_config(config: PretrainedConfig) -> PretrainedConfig:
    """The config of the language model inside `config` (itself for a text model; the thinker's for an omni model)."""
    thinker = getattr(config, "thinker_config", None)
    if thinker is not None:
        return text_config(thinker)
    return getattr(config, "text_config", None) or config


def vision_config(config: PretrainedConfig) -> PretrainedConfig | None:
    """The config of the vision tower, or None."""
    thinker = getattr(config, "thinker_config", None)
    return getattr(thinker or config, "vision_config", None)


def max_positions(config: PretrainedConfig) -> int | None:
    """Longest sequence the positions were made for; None when the config does not say."""
    return getattr(text_config(config), "max_position_embeddings", None)


def _hub_ids() -> list[str]:
    return [hub_id for entry in catalogue().values() for hub_id in entry.hub_ids]


def _from_dict(values: Any, *, where: str) -> PretrainedConfig:
    from transformers import CONFIG_MAPPING

    if not isinstance(values, dict):
        raise CourseError("must be an object with 'model_type'", where=where)
    model_type = values.get("model_type")
    if not model_type:
        raise CourseError("'model_type' is missing", where=where, fix="Name the transformers model type, such as llama")
    fields = values["config"] if isinstance(values.get("config"), dict) else values
    fields = {k: v for k, v in copy.deepcopy(fields).items() if k not in ("model_type", "transformers_version")}
    for key, value in fields.items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 0 and key.endswith(_SIZE_SUFFIXES):
            raise CourseError(f"'{key}: {value}' is negative", where=where)
    if model_type not in CONFIG_MAPPING:
        raise CourseError(
            f"unknown model_type '{model_type}'", where=where, fix=did_you_mean(str(model_type), CONFIG_MAPPING.keys())
        )
    try:
        return CONFIG_MAPPING[model_type](**fields)
    except Exception as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CourseError(f"transformers refuses this {model_type} config: {line}", where=where) from error


_SIZE_SUFFIXES = ("_size", "_layers", "_heads", "_experts", "depth", "_dim", "_embeddings")
