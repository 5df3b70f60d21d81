"""Verdicts of a run that ended by force: shm_too_small, disk_full, oom_host, checkpoint_damaged, rank_died."""

import re

from course_lib.doctor.autopsy.events import Line, Log
from course_lib.doctor.autopsy.exits import TIME_LIMIT, Exit, first_exit
from course_lib.doctor.autopsy.findings import Finding, last_step_before, phase_at, quote, went_on_after
from course_lib.doctor.autopsy.learning import MASKED, NO_SAMPLES, SCALE_AT_MINIMUM
from course_lib.doctor.autopsy.rows import number
from course_lib.doctor.autopsy.tracebacks import frames_before, phase_of

SHM = re.compile(
    # torch names its shared-memory files </torch_PID_N>.
    r"/dev/shm|</torch_\d+|insufficient shared memory|out of shared memory|shared memory (?:segment|object|limit)|"
    r"unable to (?:open|mmap|allocate) shared memory|Unexpected bus error|killed by signal: Bus error",
    re.I,
)
SHM_FAULT = re.compile(r"error|fail|unable|insufficient|out of shared|no space|killed by signal|cannot|too small", re.I)
DISK = re.compile(
    r"No space left on device|\[Errno 28\]|os error 28\b|Disk quota exceeded|\[Errno 122\]|ENOSPC|disk (?:is )?full|"
    # What torch.save says when a write is cut short.
    r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\].*unexpected pos|basic_ios::clear: iostream error",
    re.I,
)
HOST = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough|cannot)|^\s*MemoryError\b|Cannot allocate memory|\[Errno 12\]|"
    r"oom[-_ ]?kill|OOMKilled|Out of memory: Kill|Memory cgroup out of memory|std::bad_alloc|"
    r"node (?:is |was )?running low on memory|cudaHostAlloc|killed by the cgroup out-of-memory|"
    r"ran out of host memory|Out Of Memory$",
    re.I,
)
DAMAGED = re.compile(
    r"Error while deserializing header|MetadataIncompleteBuffer|incomplete metadata|InvalidHeader\w*|HeaderToo\w+|"
    r"PytorchStreamReader failed|failed finding central directory|unexpected EOF, expected|file might be corrupted|"
    r"Invalid magic number; corrupt|zero checkpoints? (?:paths? )?(?:are|is) missing|"
    r"Can't find a valid checkpoint|invalid (?:UTF-8|JSON) in header|invalid header length|header too (?:small|large)|"
    r"EOFError: Ran out of input|UnpicklingError|invalid load key|not a ZIP archive|BadZipFile|"
    r"unable to load weights from pytorch checkpoint|checksum (?:mismatch|does not match)|"
    r"(?:checkpoint|safetensors|weights?)\b.*\b(?:truncated|corrupt\w*|damaged|incomplete)|"
    r"(?:truncated|corrupt\w*|damaged)\b.*\b(?:checkpoint|safetensors|weights?|shard)|"
    r"(?:size mismatch|copying a param|shape).*torch\.Size\(\[0\]\)",
    re.I,
)  # fmt: skip
READER_ERROR = re.compile(r"(?:\w+\.)*(?:EOFError|UnpicklingError|JSONDecodeError|BadZipFile|OSError: \[Errno 22\])")
LOADING = re.compile(r"torch/serialization|torch\.load\(|load_checkpoint|load_from_json|trainer_state|from_pretrained")
LOW_PERCENT = 60
"""Host memory in use, below which the kernel's out-of-memory killer is not a likely sender of SIGKILL."""
HOST_PERCENT = re.compile(r"CPU Virtual Memory:\s+used = ([\d.]+) GB, percent = ([\d.]+)%")
LOG_PREFIX = re.compile(r"^(?:\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\s*)+(?:\[\w+\]\s*)*(?:- \w+ - )?")
EXCEPTION = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Exit))\b(?::|$)")
LAUNCHERS = re.compile(r"ChildFailedError|CalledProcessError|SignalException|ProcessRaisedException|SystemExit")
NAMED_ELSEWHERE = (MASKED, NO_SAMPLES, SCALE_AT_MINIMUM, re.compile(r"metric_for_best_model"))
"""Exceptions that a verdict about learning explains better than 'a rank died' does."""
PEER_GONE = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|connection was (?:likely )?(?:closed|lost)|recvValue failed|"
    r"remote process (?:has )?(?:exited|terminated)|NCCL communicator was aborted|"
    r"Socket(?:StatusClosed| is closed)|failed to recv, got 0 bytes",
    re.I,
)


