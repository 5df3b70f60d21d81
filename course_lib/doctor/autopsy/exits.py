"""How processes ended: exit codes and signals as torchrun, deepspeed, accelerate, SLURM, MPI and the shell say them."""

import re
from dataclasses import dataclass

from course_lib.doctor.autopsy.events import RANK_PREFIX, Line, Log
from course_lib.doctor.autopsy.findings import went_on_after

SIGNALS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGILL": 4,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGSEGV": 11,
    "SIGTERM": 15,
}
SIGNAL_NAMES = {number: name for name, number in SIGNALS.items()}
RANK_FIELD = re.compile(r"^\s*rank\s*:\s*(\d+)")
EXITCODE_FIELD = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)")
ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
LOCAL_RANK = re.compile(r"--?local[_-]rank[= ]'?(\d+)|local_rank: (\d+)")
TIME_LIMIT = re.compile(
    r"CANCELLED AT .*|DUE TO (?:TIME LIMIT|PREEMPTION)|time limit (?:exceeded|reached)|\bpreempted\b", re.I
)

# Each pattern: a rank may be in group 'rank', the code in 'code' or the signal's name in 'signal'.
PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"exits with return code = (?P<code>-?\d+)",
        r"failed \(exitcode: (?P<code>-?\d+)\)(?: local_rank: (?P<rank>\d+))?",
        r"process (?P<rank>\d+) terminated with (?:signal (?P<signal>SIG\w+)|exit code (?P<code>-?\d+))",
        r"process rank (?P<rank>\d+) with PID \d+ .*?exited on signal (?P<code_signal>\d+)",
        r"task (?P<rank>\d+): (?:Exited with exit code (?P<code>\d+)|"
        r"(?P<word>Killed|Segmentation fault|Aborted|Bus error|Out Of Memory|Terminated))",
        r"died with <Signals\.(?P<signal>SIG\w+)",
        r"returned non-zero exit status (?P<code>\d+)",
        r"\bSignal \d+ \((?P<signal>SIG\w+)\) received",
        r"Caught signal (?P<code_signal>\d+)|\(signal (?P<code_signal2>\d+)\)",
        r"\brank[ _:=]*(?P<rank>\d+)\b.{0,60}?(?:exit(?:ed)?(?:[ _]?(?:code|status))?|return ?code|ended with)"
        r"(?: with)?(?: exit)?(?: code)?[ :=]*(?P<code>-?\d+)\b",
        r"\brank[ _:=]*(?P<rank>\d+)\b.{0,60}?(?:signal[ :=]*(?P<code_signal>\d+)|(?P<signal>SIG[A-Z]{2,5})\b)",
        r"(?:exited with|exit) (?:code|status)[ :=]*(?P<code>-?\d+)",
        r"^\s*(?:\S+: line \d+:\s+\d+ )?(?P<word>Killed|Segmentation fault|Aborted|Bus error)"
        r"(?: \(core dumped\))?(?:\s{2,}\S.*)?\s*$",
        r"Fatal Python error: (?P<word>Segmentation fault|Aborted|Bus error|Illegal instruction)",
    )
)
WORD_SIGNALS = {
    "killed": 9,
    "out of memory": 9,
    "segmentation fault": 11,
    "aborted": 6,
    "bus error": 7,
    "terminated": 15,
    "illegal instruction": 4,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """One process's end. `code` is negative for a signal (-9: SIGKILL), as Python's subprocess has it."""

    line: Line
    code: int
    rank: int | None
    is_root: bool = False
    """The launcher itself named it as the first failure."""

    @property
    def name(self) -> str:
        return f"{SIGNAL_NAMES[-self.code]} ({self.code})" if -self.code in SIGNAL_NAMES else f"exit code {self.code}"


def exits(log: Log) -> list[Exit]:
    """All ends that are not success, in file order; one rank's repeated reports are kept (tables repeat lines)."""
    found: list[Exit] = []
    for source in log.sources:
        lines = [line for line in log.notable if line.source == source.name]
        found += [end for line in lines if (end := _exit_in(line))]
    found += _tables(log)
    return [end for end in found if end.code != 0 and not went_on_after(log, end.line)]


def _exit_in(line: Line) -> Exit | None:
    text = line.text
    for pattern in PATTERNS:
        match = pattern.search(text)
        if not match:
            continue
        groups = match.groupdict()
        code = _code(groups)
        if code is None:
            continue
        local = LOCAL_RANK.search(text)
        rank = groups.get("rank") or (local and (local[1] or local[2]))
        return Exit(line=line, code=code, rank=int(rank) if rank else line.rank)
    return None


def _code(groups: dict[str, str | None]) -> int | None:
    if groups.get("signal"):
        return -SIGNALS[groups["signal"].upper()] if groups["signal"].upper() in SIGNALS else None
    number = groups.get("code_signal") or groups.get("code_signal2")
    if number:
        return -int(number)
    if groups.get("word"):
        return -WORD_SIGNALS[groups["word"].lower()]
    if groups.get("code"):
        return shell_code(int(groups["code"]))
    return None


def shell_code(code: int) -> int:
    """137 as a shell or a container says it is -9; other codes stay."""
    return 128 - code if 128 < code <= 128 + 31 else code


def _tables(log: Log) -> list[Exit]:
    """torchrun's ChildFailedError table: 'rank : 3' and 'exitcode : -6 (pid: 12)' lines, the root cause last."""
    found = []
    for source in log.sources:
        in_root, rank = False, None
        for number, text in enumerate(source.lines, start=1):
            if ":" not in text and "Root Cause" not in text:
                continue
            if ROOT_CAUSE.search(text):
                in_root, rank = True, None
            field = RANK_FIELD.match(_bare(text))
            if field:
                rank = int(field[1])
            code = EXITCODE_FIELD.match(_bare(text))
            if code and rank is not None:
                line = Line(source=source.name, number=number, rank=rank, text=text, quoted=text.strip())
                found.append(Exit(line=line, code=shell_code(int(code[1])), rank=rank, is_root=in_root))
                rank, in_root = None, False
    return found


def _bare(text: str) -> str:
    prefix = RANK_PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


def first_exit(log: Log) -> Exit | None:
    """The end that the others followed: the launcher's own root cause, else the first one that is not a SIGTERM.

    Launchers end the surviving ranks with SIGTERM, so -15 is the cause only when nothing else happened.
    """
    found = exits(log)
    root = [end for end in found if end.is_root]
    own = [end for end in found if end.code != -15]
    chosen = (root or own or found or [None])[0]
    if chosen and chosen.code > 0:
        # 'exited with code 1' of the launcher, while a rank's own line names a signal.
        signals = [end for end in own if end.code < 0]
        chosen = signals[0] if signals and not root else chosen
    if chosen and chosen.rank is None:
        same = [end for end in found if end.code == chosen.code and end.rank is not None]
        chosen = same[0] if same else chosen
    return chosen
