"""A ds_config that DeepSpeed would not take, said in one line before anything is predicted.

Not here: what could be better about a config that it does take (`course lint`).
"""

from __future__ import annotations

import copy
import logging
from typing import Any

from course_lib.config.installed import ask_deepspeed
from course_lib.errors import CourseError


def check_ds_config(ds_config: dict[str, Any], *, world_size: int) -> None:
    """Let the installed DeepSpeed parse the config; its refusal becomes a CourseError.

    "auto" values are left out: the HF Trainer fills them. Nothing is checked where DeepSpeed is not installed.
    """
    config = _without_auto(copy.deepcopy(ds_config))
    if not any(key.startswith("train_") for key in config):
        config["train_micro_batch_size_per_gpu"] = 1
    # DeepSpeed warns about the missing GPU while it is imported; that is no news here.
    logging.disable(logging.WARNING)
    try:
        verdict = ask_deepspeed(config, world_size=world_size)
    except ImportError:
        return
    finally:
        logging.disable(logging.NOTSET)
    if verdict.error is not None:
        raise CourseError(
            f"DeepSpeed refuses this ds_config: {_says(verdict.error)}",
            where="ds_config",
            fix="course lint says which key and why",
        )


def _says(error: Exception) -> str:
    """The first complaint of a pydantic error with its key, or the first 220 characters of another."""
    details = getattr(error, "errors", None)
    if callable(details):
        first = details()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
    return " ".join(str(error).split())[:220]


def _without_auto(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_auto(item) for key, item in value.items() if item != "auto"}
    return value