def detect_shm(log: Log) -> Finding | None:
    lines = [i for i in log.notable if SHM.search(i.text) and SHM_FAULT.search(i.text) and not went_on_after(log, i)]
    end = first_exit(log)
    if not lines and (not end or end.code != -7 or any(DISK.search(line.text) for line in log.notable)):
        # A full disk under a mapped file is a bus error too, and then somebody says so.
        return None
    where = lines[0] if lines else end.line
    evidence = [quote(line) for line in lines[:3]] + ([quote(end.line)] if end else [])
    return Finding(verdict="shm_too_small", phase=_phase(log, where), ranks=_ranks(lines, end), evidence=evidence)


def detect_disk(log: Log) -> Finding | None:
    lines = [i for i in log.notable if DISK.search(i.text) and not SHM.search(i.text) and not went_on_after(log, i, 5)]
    if not lines:
        return None
    paths = re.findall(r"['\"](/[^'\"]+)['\"]", " ".join(line.text for line in lines))
    step = last_step_before(log, lines[0])
    return Finding(
        verdict="disk_full",
        phase=_phase(log, lines[0]),
        ranks=_ranks(lines, None),
        evidence=[quote(line) for line in lines[:3]],
        at_steps=[step] if step is not None else [],
        facts={"paths": list(dict.fromkeys(paths))[:3], "quota": "quota" in lines[0].text.lower()},
    )


def detect_host(log: Log) -> Finding | None:
    """Messages of the kernel, the scheduler or an allocator; else a first end by SIGKILL that memory can explain."""
    lines = [line for line in log.notable if HOST.search(line.text) and not went_on_after(log, line)]
    end = first_exit(log)
    killed = end is not None and end.code == -9
    if not lines and not killed:
        return None
    if not lines and (_low_host_use(log, end.line) or _had_waited(log, end)):
        return None
    where = lines[0] if lines else end.line
    pinned = [line for line in lines if "cudaHostAlloc" in line.text]
    step = last_step_before(log, where)
    evidence = [quote(line) for line in lines[:3]] + ([quote(end.line)] if killed else [])
    return Finding(
        verdict="oom_host",
        phase=_phase(log, where),
        cause="pinned_memory" if pinned else "",
        ranks=_ranks(lines, end if killed else None),
        evidence=evidence + _context(log, where),
        at_steps=[step] if step is not None else [],
        facts={"said_so": bool(lines)},
    )


def _had_waited(log: Log, end: Exit) -> bool:
    """Whether that rank had run into a collective's time limit before: then the kill is part of the shutdown."""
    waited = [line for line in log.notable if "collective operation timeout" in line.text]
    return any(
        line.rank == end.rank and line.source == end.line.source and line.number < end.line.number for line in waited
    )


def _low_host_use(log: Log, before: Line) -> bool:
    """Whether host memory was far from full while training: then SIGKILL came from somebody else."""
    if phase_at(log, before) != "train":
        return False
    earlier = [line for line in log.notable if line.source == before.source and line.number < before.number]
    readings = [match for line in earlier if (match := HOST_PERCENT.search(line.text))]
    if readings:
        return float(readings[-1][2]) < LOW_PERCENT
    total = number(log.settings.get("host_total_bytes"))
    resident = {e.line.rank: e.values["resident_bytes"] for e in log.of("marker") if "resident_bytes" in e.values}
    return bool(total and resident) and 100 * sum(resident.values()) < LOW_PERCENT * total


def detect_damage(log: Log) -> Finding | None:
    lines = [
        line
        for line in log.notable
        if (DAMAGED.search(line.text) or _is_broken_load(log, line)) and not went_on_after(log, line)
    ]
    if not lines and not log.damaged_files:
        return None
    files = re.findall(r"[\w./~-]+\.(?:safetensors|bin|pt|pth|ckpt|json|distcp)", " ".join(i.text for i in lines))
    context = _context(log, lines[0]) if lines else []
    return Finding(
        verdict="checkpoint_damaged",
        phase="load" if lines else None,
        ranks=_ranks(lines, None),
        evidence=[quote(line) for line in lines[:3]] + log.damaged_files[:3] + context,
        facts={"files": list(dict.fromkeys(files))[:3], "lfs": any("load key, 'v'" in i.text for i in lines),
               "empty": any("Size([0])" in i.text for i in lines) or any("are empty" in f for f in log.damaged_files)},
    )  # fmt: skip


def _is_broken_load(log: Log, line: Line) -> bool:
    """An error of a reader (pickle, JSON, zip), raised while a checkpoint was read."""
    if not READER_ERROR.match(line.text.strip()):
        return False
    return any(LOADING.search(f"{f.file} {f.function} {f.code}") for f in frames_before(log, line))


