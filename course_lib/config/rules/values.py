"""Values that mean something else than they seem to: text for numbers, "auto" that nothing resolves, coercions."""

from enum import Enum
from pathlib import PurePath
from typing import Any

from course_lib.config.facts import Facts
from course_lib.config.findings import Edit, Finding, delete, found, set_to
from course_lib.config.installed import deepspeed_version
from course_lib.config.numbers import is_number, is_whole, number_in, whole_near
from course_lib.config.schema import FREE_FORM, NO_DEFAULT, Schema
from course_lib.config.tree import get, join, paths


def value_findings(facts: Facts) -> list[Finding]:
    return [*_autos(facts), *_untyped(facts), *_ranges(facts), *_changed(facts)]


def _autos(facts: Facts) -> list[Finding]:
    """Every "auto" that nothing replaces and that is not a value of its own right."""
    findings = []
    for dotted, value in paths(facts.written):
        if value != "auto" or not facts.schema.knows(dotted):
            continue
        default = facts.schema.default_of(dotted)
        if facts.framework == "raw" and default != "auto":
            findings.append(_raw_auto(dotted, default, facts.schema))
        elif facts.trainer is not None and dotted in facts.trainer.leftover_autos:
            text = "no one fills this 'auto': accelerate raises ValueError before deepspeed.initialize"
            findings.append(found("auto_not_resolved", "error", dotted, text, "Write a value", delete(dotted)))
    return findings


def _raw_auto(dotted: str, default: Any, schema: Schema) -> Finding:
    block = dotted.rpartition(".")[0]
    typed = schema.blocks[block].model if block not in FREE_FORM else None
    plain = default is None or isinstance(default, bool | int | float | str)
    version = deepspeed_version()
    if typed is not None:
        text = f"'auto' is the Trainer's word; without it DeepSpeed {version} drops it to the default, {_json(default)}"
    else:
        text = f"'auto' is the Trainer's word; without it DeepSpeed {version} keeps the text 'auto' as the value"
    edit: Edit = set_to(dotted, default) if typed is not None and plain and default is not None else delete(dotted)
    return found("auto_not_resolved", "error", dotted, text, "Write the value that you want", edit)


def _untyped(facts: Facts) -> list[Finding]:
    """Blocks that DeepSpeed reads key by key take any value; what their code does with it shows later."""
    findings: list[Finding] = []
    for path, block in facts.schema.blocks.items():
        values = facts.written if not path else get(facts.written, path, None)
        if block.model is not None or not isinstance(values, dict):
            continue
        for key, default in block.keys.items():
            value = values.get(key)
            if key in values and value != "auto" and join(path, key) not in facts.schema.blocks:
                findings += _against_default(join(path, key), value, default)
    return findings


def _against_default(dotted: str, value: Any, default: Any) -> list[Finding]:
    """Compare a value's type with its default's: the only type that untyped keys have."""
    number = number_in(value)
    if isinstance(default, bool):
        return [] if isinstance(value, bool) or value in (0, 1) else [_not_a_switch(dotted, value)]
    if isinstance(default, int | float):
        if isinstance(value, bool):
            text = f"{_json(value)} counts as {int(value)} here"
            return [found("wrong_type", "note", dotted, text, f"Write {int(value)}", set_to(dotted, int(value)))]
        if isinstance(default, int) and is_number(value) and not is_whole(value):
            right = whole_near(value, otherwise=default)
            text = f"{value} is no count"
            return [found("fractional_number", "error", dotted, text, f"Write {right}", set_to(dotted, right))]
        if not isinstance(value, int | float):
            return [_not_a_number(dotted, value, number)]
    elif default in (None, NO_DEFAULT) and number is not None:
        return [_not_a_number(dotted, value, number)]
    return []


