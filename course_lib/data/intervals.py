"""Intervals in seconds as the text a model answers with, and back.

The text is "1.5-3.0, 5.0-7.5" (one decimal, seconds within the window), or "none".
Not here: cutting clips into windows (windows.py) and scores (course_lib.evaluate.grounding).
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Interval = tuple[float, float]
"""(start, end) in seconds, start < end."""
AnswerStatus = Literal["ok", "unparseable", "repeated", "truncated"]

NO_EVENT = "none"
DECIMAL_SECONDS = 0.1
"""The smallest step the text can say."""

_NUMBER = r"\d+(?:\.\d+)?"
_PAIR = re.compile(rf"\s*({_NUMBER})\s*-\s*({_NUMBER})(?![\d.])")
_COMMA = re.compile(r"\s*,")
_CUT_PAIR = re.compile(r"\s*(?:\d+(?:\.\d*)?(?:\s*-\s*(?:\d+\.?)?)?)?\s*")
"""What is left when a pair breaks off anywhere: '', '1', '1.', '1.5', '1.5-', '1.5-3', '1.5-3.'."""
_LOOP = re.compile(r"(\S.{0,59}?)\1{2,}", re.DOTALL)
"""Something said three times in a row."""
_LOOP_SEARCH_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedAnswer:
    """What an answer says, and whether a cutter could use it.

    `intervals` is what could be read (sorted, overlaps merged, within the window); it is the answer only when
    `status` is "ok": an answer that broke off or looped says less or more than the model meant.
    """

    intervals: tuple[Interval, ...]
    status: AnswerStatus


def merge_intervals(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same seconds as sorted intervals that neither overlap nor touch.

    Raises ValueError for an interval that is not finite or does not end after it starts.
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if not (math.isfinite(start) and math.isfinite(end) and start < end):
            raise ValueError(f"an interval must end after it starts, got ({start}, {end})")
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def format_intervals(intervals: Iterable[Interval]) -> str:
    """Intervals as answer text: sorted, merged, rounded half up to 0.1 s; "none" for no interval.

    An interval that would round to nothing is written as 0.1 s, so that no event is lost in the text.
    Raises ValueError for an interval that starts before 0 or does not end after it starts.
    """
    tenths = []
    for start, end in merge_intervals(intervals):
        if start < 0:
            raise ValueError(f"an interval must not start before the window does, got ({start}, {end})")
        first = _tenths(start)
        tenths.append((first, max(_tenths(end), first + 1)))
    # Merged again: two intervals can touch once they are rounded.
    return ", ".join(f"{a / 10:.1f}-{b / 10:.1f}" for a, b in merge_intervals(tenths)) or NO_EVENT


def parse_intervals(text: str, limit_seconds: float, *, ended: bool = True) -> ParsedAnswer:
    """Read an answer.

    Args:
        text: what the model said, special tokens removed. limit_seconds: length of the window.
        ended: False when generation stopped at its token limit and not at the end-of-sequence token.

    Returns: status "ok" when the whole text is a list of intervals that each end after they start and lie in the
    window (what reaches beyond its end is clipped), or is "none"; "repeated" when an interval is said twice or the
    text loops (the same characters three times in a row); "truncated" when it did not end by itself, or breaks off
    in the middle of a pair; "unparseable" for everything else.
    """
    text = text.strip()
    if not text:
        return ParsedAnswer(intervals=(), status="unparseable" if ended else "truncated")
    if text.lower() == NO_EVENT:
        return ParsedAnswer(intervals=(), status="ok" if ended else "truncated")
    pairs, rest = _read_pairs(text)
    inside = [_within(pair, limit_seconds) for pair in pairs]
    intervals = merge_intervals(interval for interval in inside if interval)
    return ParsedAnswer(intervals=intervals, status=_status(text, pairs, rest, None not in inside, ended))


def _status(text: str, pairs: list[Interval], rest: str | None, all_inside: bool, ended: bool) -> AnswerStatus:
    complete = rest is None and not _breaks_off_in_a_number(text)
    if len(set(pairs)) < len(pairs) or (rest and _LOOP.search(text[-_LOOP_SEARCH_CHARACTERS:])):
        return "repeated"
    if not ended or (rest is None and not complete) or (rest is not None and _can_go_on(rest, bool(pairs))):
        return "truncated"
    return "ok" if complete and all_inside else "unparseable"


def _read_pairs(text: str) -> tuple[list[Interval], str | None]:
    """The pairs at the start of `text`, and what follows them: None when nothing does, '' after a last comma."""
    pairs: list[Interval] = []
    position = 0
    while match := _PAIR.match(text, position):
        pairs.append((float(match[1]), float(match[2])))
        position = match.end()
        if position == len(text):
            return pairs, None
        comma = _COMMA.match(text, position)
        if not comma:
            break
        position = comma.end()
    return pairs, text[position:]


def _can_go_on(rest: str, after_pairs: bool) -> bool:
    """Whether more characters could still make an answer of it: '5.' or '5.0-' or, as the first word, 'no'."""
    # 'none' is an answer only by itself.
    return bool(_CUT_PAIR.fullmatch(rest)) or (not after_pairs and NO_EVENT.startswith(rest.lower()))


def _breaks_off_in_a_number(text: str) -> bool:
    """True for '1.5-3': every number but the last has a decimal, so the last one was cut."""
    numbers = re.findall(_NUMBER, text)
    return len(numbers) > 1 and all("." in number for number in numbers[:-1]) and "." not in numbers[-1]


def _within(pair: Interval, limit_seconds: float) -> Interval | None:
    """The part of a pair inside the window; None when there is none or the pair does not end after it starts."""
    start, end = pair[0], min(pair[1], limit_seconds)
    return (start, end) if start < end else None


def _tenths(seconds: float) -> int:
    # Half up, not Python's half to even: 0.25 and 0.35 must both move up, or equal lengths would come out unequal.
    return math.floor(seconds * 10 + 0.5 + 1e-9)
