"""What lint says: one record per finding, and the table of every code it can use.

The table (CODES) is the source of docs/lint.md; a test holds the two in step.
"""

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
"""error: it raises, or silently does not do what was written. warning: risky. note: wasteful, or without effect."""

CODES: dict[str, str] = {
    # keys
    "unknown_key": "No code of the installed DeepSpeed reads a key of this name here.",
    "misplaced_key": "The key exists, but in another block; here it is refused or ignored.",
    "removed_key": "A feature that was taken out of DeepSpeed; the mere presence of the key raises.",
    "deprecated_key": "Still understood, through a conversion that will go away.",
    "duplicate_key": "Written twice in one block, under one name or two: one of them is lost, or DeepSpeed raises.",
    "comment_key": "A comment in the shape of a key; nothing reads it.",
    "missing_key": "Something that has no default is not given.",
    # values
    "wrong_type": "The value has a type that this key cannot take, or takes to mean something else.",
    "fractional_number": "An element count with a fraction.",
    "out_of_range": "The value is outside what the installed schema allows.",
    "not_allowed": "The value is none of the allowed words.",
    "value_changed": "DeepSpeed keeps another value than the one that was written.",
    "refused": "DeepSpeed (or the Trainer's integration) raises on this configuration.",
    "auto_not_resolved": "Nothing replaces this 'auto': it falls back to the default, or raises.",
    # batch
    "batch_equation": "train_batch_size = micro batch x accumulation steps x data-parallel ranks does not hold.",
    # precision
    "two_precisions": "bf16 and fp16 are on together.",
    "data_type_conflict": "data_types disagrees with the precision that is on.",
    # ZeRO and offload
    "no_effect": "Nothing reads this key under the given conditions.",
    "no_effect_offload": "The offload that is asked for does not happen.",
    "nvme_path": "NVMe offload without a usable path.",
    "network_file_system": "NVMe offload onto a network file system.",
    "nan_prone_overlap": "overlap_comm with contiguous_gradients and a small bucket at stage 1 or 2.",
    "contradiction": "Two settings that exclude each other.",
    # optimizer and scheduler
    "two_optimizers": "An optimizer in the JSON and another in the training arguments; the JSON wins.",
    "two_schedulers": "A scheduler in the JSON and another in the training arguments; the JSON wins.",
    "optimizer_refused": "The optimizer block names or configures an optimizer that cannot be built.",
    "scheduler_refused": "The scheduler block names or configures a scheduler that cannot be built.",
    "warmup_too_long": "The warm-up is longer than the run.",
    # Trainer
    "trainer_mismatch": "The JSON and the training arguments differ; the Trainer raises after the model is loaded.",
    "trainer_default_differs": "The JSON differs from the default of an argument that is not given.",
    "argument_not_used": "A training argument that the JSON silently replaces.",
    # model and LoRA
    "bucket_under_lora": "A gradient bucket far larger than all adapter gradients.",
    "no_effect_under_lora": "Nothing to tile or to split: the trainable part is smaller than the setting.",
    "moe_without_leaf": "A mixture-of-experts model at stage 3 whose expert block is not a leaf module.",
    "lora_target": "A LoRA target that no module of the model is called.",
    "larger_than_max_live": "One parameter alone is larger than stage3_max_live_parameters.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A change that would cure a finding: set `key` to `value`, delete it, or move it to `to`.

    A moved key keeps its value unless `value` says what it becomes there.
    """

    action: Literal["set", "delete", "move"]
    key: str
    value: Any = None
    to: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that lint has to say about one key."""

    code: str
    level: Level
    key: str
    """Dotted key as written ("zero_optimization.offload_param"); "" for the file as a whole."""
    message: str
    fix: str = ""
    edit: Edit | None = None
    """What `--fix` does about it; without one an error-level key is deleted."""

    def as_record(self) -> dict[str, str]:
        """The stable JSON form."""
        return {name: getattr(self, name) for name in ("code", "level", "key", "message", "fix")}


def found(code: str, level: Level, key: str, message: str, fix: str = "", edit: Edit | None = None) -> Finding:
    """A Finding with its code checked against the table (KeyError for a code that nobody explained)."""
    assert CODES[code]
    assert level in LEVELS
    return Finding(code=code, level=level, key=key, message=message, fix=fix, edit=edit)


def set_to(key: str, value: Any) -> Edit:
    return Edit(action="set", key=key, value=value)


def delete(key: str) -> Edit:
    return Edit(action="delete", key=key)


def move(key: str, to: str, value: Any = None) -> Edit:
    return Edit(action="move", key=key, to=to, value=value)


def codes_table() -> str:
    """The codes as the Markdown table that docs/lint.md holds."""
    rows = [f"| `{code}` | {meaning} |" for code, meaning in CODES.items()]
    return "\n".join(["| code | what it means |", "|---|---|", *rows])


def has_error(findings: list[Finding]) -> bool:
    return any(finding.level == "error" for finding in findings)


def in_order(findings: list[Finding]) -> list[Finding]:
    """Worst first, then by key; one finding per key and code; a general error gives way to a specific one."""
    kept: dict[tuple[str, str], Finding] = {}
    # Of two that say the same, the one that can be acted on stays.
    for finding in sorted(findings, key=lambda f: (LEVELS.index(f.level), f.edit is None)):
        kept.setdefault((finding.key, finding.code), finding)
    general = ("value_changed", "refused")
    chosen = [f for f in kept.values() if f.code not in general or not _outdone(f, kept, general)]
    return sorted(chosen, key=lambda f: (LEVELS.index(f.level), f.key, f.code))


def _outdone(finding: Finding, kept: dict[tuple[str, str], Finding], general: tuple[str, ...]) -> bool:
    """Whether another error on the same key says it better; of two general ones the later in `general` does."""
    weaker = general[: general.index(finding.code) + 1]
    return any(f.key == finding.key and f.level == "error" and f.code not in weaker for f in kept.values())