def _not_a_switch(dotted: str, value: Any) -> Finding:
    """Python's idea of truth decides: any text but the empty one, any number but 0."""
    meant = value.strip().lower() in ("true", "yes", "on", "1") if isinstance(value, str) else bool(value)
    level = "error" if isinstance(value, str) and bool(value) != meant else "note"
    text = f"{value!r} is not true or false; it counts as {_json(bool(value))}"
    return found("wrong_type", level, dotted, text, f"Write {_json(meant)} without quotes", set_to(dotted, meant))


def _not_a_number(dotted: str, value: Any, number: int | float | None) -> Finding:
    fix = f"Write {number} without quotes" if number is not None else "Write a number"
    edit = set_to(dotted, number) if number is not None else delete(dotted)
    return found("wrong_type", "error", dotted, f"{value!r} is not a number; DeepSpeed computes with it", fix, edit)


def _ranges(facts: Facts) -> list[Finding]:
    """Numbers that DeepSpeed accepts and that do not mean what they seem to."""
    findings = []
    clipping = get(facts.written, "gradient_clipping", None)
    if isinstance(clipping, int | float) and clipping < 0:
        text = f"{clipping} is below 0: gradients are not clipped at all"
        fix = "Write 0 to switch clipping off, or the norm you want"
        findings.append(
            found("out_of_range", "warning", "gradient_clipping", text, fix, set_to("gradient_clipping", 0))
        )
    steps = get(facts.written, "steps_per_print", None)
    if facts.framework == "raw" and isinstance(steps, int | float) and not isinstance(steps, bool) and steps == 0:
        text = "0 raises ZeroDivisionError at the first step (global_steps % steps_per_print)"
        findings.append(found("out_of_range", "error", "steps_per_print", text, "Delete it", delete("steps_per_print")))
    return findings


def _changed(facts: Facts) -> list[Finding]:
    """Typed keys whose kept value is not the written one; what the Trainer filled in is compared as filled in."""
    if facts.parsed is None:
        return []
    findings = []
    for path, block in facts.schema.blocks.items():
        values = get(facts.final, path, None) if path else None
        kept = _instance(facts.parsed, path, block.model) if block.model else None
        if kept is None or not isinstance(values, dict):
            continue
        fields = {key: name for name, info in block.model.model_fields.items() for key in (name, info.alias) if key}
        for key, value in values.items():
            if key in fields and not isinstance(value, dict) and value != "auto" and hasattr(kept, fields[key]):
                findings += _compare(join(path, key), value, getattr(kept, fields[key]))
    return findings


def _compare(dotted: str, written: Any, kept: Any) -> list[Finding]:
    kept = kept.value if isinstance(kept, Enum) else str(kept) if isinstance(kept, PurePath) else kept
    if isinstance(written, bool) != isinstance(kept, bool) or isinstance(written, str) != isinstance(kept, str):
        same_number = isinstance(kept, bool) and isinstance(written, int | float) and written == kept
        if same_number or kept == [written] or kept is None or isinstance(kept, dict):
            return []
        text = f"{_json(written)} is read as {_json(kept)}"
        return [found("value_changed", "note", dotted, text, f"Write {_json(kept)}", set_to(dotted, kept))]
    if written == kept or not isinstance(kept, bool | int | float | str):
        return []
    text = f"DeepSpeed {deepspeed_version()} keeps {_json(kept)}, not {_json(written)}"
    return [found("value_changed", "error", dotted, text, "Is the key written under two names?", delete(dotted))]


def _instance(parsed: Any, path: str, model: type) -> Any:
    """The parsed object of the block at `path`: the attribute, at most three levels deep, that has its type."""
    *_, name = path.split(".")
    level = [parsed]
    for _ in range(3):
        attributes = [(k, v) for obj in level for k, v in vars(obj).items() if hasattr(v, "__dict__")]
        matches = [(k, v) for k, v in attributes if type(v) is model]
        if matches:
            return next((v for k, v in matches if k == name), matches[0][1])
        level = [v for _, v in attributes if type(v).__module__.startswith("deepspeed")]
    return None


def _json(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)
