"""From lines to events, in one pass with cheap tests first: a long log is read at thousands of lines a second."""

import calendar
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from course_lib.doctor.autopsy.events import RANK_PREFIX, Event, Line, Log, Phase
from course_lib.doctor.autopsy.rows import Row, number, record_in, row_in
from course_lib.doctor.autopsy.sources import Remains, Source

STAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
US_STAMP = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)")
BAR = re.compile(
    r"(?P<done>\d[\d,]*)/(?P<total>\d[\d,]*) *"
    r"\[(?P<elapsed>[\d:]+)<(?P<left>[\d:]+|\?)(?:, *(?P<rate>[\d.]+|\?) *(?P<unit>[\w/]+))?"
)
NOTEBOOK_BAR = re.compile(
    r"\[ *(?P<done>\d+)/(?P<total>\d+) (?P<elapsed>[\d:]+) < (?P<left>[\d:]+|\?), (?P<rate>[\d.]+|\?) (?P<unit>it/s)"
)
"""HF's bar in a notebook: '[ 501/1500 06:35 < 13:11, 1.26 it/s, Epoch 1/3]'."""
BAR_LABEL = re.compile(r"([^|\[\]]{0,60}?)(?:\d+%\|[^|]*\|)?\s*$")
"""What stands before the numbers: 'Loading weights:  37%|███▋      | '."""
BAR_KINDS: tuple[tuple[str, re.Pattern], ...] = (
    ("load", re.compile(r"checkpoint shards|loading|weights|fetching|materializ|partitioning", re.I)),
    ("eval", re.compile(r"eval|predict|generat|valid|test", re.I)),
    ("save", re.compile(r"saving|writing|consolidat", re.I)),
    ("data", re.compile(r"map|filter|tokeniz|download|process|split|sanity|upload|hash|pack|encod|\w\.\w{2,}", re.I)),
)
MARKERS: tuple[tuple[Phase, re.Pattern], ...] = (
    ("eval", re.compile(r"\*{3,} ?Running (?:Evaluation|Prediction)|(?:running|starting|start|begin\w*) eval", re.I)),
    (
        "save",
        re.compile(
            r"saving (?:\w+ ){0,3}?(?:model|adapter|checkpoint|weights|state)|\[Torch\] Saving|"
            r"(?:model weights|checkpoint|configuration) saved|consolidating",
            re.I,
        ),
    ),
    ("train", re.compile(r"\*{3,} ?Running training|(?:start|begin)\w* training|training (?:has )?start", re.I)),
    (
        "init",
        re.compile(
            r"deepspeed\.initialize|initializ\w+ (?:deepspeed|engine|optimizer)|optimizer states|"
            r"before creating|creating (?:torch\.\w+|fp16|bf16) ZeRO|ZeRO stage \d optimizer|"
            r"Time to load \w+ op|Building extension module",
            re.I,
        ),
    ),
    ("load", re.compile(r"loading (?:\w+ ){0,3}?(?:model|weights|checkpoint)|from_pretrained|loading adapter", re.I)),
)
RESUME = re.compile(
    r"resum\w* (?:\w+ ){0,3}?from\b.*?(?:checkpoint|step|global_step)[-_ /=:]*(\d+)|"
    r"continuing training from global step (\d+)",
    re.I,
)
TOTAL = re.compile(r"Total optimization steps = ([\d,]+)|max_steps['\"]?\s*[:=]\s*(\d+)", re.I)
MARKER_WORDS = re.compile(
    r"eval|sav|train|initializ|optimizer|creating|op\b|building|load|from_pretrained|resum|total|max_steps|consolidat",
    re.I,
)
NOTABLE = re.compile(
    r"error|exception|traceback|killed|kill|exit|signal|out of memory|timed? ?out|watchdog|no space|bus error|"
    r"segmentation|abort|-100|label|early stop|nan|corrupt|deserializ|not a single sample|num_samples|global_step/|"
    r"shared memory|/dev/shm|reset by peer|closed by peer|mismatch|file \"|\.py:\d+ in |return code|sigterm|"
    r"sigkill|oom|interrupt|cannot allocate|can't allocate|overflow|loss scale|unexpected eof|torch\.size\(\[0\]\)|"
    r"ranks? \d|invalid load key|failed|quota|response key|preempt|time limit|cancelled|stall|supervised|"
    r"virtual memory|disk is full|ended by sig|straggler|slowest|slow rank|lagging|header|missing|low on memory|capac",
    re.IGNORECASE,
)


