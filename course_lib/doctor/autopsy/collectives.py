"""Verdicts collective_mismatch and collective_timeout: who waited in which collective, since which step."""

import re
from dataclasses import dataclass

from course_lib.doctor.autopsy.events import Line, Log
from course_lib.doctor.autopsy.exits import first_exit
from course_lib.doctor.autopsy.findings import Finding, last_step_before, phase_at, quote, went_on_after
from course_lib.doctor.autopsy.tracebacks import Frame, frames_before

WORK = re.compile(r"Work\w+\((?P<fields>[^)]*(?:\(ms\))?[^)]*)\)")
FIELD = re.compile(r"(\w+)(?:\(ms\))?=\s*([\w.-]+)")
WORK_RANK = re.compile(r"\[?\bRank (\d+)\]", re.I)
NCCL_TIMEOUT = re.compile(r"caught collective operation timeout|collective operation timeout: Work")
GLOO_TIMEOUT = re.compile(
    r"Timed out waiting \d+ ?ms|wait timeout after \d+ ?ms|Timed out after \d+ seconds waiting for clients|"
    r"Timeout waiting for key|Socket Timeout|store->get.*(?:timeout|timed out)|Broken .*wait.*timeout|"
    r"watchdog got stuck for \d+ seconds|signal due to a collective timeout|collective .*\btimed out|"
    r"timed out .*\b(?:barrier|all_?reduce|all_?gather|broadcast|collective)|DistStoreError",
    re.I,
)
FINGERPRINT = re.compile(
    r"Detected mismatch between collectives on ranks|collectives? (?:do not|don't) match|desync", re.I
)
FINGERPRINT_RANK = re.compile(r"Rank (\d+) is running collective: \w*\(?([^)]*?OpType=(\w+)[^)]*)", re.I)
BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")
WATCHDOG = re.compile(
    r"watchdog: rank (?P<rank>\d+) .*?last collective (?P<op>\w+)\s*(?:\((?P<fields>[^)]*)\))?"
    r"(?:.*? in (?P<where>[\w./:]+))?",
    re.I,
)
"""Our own guard's line: 'watchdog: rank 1 at step 50: no progress for 60 s; last collective all_gather(seq=12,
numel=4096) in evaluate'."""
NCCL_FAILURE = re.compile(
    r"NCCL (?:Error \d|error in)|ncclSystemError|ncclRemoteError|ncclInternalError|unhandled system error"
)
COMMUNICATION_FRAMES = re.compile(
    r"all_reduce|all_gather\w*|_allgather\w*|reduce_scatter\w*|broadcast\w*|barrier|gather|scatter|recv|send|monitored_barrier"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """The collective in which one rank waited when the time ran out."""

    rank: int | None
    line: Line
    signature: tuple[str, ...]
    """What must be equal on all ranks: sequence number, operation, sizes; or the place in the program."""
    shown: str


def detect(log: Log) -> Finding | None:
    """Mismatch when two ranks waited in different collectives, timeout when nothing tells them apart."""
    waits = _first_per_rank([*_nccl(log), *_watchdogs(log), *_gloo(log)])
    stated = [line for line in log.notable if FINGERPRINT.search(line.text) and not went_on_after(log, line)]
    failures = [line for line in log.notable if NCCL_FAILURE.search(line.text) and not went_on_after(log, line)]
    barrier = [line for line in log.notable if BARRIER.search(line.text)]
    if stated:
        return _stated_mismatch(log, stated)
    if not waits and not failures and not barrier:
        return None
    first = min((w.line for w in waits), key=lambda i: i.number, default=(barrier or failures or [None])[0])
    if _somebody_died_before(log, first):
        return None
    named = [wait for wait in waits if wait.rank is not None]
    if len(named) > 1 and len({wait.signature for wait in named}) > 1:
        return _mismatch(log, named)
    ranks = sorted({wait.rank for wait in named})
    missing = [int(r) for line in barrier for r in re.findall(r"\d+", BARRIER.search(line.text)[1])]
    return _finding(
        log,
        "collective_timeout",
        lines=[wait.line for wait in waits] or barrier or failures,
        ranks=missing or ranks,
        shown=waits[0].shown if waits else "",
        facts={"one_rank": len(named) == 1, "missing": missing, "ranks": ranks},
    )


def _nccl(log: Log) -> list[Wait]:
    found = []
    for line in log.notable:
        if not NCCL_TIMEOUT.search(line.text) or went_on_after(log, line):
            continue
        work = WORK.search(line.text)
        fields = dict(FIELD.findall(line.text[work.start() :])) if work else {}
        rank = WORK_RANK.search(line.text)
        signature = tuple(fields.get(key, "") for key in ("SeqNum", "OpType", "NumelIn", "NumelOut"))
        operation, number, size = (fields.get(key, "?") for key in ("OpType", "SeqNum", "NumelIn"))
        shown = f"{operation} (SeqNum {number}, NumelIn {size})"
        found.append(Wait(rank=int(rank[1]) if rank else line.rank, line=line, signature=signature, shown=shown))
    return found


def _watchdogs(log: Log) -> list[Wait]:
    found = []
    for line in log.notable:
        match = WATCHDOG.search(line.text)
        if not match:
            continue
        signature = (match["op"], match["fields"] or "", match["where"] or "")
        shown = f"{match['op']}({match['fields'] or ''})" + (f" in {match['where']}" if match["where"] else "")
        found.append(Wait(rank=int(match["rank"]), line=line, signature=signature, shown=shown))
    return found


def _gloo(log: Log) -> list[Wait]:
    """Gloo says no sequence number: what can be compared is the place in the program where each rank waited."""
    found = []
    for line in log.notable:
        if not GLOO_TIMEOUT.search(line.text) or went_on_after(log, line) or NCCL_TIMEOUT.search(line.text):
            continue
        frames = frames_before(log, line)
        signature = _place(frames)
        own = [frame for frame in frames if not frame.is_library][-2:]
        shown = " -> ".join(f"{f.function} ({f.file.rsplit('/', 1)[-1]}:{f.line_number})" for f in own)
        found.append(Wait(rank=line.rank, line=line, signature=signature, shown=shown or "a collective"))
    return found


def _place(frames: list[Frame]) -> tuple[str, ...]:
    """Where in the program, and in which collective; empty when the traceback is not there."""
    own = tuple(f"{f.file}:{f.line_number}" for f in frames if not f.is_library)
    inner = [f.function for f in frames if COMMUNICATION_FRAMES.fullmatch(f.function)]
    return (*own, *inner[-1:])


def _first_per_rank(waits: list[Wait]) -> list[Wait]:
    """Each rank's first report: later ones come from its other groups, or from the shutdown."""
    first: dict[int | None, Wait] = {}
    for wait in waits:
        first.setdefault(wait.rank, wait)
    return list(first.values())


def _somebody_died_before(log: Log, first: Line) -> bool:
    """A rank that ended, or raised something of its own, before anybody's time ran out: the waiting is its echo."""
    from course_lib.doctor.autopsy.deaths import first_exception

    end, raised = first_exit(log), first_exception(log)
    earlier_end = end and end.code not in (-6, 1) and (end.line.source, end.line.number) < (first.source, first.number)
    own_fault = (
        raised and not GLOO_TIMEOUT.search(raised.text) and not re.search(r"DistBackendError|NCCL|Gloo", raised.text)
    )
    same_file = raised and raised.source == first.source
    return bool(earlier_end or (own_fault and (not same_file or raised.number < first.number)))


def _stated_mismatch(log: Log, lines: list[Line]) -> Finding:
    running = FINGERPRINT_RANK.findall(" ".join(line.text for line in lines))
    ranks = sorted({int(rank) for rank, _, _ in running} | {line.rank for line in lines if line.rank is not None})
    shown = "; ".join(f"rank {rank}: {op}" for rank, _, op in running)
    return _finding(log, "collective_mismatch", lines=lines, ranks=ranks, shown=shown, facts={})


def _mismatch(log: Log, waits: list[Wait]) -> Finding:
    waits = sorted(waits, key=lambda wait: wait.rank)
    counts: dict[tuple[str, ...], int] = {}
    for wait in waits:
        counts[wait.signature] = counts.get(wait.signature, 0) + 1
    rarest = min(counts.values())
    odd = [w.rank for w in waits if counts[w.signature] == rarest] if rarest < max(counts.values()) else []
    shown = "; ".join(f"rank {wait.rank}: {wait.shown}" for wait in waits)
    return _finding(
        log,
        "collective_mismatch",
        lines=[wait.line for wait in waits],
        ranks=[wait.rank for wait in waits],
        shown=shown,
        facts={"odd": odd, "barrier": any("NumelIn 1)" in wait.shown for wait in waits)},
    )


def _finding(log: Log, verdict: str, *, lines: list[Line], ranks: list[int], shown: str, facts: dict) -> Finding:
    step = last_step_before(log, lines[0])
    since = [f"last step before the wait: step {step}"] if step is not None else []
    doing = _announced(log, lines[0])
    return Finding(
        verdict=verdict,
        phase={"train": "step"}.get(phase := phase_at(log, lines[0]), phase),
        ranks=ranks,
        at_steps=[step] if step is not None else [],
        evidence=[quote(line) for line in lines[:6]]
        + since
        + ([shown] if shown else [])
        + ([quote(doing)] if doing else []),
        facts={"step": step, "rank0_only": doing is not None, **facts},
    )


def _announced(log: Log, before: Line) -> Line | None:
    """A marker of evaluation or saving that came last before the wait: what only one rank may have entered."""
    markers = [e for e in log.of("marker") if e.line.source == before.source and e.line.number < before.number]
    last = markers[-1] if markers else None
    later = last and [
        e
        for e in log.of("train")
        if e.line.source == before.source and last.line.number < e.line.number < before.number
    ]
    return last.line if last and not later and last.phase in ("eval", "save") else None
