"""Keys that nobody reads, that moved, that were removed: decided by the installed schema alone."""

import difflib

from course_lib.config.findings import Edit, Finding, delete, found, move, set_to
from course_lib.config.installed import deepspeed_version
from course_lib.config.schema import Block, Schema
from course_lib.config.tree import has, join
from course_lib.errors import nearest

_SURE = 0.8
"""difflib ratio from which a near name is taken for what was meant (and `--fix` renames to it)."""


def key_findings(written: dict, schema: Schema) -> list[Finding]:
    """Removed, unknown, misplaced and deprecated keys, at any depth."""
    findings: list[Finding] = []
    for dotted, message in schema.removed.items():
        if has(written, dotted):
            text = f"DeepSpeed {deepspeed_version()} raises on the mere presence: {' '.join(message.split())}"
            findings.append(found("removed_key", "error", dotted, text, f"Delete {dotted}", delete(dotted)))
    _walk(written, "", written, schema, findings)
    return findings + _old_forms(written, schema)


def _walk(block: dict, path: str, written: dict, schema: Schema, findings: list[Finding]) -> None:
    definition = schema.blocks[path]
    for key, value in block.items():
        dotted = join(path, str(key))
        if dotted in schema.removed:
            continue
        if key in definition.keys:
            findings += _deprecated(dotted, str(key), block, definition)
            if isinstance(value, dict) and dotted in schema.blocks:
                _walk(value, dotted, written, schema, findings)
            elif not isinstance(value, dict) and _must_be_block(dotted, value, schema):
                text = f"{value!r} stands where a block {{...}} of settings is read"
                findings.append(
                    found("wrong_type", "error", dotted, text, "Write a block, or delete it", delete(dotted))
                )
        elif not definition.open:
            findings.append(_unknown(dotted, str(key), path, written, schema))


def _must_be_block(dotted: str, value: object, schema: Schema) -> bool:
    """Whether only a mapping makes sense here. null is left to DeepSpeed; zero_optimization was a bool once."""
    if value is None or (dotted == "zero_optimization" and isinstance(value, bool)):
        return False
    plain_default = schema.default_of(dotted) is False
    return (dotted in schema.blocks and not plain_default) or dotted in ("optimizer.params", "scheduler.params")


def _unknown(dotted: str, key: str, path: str, written: dict, schema: Schema) -> Finding:
    where = f"in {path}" if path else "at the top level"
    fate = "raises on it" if schema.blocks[path].model else "ignores it silently"
    version = deepspeed_version()
    if key.startswith(("_", "//", "#", "$")) or key.lower() in ("comment", "comments"):
        level = "error" if schema.blocks[path].model else "note"
        return found(
            "comment_key", level, dotted, f"looks like a comment; DeepSpeed {version} {fate}", "", delete(dotted)
        )
    if "." in key and schema.knows(dotted):
        text = f"'{key}' is written flat: DeepSpeed {version} {fate}. Every dot is a block of its own"
        edit = move(dotted, dotted)
        return found("misplaced_key", "error", dotted, text, f"Write {_nested(key)}", edit)
    home = _home(key, path, schema)
    if home:
        text = f"'{key}' {where} is misplaced: DeepSpeed {version} {fate}. It belongs at {' or '.join(home[:3])}"
        edit = move(dotted, home[0]) if len(home) == 1 and not has(written, home[0]) else delete(dotted)
        return found("misplaced_key", "error", dotted, text, f"Move it to {home[0]}", edit)
    near = nearest(key, schema.known(path), 3)
    elsewhere = [h for name in nearest(key, _all_names(schema), 2) for h in schema.homes_of(name)[:1]]
    text = f"unknown key '{key}' {where}: DeepSpeed {version} {fate}"
    fix = f"Nearest: {', '.join(near or elsewhere)}" if near or elsewhere else f"Delete {dotted}"
    return found("unknown_key", "error", dotted, text, fix, _rename(dotted, key, path, near, written))


def _nested(key: str) -> str:
    first, *rest = key.split(".")
    return f'{{"{first}": {_nested(".".join(rest)) if rest else "…"}}}'