def read_events(remains: Remains, settings: dict[str, Any] | None = None) -> Log:
    """All events of all sources; explicit `settings` win over a run folder's settings.json and trainer_state."""
    log = Log(damaged_files=remains.damaged_files, states=remains.states, sources=remains.sources)
    for state in remains.states:
        _read_state(log, state)
    log.settings = _normal({**log.settings, **remains.settings, **(settings or {})})
    log.total_steps = _whole(log.settings.get("max_steps")) or log.total_steps
    for source in remains.sources:
        _Reader(log, source).read()
    given = _whole(log.settings.get("resumed_from"))
    log.resumed_from = given if given is not None else log.resumed_from
    return log


def _normal(settings: dict[str, Any]) -> dict[str, Any]:
    """Numbers as numbers; HF's save_steps and eval_steps below 1 are shares of max_steps, rounded up."""
    names = ("max_steps", "resumed_from", "save_steps", "eval_steps", "early_stopping_patience")
    normal = {**settings, **{name: number(settings[name]) for name in names if name in settings}}
    total = normal.get("max_steps")
    for name in ("save_steps", "eval_steps"):
        share = normal.get(name)
        if share and total and 0 < share < 1:
            normal[name] = math.ceil(share * total)
    return normal


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _read_state(log: Log, state: dict[str, Any]) -> None:
    """HF's trainer_state.json: rows with steps and no times, and the settings that the Trainer knew."""
    for name in ("max_steps", "save_steps", "eval_steps", "best_metric"):
        if state.get(name) is not None:
            log.settings.setdefault(name, state[name])
    for name, callback in (state.get("stateful_callbacks") or {}).items():
        args = callback.get("args") if isinstance(callback, dict) else None
        if "EarlyStopping" in name and isinstance(args, dict) and "early_stopping_patience" in args:
            log.settings.setdefault("early_stopping_patience", args["early_stopping_patience"])
            log.settings["best_metric_never_set"] = state.get("best_metric") is None
    for position, record in enumerate(state.get("log_history") or [], start=1):
        row = row_in(record) if isinstance(record, dict) else None
        if row:
            text = str(record)[:300]
            line = Line(source="trainer_state.json", number=position, rank=None, text=text, quoted=text)
            log.events.append(_event_of(row, line))


def _event_of(row: Row, line: Line, *, step: int | None = None, wall_seconds: float | None = None) -> Event:
    seconds, clock = (row.seconds, "row") if row.seconds is not None else (wall_seconds, "wall")
    return Event(
        kind=row.kind,
        line=line,
        step=row.step if row.step is not None else step,
        seconds=seconds,
        clock=clock if seconds is not None else "",
        values=row.values,
        total=row.total,
    )


