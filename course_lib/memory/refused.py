"""A ds_config that DeepSpeed would not take, said in one line before anything is predicted.

Not here: what could be better about a config that it does take (`course lint`).
"""

from __future__ import annotations

import copy
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
    try:
        verdict = ask_deepspeed(config, world_size=world_size)
    except ImportError:
        return
    if verdict.error is not None:
        said = " ".join(str(verdict.error).split())
        raise CourseError(
            f"DeepSpeed refuses this ds_config: {said[:220]}",
            where="ds_config",
            fix="course lint says which key and why",
        )


def _without_auto(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_auto(item) for key, item in value.items() if item != "auto"}
    return value