def detect_death(log: Log) -> Finding | None:
    """One rank's end, the others following: an exit code, a signal, an exception, a silence that peers report."""
    end = first_exit(log)
    raised = first_exception(log)
    cancelled = next((line for line in log.notable if TIME_LIMIT.search(line.text)), None)
    if not end and not raised and not cancelled:
        return _from_peers(log) if _is_cut_off(log) else None
    where = raised if raised and (not end or end.code > 0) else (end.line if end else cancelled)
    rank = where.rank if where is raised and raised.rank is not None else (end.rank if end else None)
    step = last_step_before(log, where)
    evidence = [quote(line) for line in (raised, end and end.line, cancelled) if line]
    if rank is not None:
        evidence.append(f"the first to end: rank {rank}" + (f", {end.name}" if end else ""))
    return Finding(
        verdict="rank_died",
        phase=_phase(log, where),
        cause=_death_cause(log, end, raised),
        ranks=[rank] if rank is not None else [],
        evidence=evidence + _context(log, where),
        numbers={"exit_code": end.code} if end else {},
        at_steps=[step] if step is not None else [],
        facts={"end": end.name if end else "", "exception": raised.text.strip() if raised else ""},
    )


def _death_cause(log: Log, end: Exit | None, raised: Line | None) -> str:
    if any(TIME_LIMIT.search(line.text) for line in log.notable):
        return "time_limit"
    if raised and "KeyboardInterrupt" in raised.text:
        return "interrupted"
    if end and end.code < 0:
        return {-15: "terminated", -2: "interrupted", -9: "killed", -11: "segfault", -6: "abort"}.get(
            end.code, "signal"
        )
    return "exception" if raised else "exit_code"


def first_exception(log: Log) -> Line | None:
    """The first uncaught-looking exception in a training log that is not the launcher's echo or a peer's complaint."""
    for line in log.notable:
        text = LOG_PREFIX.sub("", line.text).strip(" │")
        match = EXCEPTION.match(text)
        if not match or LAUNCHERS.search(text) or PEER_GONE.search(text) or went_on_after(log, line):
            continue
        if any(pattern.search(text) for pattern in NAMED_ELSEWHERE) or _is_chained(log, line):
            continue
        if not frames_before(log, line) and "Traceback" not in _lines_above(log, line):
            continue
        if _is_ignored(log, line):
            continue
        return line
    return None


def _is_ignored(log: Log, line: Line) -> bool:
    """Whether Python said 'Exception ignored in …' above the traceback: clean-up at exit, nobody's failure."""
    source = next(s for s in log.sources if s.name == line.source)
    for index in range(line.number - 2, max(0, line.number - 60), -1):
        if "most recent call" in source.lines[index]:
            return "Exception ignored" in source.lines[index - 1]
    return False


def _is_chained(log: Log, line: Line) -> bool:
    """Whether another exception followed from this one: the last of a chain is what ended the process."""
    source = next(s for s in log.sources if s.name == line.source)
    below = " ".join(source.lines[line.number : line.number + 3])
    return "During handling of the above exception" in below or "The above exception was the direct cause" in below


def _lines_above(log: Log, line: Line, count: int = 4) -> str:
    source = next(s for s in log.sources if s.name == line.source)
    return " ".join(source.lines[max(0, line.number - 1 - count) : line.number - 1])


def _is_cut_off(log: Log) -> bool:
    return any(PEER_GONE.search(line.text) and not went_on_after(log, line) for line in log.notable)


def _from_peers(log: Log) -> Finding:
    """Peers lost a connection: the rank that does not complain is the one that went."""
    lines = [line for line in log.notable if PEER_GONE.search(line.text)]
    complaining = {line.rank for line in lines if line.rank is not None}
    silent = sorted(log.ranks - complaining)
    step = last_step_before(log, lines[0])
    return Finding(
        verdict="rank_died",
        phase=_phase(log, lines[0]),
        cause="connection_lost",
        ranks=silent,
        evidence=[quote(line) for line in lines[:3]],
        at_steps=[step] if step is not None else [],
        facts={"end": "", "exception": ""},
    )


def _phase(log: Log, line: Line) -> str | None:
    told = phase_of(frames_before(log, line))
    around = phase_at(log, line)
    return told or {"train": "step"}.get(around, around)


def _ranks(lines: list[Line], end: Exit | None) -> list[int]:
    ranks = {line.rank for line in lines if line.rank is not None}
    if end and end.rank is not None:
        ranks.add(end.rank)
    return sorted(ranks)


def _context(log: Log, line: Line) -> list[str]:
    """The last bar or marker before `line`: what the run was doing."""
    before = [e for e in log.events if e.line.source == line.source and e.line.number < line.number]
    return [quote(before[-1].line)] if before else []
