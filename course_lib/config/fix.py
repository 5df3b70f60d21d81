"""A corrected copy of a ds_config: apply the edits that findings carry, lint again, until no error is left.

Errors and warnings are corrected; notes are left as they are. The original is never written to.
"""

from collections.abc import Callable
from dataclasses import dataclass

from course_lib.config.findings import Edit, Finding, delete
from course_lib.config.tree import MISSING, get, has, put, without

_ROUNDS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Corrected:
    """What `--fix` made, and how."""

    config: dict
    edits: tuple[Edit, ...]
    left: tuple[Finding, ...]
    """Findings of the corrected copy; an error here could not be corrected by changing the JSON."""


def corrected(config: dict, check: Callable[[dict], list[Finding]]) -> Corrected:
    """Correct `config` as far as edits can.

    Args:
        check: lint with everything but the configuration already given.
    """
    done: list[Edit] = []
    seen = {repr(config)}
    findings = check(config)
    for _ in range(_ROUNDS):
        step = _next_step(config, findings, seen)
        if step is None:
            break
        edit, config = step
        seen.add(repr(config))
        done.append(edit)
        findings = check(config)
    return Corrected(config=config, edits=tuple(done), left=tuple(findings))


def _next_step(config: dict, findings: list[Finding], seen: set[str]) -> tuple[Edit, dict] | None:
    """The edit of the worst finding that leads somewhere new; an error whose edit does not loses its key."""
    for finding in findings:
        if finding.level == "note":
            continue
        wanted = [finding.edit] if finding.edit else []
        if finding.level == "error" and has(config, finding.key):
            wanted.append(delete(finding.key))
        for edit in wanted:
            after = apply(config, edit)
            if repr(after) not in seen:
                return edit, after
    return None


def apply(config: dict, edit: Edit) -> dict:
    """A copy of `config` with one edit made."""
    if edit.action == "set":
        return put(config, edit.key, edit.value)
    value = get(config, edit.key)
    smaller = without(config, edit.key)
    if edit.action == "move" and value is not MISSING and not has(smaller, edit.to):
        return put(smaller, edit.to, value if edit.value is None else edit.value)
    return smaller


def described(edit: Edit) -> str:
    """One edit in words."""
    if edit.action == "set":
        return f"set {edit.key} to {edit.value!r}"
    return f"moved {edit.key} to {edit.to}" if edit.action == "move" else f"deleted {edit.key}"