def _rename(dotted: str, key: str, path: str, near: list[str], written: dict) -> Edit:
    """Rename to a near name when it surely is what was meant and is not there already."""
    if near:
        target = join(path, near[0])
        if difflib.SequenceMatcher(None, key, near[0]).ratio() >= _SURE and not has(written, target):
            return move(dotted, target)
    return delete(dotted)


def _home(key: str, path: str, schema: Schema) -> list[str]:
    """Where a key of exactly this name is known; inside optimizer and scheduler that is their params."""
    if "params" in schema.known(path):
        return [join(path, f"params.{key}")]
    homes = schema.homes_of(key)
    # A block's alias is the same place twice (tensor_parallel.tp), and bfloat16 is bf16's old name.
    return [home for home in homes if not home.startswith(("bfloat16.", "tensor_parallel.tensor_parallel."))]


def _all_names(schema: Schema) -> set[str]:
    return {name for block in schema.blocks.values() for name in block.keys}


def _deprecated(dotted: str, key: str, written: dict, definition: Block) -> list[Finding]:
    """Fields that DeepSpeed's own model marks as deprecated, and what becomes of their value."""
    fields = definition.model.model_fields if definition.model else {}
    info = next((field for name, field in fields.items() if key in (name, field.alias)), None)
    extra = (info.json_schema_extra if info else None) or {}
    value = written[key]
    if not isinstance(extra, dict) or not extra.get("deprecated") or value == "auto":
        return []
    new = str(extra.get("new_param", ""))
    parent = dotted.rpartition(".")[0]
    if not extra.get("set_new_param", True):
        text = f"deprecated, and its value goes nowhere in DeepSpeed {deepspeed_version()}; {new} takes its place"
        return [found("no_effect", "error", dotted, text, f"Use {new}", delete(dotted))]
    alias = next((f.alias for name, f in fields.items() if name == new and f.alias), new)
    if any(name in written for name in (new, alias)):
        text = f"deprecated, and {alias} is there too: DeepSpeed {deepspeed_version()} asserts that only one of them is"
        return [found("contradiction", "error", dotted, text, f"Delete {key}", delete(dotted))]
    text = f"deprecated; DeepSpeed {deepspeed_version()} still converts it to {alias}"
    edit = move(dotted, join(parent, alias))
    if convert := extra.get("new_param_fn"):
        block = convert(value)
        edit = move(dotted, edit.to, block.model_dump(exclude_unset=True, mode="json")) if block else delete(dotted)
    return [found("deprecated_key", "warning", dotted, text, f"Write {join(parent, alias)} instead", edit)]


def _old_forms(written: dict, schema: Schema) -> list[Finding]:
    """`zero_optimization: true`, `allgather_size` beside it, and the block name bfloat16."""
    findings = []
    zero = written.get("zero_optimization")
    if isinstance(zero, bool):
        stage = 1 if zero else 0
        text = f"'zero_optimization: {str(zero).lower()}' is an old form and means stage {stage}"
        fix = f'Write {{"stage": {stage}}}'
        edit = set_to("zero_optimization", {"stage": stage})
        findings.append(found("deprecated_key", "warning", "zero_optimization", text, fix, edit))
    elif "allgather_size" in written and "allgather_size" in schema.known(""):
        text = "read only beside the old form 'zero_optimization: true'; ignored here"
        fix = "Use zero_optimization.allgather_bucket_size"
        edit = move("allgather_size", "zero_optimization.allgather_bucket_size")
        findings.append(found("no_effect", "error", "allgather_size", text, fix, edit))
    if "bfloat16" in written and "bfloat16" in schema.known(""):
        if written.get("bf16") is not None:
            text = "ignored: 'bf16' is there too and wins"
            findings.append(found("no_effect", "error", "bfloat16", text, "Delete bfloat16", delete("bfloat16")))
        else:
            text = "the old name of 'bf16'; the Trainer's integration does not know it"
            edit = move("bfloat16", "bf16")
            findings.append(found("deprecated_key", "warning", "bfloat16", text, "Rename it to bf16", edit))
    return findings
