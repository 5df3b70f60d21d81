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
    tried: set[tuple[str, str]] = set()
    findings = check(config)
    for _ in range(_ROUNDS):
        edit = _next_edit(config, findings, tried)
        if edit is None:
            break
        config = apply(config, edit)
        done.append(edit)
        findings = check(config)
    return Corrected(config=config, edits=tuple(done), left=tuple(findings))


def _next_edit(config: dict, findings: list[Finding], tried: set[tuple[str, str]]) -> Edit | None:
    """The edit of the worst finding that was not tried; an error whose edit did not help loses its key."""
    for finding in findings:
        if finding.level == "note":
            continue
        wanted = [finding.edit] if finding.edit else []
        if finding.level == "error" and has(config, finding.key):
            wanted.append(delete(finding.key))
        for edit in wanted:
            mark = (finding.code, f"{edit.action} {edit.key} {edit.value!r}")
            if mark not in tried:
                tried.add(mark)
                return edit
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