class _Reader:
    """Reads one source; remembers the bar's last step for rows that do not say theirs."""

    def __init__(self, log: Log, source: Source) -> None:
        self.log, self.source = log, source
        self.step: int | None = None
        self.bar_total: int | None = None
        self.wall: float | None = None
        self.waiting: list[int] = []
        """Indices of the last rows without a step, until a bar close below says it."""

    def read(self) -> None:
        line = None
        for position, quoted in enumerate(self.source.lines, start=1):
            text, rank = quoted, self.source.rank
            prefix = RANK_PREFIX.match(quoted)
            if prefix:
                rank, text = int(prefix[1] or prefix[2] or prefix[3]), quoted[prefix.end() :]
            if rank is not None:
                self.log.ranks.add(rank)
            line = Line(source=self.source.name, number=position, rank=rank, text=text, quoted=quoted.strip())
            wall = _wall_seconds(text)
            self.wall = self.wall if wall is None else wall
            for event in self._events(line):
                self._place(event)
            if NOTABLE.search(text):
                self.log.notable.append(line)
        if line:
            self.log.last_lines[self.source.name] = line

    def _place(self, event: Event) -> None:
        """Keep `event`; tqdm writes a row and redraws its bar below it, so that bar says the row's step."""
        events = self.log.events
        if event.kind == "bar" and event.phase == "train":
            for index in self.waiting:
                row = events[index]
                # The step after the bar above is a new step; anything further means that the bar above was stale.
                is_redrawn = row.step is None or event.step > row.step + 1
                if is_redrawn and event.line.number - row.line.number <= 3:
                    events[index] = replace(row, step=event.step)
            self.waiting = []
        elif event.kind in ("train", "eval") and "step" not in event.values and event.line.rank is None:
            self.waiting.append(len(events))
        events.append(event)

    def _events(self, line: Line) -> Iterator[Event]:
        text = line.text
        if "<" in text and "[" in text and "/" in text:
            bar = BAR.search(text) or NOTEBOOK_BAR.search(text)
            if bar:
                event = self._bar(line, bar)
                if event:
                    yield event
        if '"phase"' in text:
            ended = _ended_phase(line)
            if ended:
                yield ended
                return
        row = row_in(text)
        if row:
            if row.total:
                self.log.total_steps = self.log.total_steps or row.total
            # Unless a bar close below says otherwise (_place), the row belongs to the bar above it.
            step = self.step if row.step is None and row.kind != "summary" else None
            yield _event_of(row, line, step=step, wall_seconds=self.wall)
            if row.step is not None and row.kind == "train":
                self.step = row.step
            return
        if MARKER_WORDS.search(text):
            yield from self._markers(line)

    def _markers(self, line: Line) -> Iterator[Event]:
        resume = RESUME.search(line.text)
        if resume:
            self.log.resumed_from = int(resume[1] or resume[2])
        total = TOTAL.search(line.text)
        if total and not self.log.total_steps:
            self.log.total_steps = int((total[1] or total[2]).replace(",", "")) or None
        for phase, pattern in MARKERS:
            if pattern.search(line.text):
                yield Event(
                    kind="marker",
                    line=line,
                    phase=phase,
                    step=self.step,
                    seconds=self.wall,
                    clock="wall",
                    values={"resume": True} if resume else {},
                )
                return
        if resume:
            yield Event(kind="marker", line=line, phase="load", step=self.step, values={"resume": True})

    def _bar(self, line: Line, bar: re.Match) -> Event | None:
        done, total = (int(bar[name].replace(",", "")) for name in ("done", "total"))
        phase = self._bar_phase(bar, done, total)
        if phase is None:
            return None
        epoch = re.search(r"epoch\D{0,3}(\d+)", _label(bar), re.I)
        if phase == "train":
            if epoch:
                # Lightning and hand-written loops draw one bar per epoch.
                done, total = done + int(epoch[1]) * total, None
            self.bar_total = self.bar_total or total
            self.step = done
            self.log.total_steps = self.log.total_steps or total
        rate = bar["rate"] if bar["rate"] not in (None, "?") else None
        per_step = None if rate is None or not float(rate) else float(rate)
        if per_step and bar["unit"] and bar["unit"].endswith("/s"):
            per_step = 1 / per_step
        return Event(
            kind="bar",
            line=line,
            step=done if phase == "train" else None,
            seconds=clock_seconds(bar["elapsed"]),
            clock="bar",
            phase=phase,
            total=total,
            values={"done": done, "per_step": per_step},
        )

    def _bar_phase(self, bar: re.Match, done: int, total: int) -> Phase | None:
        label, unit = _label(bar), (bar["unit"] or "it/s").lower()
        for phase, pattern in BAR_KINDS:
            if label and pattern.search(label):
                return None if phase == "data" else phase
        if "/" not in unit or not re.search(r"it|step|batch", unit):
            return None
        known = self.log.total_steps or self.bar_total
        if known is None or total == known or "epoch" in label.lower() or "train" in label.lower():
            return "train"
        # HF's evaluation bar has no label; what tells it is a total of its own.
        return "eval"


def _label(bar: re.Match) -> str:
    before = bar.string[max(0, bar.start() - 300) : bar.start()]
    match = BAR_LABEL.search(before)
    return match[1].strip().rstrip(":") if match else ""


def _wall_seconds(text: str) -> float | None:
    """Seconds since 1970 of a line's leading date and time ('2026-11-29 10:31:07,113', '11/29/2026 10:31:07')."""
    stamp = STAMP.search(text, 0, 60)
    if stamp:
        year, month, day = int(stamp[1]), int(stamp[2]), int(stamp[3])
        clock, fraction = stamp.groups()[3:6], float(f"0.{stamp[7]}") if stamp[7] else 0.0
    else:
        stamp = US_STAMP.search(text, 0, 60)
        if not stamp:
            return None
        month, day, year = int(stamp[1]), int(stamp[2]), int(stamp[3])
        clock, fraction = stamp.groups()[3:6], 0.0
    return calendar.timegm((year, month, day, *map(int, clock))) + fraction


AFTER = {"load": "init", "init": "train", "forward": "train", "backward": "train", "step": "train", "save": "train"}
"""Our ranks write a row when a phase has ended (train/journal.py): what the rank did next."""


def _ended_phase(line: Line) -> Event | None:
    record = record_in(line.text)
    words = str((record or {}).get("phase", "")).split()
    if not record or not words or words[0] not in AFTER or not isinstance(record.get("step"), int):
        return None
    return Event(kind="marker", line=line, phase=AFTER[words[0]], step=record["step"], values=record)


def clock_seconds(text: str) -> float:
    """'1:02:03' or '02:03' as tqdm writes elapsed time, in seconds."""
    seconds = 0
    for part in text.split(":"):
        seconds = seconds * 60 + int(part or 0)
    return float(seconds)
