"""ds_config files as the two readers see them: DeepSpeed's own (hjson, no duplicate keys) and the Trainer's (json)."""

import json
from pathlib import Path
from typing import Any

from course_lib.config.facts import Framework
from course_lib.config.findings import Finding, found
from course_lib.config.tree import join
from course_lib.errors import CourseError
from course_lib.files import read_text


def read_ds_config(path: Path, *, framework: Framework) -> tuple[dict, list[Finding]]:
    """The configuration in a file, and what is wrong with the file as a file.

    Raises CourseError when neither reader can make sense of it.
    """
    text = read_text(path)
    if not text.strip():
        raise CourseError("is empty", where=str(path), fix="See examples/*/ds_config*.json")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        return _relaxed(text, path, framework, error)
    if not isinstance(config, dict):
        raise CourseError(f"a ds_config must be a mapping, not {type(config).__name__}", where=str(path))
    return config, _duplicates(text)


def _relaxed(text: str, path: Path, framework: Framework, error: json.JSONDecodeError) -> tuple[dict, list[Finding]]:
    """DeepSpeed reads hjson (comments, trailing commas); the Trainer does not."""
    import hjson

    wrong = f"is not valid JSON: {error.msg} in line {error.lineno}"
    try:
        config = hjson.loads(text, object_pairs_hook=dict)
    except hjson.HjsonDecodeError:
        raise CourseError(wrong, where=str(path)) from error
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise CourseError(wrong, where=str(path))
    if framework == "raw":
        return config, []
    text = f"{wrong}; DeepSpeed's own reader accepts it (hjson), the Trainer's raises"
    return config, [found("refused", "error", "", text, "Write plain JSON, without comments or trailing commas")]


def _duplicates(text: str) -> list[Finding]:
    """Keys written twice in one block."""
    findings: list[Finding] = []

    def paired(pairs: list[tuple[str, Any]]) -> dict:
        seen: dict[str, Any] = {}
        twice = [key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number])]
        seen.update(pairs)
        # The hook runs from the inside out: the block's own name is known only to its parent.
        if twice:
            seen = _Marked(seen)
            seen.twice = twice
        return seen

    def walk(block: Any, prefix: str) -> None:
        for key in getattr(block, "twice", []):
            text = "written twice: the Trainer's reader keeps the last one, DeepSpeed's own raises"
            findings.append(found("duplicate_key", "error", join(prefix, key), text, "Keep one of them"))
        for key, value in block.items():
            if isinstance(value, dict):
                walk(value, join(prefix, key))

    walk(json.loads(text, object_pairs_hook=paired), "")
    return findings


class _Marked(dict):
    """A block that had a key twice."""

    twice: list[str]
