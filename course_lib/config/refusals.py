"""From DeepSpeed's exception to the key that caused it.

A pydantic error names its field. For any other exception the key is found by trying: the key without which
DeepSpeed says something else is to blame; of several, the one that the message names.
"""

import re
from collections.abc import Callable
from typing import Any

from course_lib.config.findings import Finding, delete, found, set_to
from course_lib.config.installed import Verdict, ask_deepspeed, deepspeed_version
from course_lib.config.numbers import number_in
from course_lib.config.schema import Schema
from course_lib.config.tree import MISSING, get, has, join, paths, without

_ROUNDS = 40
_BATCH = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")

_PYDANTIC_CODES = {
    "extra_forbidden": "unknown_key",
    "int_from_float": "fractional_number",
    "enum": "not_allowed",
    "literal_error": "not_allowed",
    "greater_than": "out_of_range",
    "greater_than_equal": "out_of_range",
    "less_than": "out_of_range",
    "less_than_equal": "out_of_range",
    "finite_number": "out_of_range",
}
"""Code per pydantic error type; every other type is a wrong_type or, for a validator of DeepSpeed's own, a refusal."""


def judge(config: dict, schema: Schema, *, world_size: int) -> tuple[Verdict, list[Finding]]:
    """Ask DeepSpeed until it accepts, leaving out what it refuses: the last verdict, and a finding per refusal."""
    findings: list[Finding] = []
    for _ in range(_ROUNDS):
        verdict = ask_deepspeed(config, world_size=world_size)
        if verdict.error is None:
            return verdict, findings
        refused = explain(config, verdict.error, schema, ask=lambda c: ask_deepspeed(c, world_size=world_size))
        # A key that was left out above is "missing" now: that is our doing, not a second fault.
        findings += [f for f in refused if f.key not in {earlier.key for earlier in findings}]
        smaller = without(config, *(finding.key for finding in refused if finding.key))
        if smaller == config and not any(key in config for key in _BATCH):
            # Without any batch size nothing is parsed; the rest of the configuration is still worth a look.
            smaller = {**config, _BATCH[0]: 1}
        if smaller == config:
            break
        config = smaller
    return verdict, findings


def explain(config: dict, error: Exception, schema: Schema, ask: Callable[[dict], Verdict]) -> list[Finding]:
    """Findings for one exception; a pydantic ValidationError can hold several."""
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        details = [_field_finding(config, error, detail, schema) for detail in error.errors()]
        if None not in details:
            return [detail for detail in details if detail is not None]
    key = _to_blame(config, error, ask)
    if not key:
        key = _first_named(str(error), schema)
        return [
            found(
                "missing_key" if key and not has(config, key) else "refused",
                "error",
                key,
                _says(error),
                f"Set {key}" if key else "See the message",
            )
        ]
    value = get(config, key)
    if (number := number_in(value)) is not None:
        fix = f"Write the number without quotes: {number}"
        return [found("wrong_type", "error", key, f"{_shown(value)} is text: {_says(error)}", fix, set_to(key, number))]
    fix = f"Change or remove {key}"
    return [found("refused", "error", key, f"{key}: {_shown(value)}: {_says(error)}", fix, delete(key))]


def _field_finding(config: dict, error: Any, detail: dict, schema: Schema) -> Finding | None:
    key = _locate(config, error.title, [str(part) for part in detail["loc"]], schema)
    if key is None or (key in schema.blocks and isinstance(get(config, key), dict)):
        return None  # a check over the whole block: found by trying, as any other exception
    kind, value, says = detail["type"], get(config, key), detail["msg"]
    code = _PYDANTIC_CODES.get(kind, "refused" if kind in ("value_error", "assertion_error") else "wrong_type")
    fix, edit = f"Give {key} a value that fits, or remove it", delete(key)
    if code == "fractional_number" and isinstance(value, float):
        fix, edit = f'Write {int(value)} (or "auto" under the Trainer where it has a rule)', set_to(key, int(value))
    elif code in ("wrong_type", "not_allowed") and (number := number_in(value)) is not None:
        fix, edit = f"Write the number without quotes: {number}", set_to(key, number)
    message = f"DeepSpeed {deepspeed_version()} refuses {_shown(value)} here: {says}"
    block, _, name = key.rpartition(".")
    if code == "unknown_key" and name in schema.known(block):
        code, message = "duplicate_key", f"the same setting stands here under its other name too; {message}"
    return found(code, "error", key, message, fix, edit)


def _locate(config: dict, model_name: str, loc: list[str], schema: Schema) -> str | None:
    """The dotted key of a pydantic error, from the model that raised and the path inside it.

    The same model may stand in several blocks (bf16, bfloat16), and a nested model raises under its own name
    or its parent's; the place that exists in the config is the right one.
    """
    for path, block in schema.blocks.items():
        if block.model is not None and block.model.__name__ == model_name and has(config, path):
            for end in range(len(loc), -1, -1):
                key = join(path, ".".join(loc[:end])) if end else path
                if has(config, key):
                    return key
    for end in range(len(loc), 0, -1):
        if has(config, key := ".".join(loc[:end])):
            return key
    return None


def _to_blame(config: dict, error: Exception, ask: Callable[[dict], Verdict]) -> str:
    """The key without which the same complaint is not made; "" when no single key is."""
    said = (type(error), str(error))
    guilty = []
    for dotted, _ in paths(config):
        after = ask(without(config, dotted)).error
        if after is None or (type(after), str(after)) != said:
            guilty.append((dotted, after is None))
    if not guilty:
        return _first_to_raise(config, said, ask)
    message = str(error)

    def rank(item: tuple[str, bool]) -> tuple:
        dotted, cured = item
        named = re.search(rf"\b{re.escape(dotted.rpartition('.')[2])}\b", message) is not None
        return (not cured, not named, -len(dotted.rpartition(".")[2]) if named else 0, -dotted.count("."))

    return min(guilty, key=rank)[0]


def _first_to_raise(config: dict, said: tuple[type, str], ask: Callable[[dict], Verdict]) -> str:
    """Two keys may raise the same: then the first one with which the complaint appears, top-level keys only."""
    built: dict = {}
    for key, value in config.items():
        built[key] = value
        error = ask(built if any(name in built for name in _BATCH) else {**built, _BATCH[0]: 1}).error
        if error is not None and (type(error), str(error)) == said:
            return key
    return ""


def _first_named(message: str, schema: Schema) -> str:
    names = [(message.find(name), name) for name in schema.known("") if name in message]
    return min(names)[1] if names else ""


def _says(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    return f"DeepSpeed {deepspeed_version()} raises {type(error).__name__}: {text}"


def _shown(value: Any) -> str:
    if value is MISSING:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
