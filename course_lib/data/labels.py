"""Is the answer trained on, all of it and nothing else? Checks of one built sample, whoever built it.

They read ids, labels and masks as the model gets them, with the tokenizer that made them; no template is rendered a
second time. Not here: cutting what is too long (truncation.py), whole data sets (audit.py).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.models.supervised_loss import IGNORED

CODES = {
    "length_mismatch": "Ids, labels and masks have different lengths.",
    "over_length": "The sample has more tokens than the limit.",
    "all_ignored": "Every label is -100: nothing is learnt from this sample.",
    "assistant_mask_empty": "The template marks no assistant token (it has no generation block).",
    "labels_equal_inputs": "Every token is trained on, the question included.",
    "labels_differ_from_ids": "A label is another token than the one that stands at its position.",
    "answer_missing": "The answer does not stand at the end of the sample.",
    "answer_truncated": "The sample breaks off within its answer.",
    "answer_not_supervised": "Part of the answer has the label -100.",
    "eos_missing": "No token ends the answer, so a model would learn never to stop.",
    "eos_not_supervised": "The token that ends the answer has the label -100.",
    "pad_hides_eos": "Padding and the end of the answer are the same token, and it was masked with the padding.",
    "visual_supervised": "Placeholders of pictures, video or sound are trained on.",
    "prompt_supervised": "Tokens of the user's turn or of the template are trained on.",
    "tail_supervised": "Tokens after the end of the answer are trained on.",
    "padding_supervised": "Padding is trained on.",
    "timestamps_missing": "Steps of the video have no time in the text.",
    "timestamps_wrong": "The text gives steps of the video other times than their frames have.",
}
"""Every code a finding can have, and what it means."""

_TIMES = (re.compile(r"<(\d+(?:\.\d+)?) seconds?>"), re.compile(r"Second(\d+)"), re.compile(r"(\d+(?::\d\d)+)"))
"""How families write the time of a step: Qwen3-VL and GLM-4V, LongCat, SmolVLM2 and Gemma 4 (a clock)."""
_ROUNDING_SECONDS = 0.002
"""Times travel as whole milliseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelFinding:
    """One thing that is wrong with one sample."""

    code: str
    what: str
    where: str
    fix: str

    def line(self) -> str:
        return f"{self.where}: {self.what}. {self.fix}"

    def as_record(self) -> dict[str, str]:
        """The stable JSON form."""
        return {name: getattr(self, name) for name in ("code", "what", "where", "fix")}


def check_labels(
    input_ids: Iterable[int],
    labels: Iterable[int],
    tokenizer: Any,
    *,
    answer: str | None = None,
    attention_mask: Iterable[int] | None = None,
    assistant_mask: Iterable[int] | None = None,
    visual_token_ids: Iterable[int] = (),
    step_seconds: Sequence[float] | None = None,
    max_tokens: int | None = None,
    where: str = "sample",
) -> tuple[LabelFinding, ...]:
    """Check one row of a batch (S,), padded on either side or not. Tensors, arrays and lists are all fine.

    Args:
        answer: text that must be learnt, the last turn, without the token that ends it; None checks the rest only.
        assistant_mask: what `return_assistant_tokens_mask` gave, when the labels were made from it.
        visual_token_ids: placeholders of pictures, video and sound (`placeholder_ids`).
        step_seconds: time of each grid step, for templates that write it before the step; None: they do not.
        max_tokens: limit of the sample's length. where: names the sample in findings.

    Returns: the findings, none for a sample that is right.
    """
    lists = {"labels": _ints(labels), "attention_mask": _ints(attention_mask), "assistant_mask": _ints(assistant_mask)}
    ids = _ints(input_ids)
    for name, values in lists.items():
        if values is not None and len(values) != len(ids):
            fix = "Build all of them from one list of tokens"
            return (_found("length_mismatch", f"{len(values)} {name} for {len(ids)} input_ids", where, fix),)
    sample = _SampleCheck(ids, lists["labels"], tokenizer, lists["attention_mask"], frozenset(visual_token_ids), where)
    return sample.run(answer, lists["assistant_mask"], step_seconds, max_tokens)


def placeholder_ids(processor: Any) -> frozenset[int]:
    """Ids of the placeholders that a processor puts where pictures, video and sound go."""
    names = ("video_token_id", "image_token_id", "audio_token_id")
    return frozenset(value for name in names if (value := getattr(processor, name, None)) is not None)


def written_seconds(text: str) -> tuple[float, float] | None:
    """The last time in a text between two steps, and the error that its rounding allows: "<1.3 seconds>" is
    (1.3, 0.05); None where there is no time."""
    for pattern in _TIMES:
        if found := pattern.findall(text):
            shown = found[-1]
            if ":" in shown:
                return float(sum(int(part) * 60**n for n, part in enumerate(reversed(shown.split(":"))))), 1.0
            decimals = len(shown.partition(".")[2])
            # Whole seconds are cut by some families and rounded by others.
            return float(shown), 0.5 * 10**-decimals if decimals else 1.0
    return None


class _SampleCheck:
    """One sample with what all checks ask of it: where its content, its answer and its labels stand."""

    def __init__(
        self,
        ids: list[int],
        labels: list[int],
        tokenizer: Any,
        mask: list[int] | None,
        visual: frozenset[int],
        where: str,
    ) -> None:
        self.ids, self.labels, self.tokenizer, self.visual, self.where = ids, labels, tokenizer, visual, where
        self.pad, self.eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.special = frozenset(tokenizer.all_special_ids) | {
            token for token, added in getattr(tokenizer, "added_tokens_decoder", {}).items() if added.special
        }
        self.first, self.end = self._content(mask)
        self.supervised = [place for place, label in enumerate(labels) if label != IGNORED]
        self.findings: list[LabelFinding] = []

    def _content(self, mask: list[int] | None) -> tuple[int, int]:
        """[first, end) of the sample without its padding."""
        if mask is not None:
            kept = [place for place, seen in enumerate(mask) if seen]
            return (kept[0], kept[-1] + 1) if kept else (0, 0)
        first, end = 0, len(self.ids)
        while first < end and self.ids[first] == self.pad:
            first += 1
        while end > first and self.ids[end - 1] == self.pad:
            end -= 1
        # Where the two are one token, the first one after the text is the end of the answer.
        return first, end + (self.pad == self.eos and end < len(self.ids))

    def say(self, code: str, what: str, fix: str) -> None:
        self.findings.append(_found(code, what, self.where, fix))

    def run(self, answer, assistant_mask, step_seconds, max_tokens) -> tuple[LabelFinding, ...]:
        length = self.end - self.first
        if max_tokens is not None and length > max_tokens:
            self.say("over_length", f"{length} tokens, {length - max_tokens} over the limit of {max_tokens}",
                     "Take fewer frames or a smaller cap, or cut whole steps (course_lib.data.truncation)")  # fmt: skip
        if step_seconds is not None:
            self.check_times(step_seconds)
        place = self.answer_place(answer.removesuffix(self.tokenizer.eos_token or "")) if answer is not None else None
        unmarked = assistant_mask is not None and not any(assistant_mask)
        if unmarked or not self.supervised:
            self.say_nothing_is_learnt(unmarked)
        elif self.every_token_is_learnt():
            self.say("labels_equal_inputs", f"all {len(self.supervised)} labels are set: the question is learnt too",
                     "Set the labels before the answer to -100")  # fmt: skip
        elif place is not None:
            self.check_answer(place)
        elif answer is None:
            self.check_ends()
        self.check_values()
        return tuple(self.findings)

    def say_nothing_is_learnt(self, unmarked: bool) -> None:
        if unmarked:
            self.say("assistant_mask_empty", "the assistant mask is all zero: the template has no generation block",
                     "Mark the answer by its position, or put {% generation %} around it in the template")  # fmt: skip
        else:
            self.say("all_ignored", f"all {len(self.labels)} labels are -100: a loss of 0 or nan that teaches nothing",
                     "Label the answer, or leave the sample out")  # fmt: skip

    def every_token_is_learnt(self) -> bool:
        """Whether no token of the content is masked; a model never predicts the first one, so that one may be."""
        content = self.labels[self.first + 1 : self.end]
        return len(content) > 1 and IGNORED not in content

    def answer_place(self, answer: str) -> range | None:
        """Where the answer stands: at the end of the content, followed by nothing but special tokens and space."""
        wanted = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        stop = self.end
        while stop > self.first:
            start = stop - len(wanted)
            if start >= self.first and self.ids[start:stop] == wanted and self.is_border(start, answer):
                return range(start, stop)
            if not self.is_blank(stop - 1):
                break
            stop -= 1
        if place := self.place_by_text(answer.strip(), stop):
            return place
        held = next((n for n in range(len(wanted) - 1, 0, -1) if self.ids[self.end - n : self.end] == wanted[:n]), 0)
        if held:
            self.say("answer_truncated", f"only {held} of the answer's {len(wanted)} tokens are left",
                     "Raise the length limit or take fewer frames; never cut from the end")  # fmt: skip
        else:
            self.say("answer_missing", f"the answer {_short(answer)} does not stand at the end; there stands "
                     f"{_short(self.text(range(max(stop - 8, self.first), stop)))}",
                     "Was it cut off, or is another answer expected?")  # fmt: skip
        return None

    def place_by_text(self, answer: str, stop: int) -> range | None:
        """The same by text: other tokens spell the answer when a space or a line break before it joins in."""
        for start in range(stop - 1, max(self.first, stop - len(answer.encode()) - 2) - 1, -1):
            text = self.text(range(start, stop)).strip()
            # The first token may hold the end of the prompt too: "\n\n1" or ":none".
            before = text[: -len(answer)]
            if text.endswith(answer) and (_parted(before, answer) if before else self.is_border(start, answer)):
                return range(start, stop)
        return None

    def is_border(self, start: int, answer: str) -> bool:
        """Whether an answer can begin here: "1.0" does not begin within "11.0"."""
        return start == 0 or self.ids[start - 1] in self.special or _parted(self.text([start - 1]), answer)

    def check_answer(self, place: range) -> None:
        masked = [position for position in place if self.labels[position] == IGNORED]
        if masked:
            self.say("answer_not_supervised", f"{len(masked)} of the answer's {len(place)} tokens have the label -100, "
                     f"first {_short(self.text(masked[:4]))}", "Label every token of the answer")  # fmt: skip
        end = place.stop
        while end < len(self.ids) and self.ids[end] not in self.special and self.is_blank(end):
            end += 1
        self.check_end(end)
        self.check_outside(set(place) | {end}, place.start, end)

    def check_end(self, end: int) -> None:
        """The token right after the answer must end the turn, and be learnt."""
        padded = end >= self.end and (self.pad != self.eos or end >= len(self.ids))
        if end >= len(self.ids) or self.ids[end] not in self.special or padded:
            self.say("eos_missing", "no token ends the answer", "Put the template's end-of-turn token after it")
        elif self.labels[end] == IGNORED and self.ids[end] == self.pad:
            self.say("pad_hides_eos", f"the end of the answer {_short(self.text([end]))} is the padding token too, and "
                     "its label is -100", "Take another pad token, or set labels by position")  # fmt: skip
        elif self.labels[end] == IGNORED:
            self.say("eos_not_supervised", f"the end of the answer {_short(self.text([end]))} has the label -100",
                     "Label it: without it a model never learns to stop")  # fmt: skip

    def check_outside(self, right: set[int], start: int, end: int) -> None:
        """Labels that stand anywhere but on the answer and its end."""
        wrong = [place for place in self.supervised if place not in right]
        kinds: dict[str, list[int]] = {}
        for place in wrong:
            kinds.setdefault(self.kind_of(place, start, end), []).append(place)
        for code, places in kinds.items():
            if code not in ("visual_supervised", "padding_supervised"):
                self.say(code, f"{len(places)} tokens outside the answer have a label, first "
                         f"{_short(self.text(places[:6]))}", "Set their labels to -100")  # fmt: skip

    def kind_of(self, place: int, start: int, end: int) -> str:
        if self.ids[place] in self.visual:
            return "visual_supervised"
        if not self.first <= place < self.end:
            return "padding_supervised"
        return "prompt_supervised" if place < start else "tail_supervised"

    def check_ends(self) -> None:
        """Without a known answer: each run of labels must end with a token that ends a turn."""
        for place in self.supervised:
            after = place + 1
            if place >= self.end or (after < len(self.ids) and self.labels[after] != IGNORED):
                continue
            if self.ids[place] not in self.special and not self.is_blank(place):
                self.check_end(after)

    def check_values(self) -> None:
        """What no label may be, wherever the answer stands."""
        other = [place for place in self.supervised if self.labels[place] != self.ids[place]]
        if other:
            self.say("labels_differ_from_ids", f"{len(other)} labels are other tokens than the input has there",
                     "Labels are input_ids or -100; the model shifts them itself")  # fmt: skip
        visual = [place for place in self.supervised if self.ids[place] in self.visual]
        if visual and not self.every_token_is_learnt():
            self.say("visual_supervised", f"{len(visual)} placeholders of pictures, video or sound have a label",
                     "Set their labels to -100")  # fmt: skip
        padding = [place for place in self.supervised if not self.first <= place < self.end]
        # The end of an answer that the mask hides is told apart from padding by its place.
        if self.pad == self.eos:
            padding = [place for place in padding if place != self.end]
        if padding:
            self.say("padding_supervised", f"{len(padding)} padding tokens have a label", "Set their labels to -100")

    def check_times(self, step_seconds: Sequence[float]) -> None:
        texts = self.texts_before_runs()
        shown = [written_seconds(text) for text in texts]
        if len(texts) != len(step_seconds) or None in shown:
            held = sum(time is not None for time in shown)
            self.say("timestamps_missing", f"{held} times in the text for {len(step_seconds)} steps of the video",
                     "Pass video_metadata with the frames' times to the processor")  # fmt: skip
            return
        errors = [time[0] - real for time, real in zip(shown, step_seconds, strict=True)]
        wrong = [n for n, error in enumerate(errors) if abs(error) > shown[n][1] + _ROUNDING_SECONDS]
        if not wrong:
            return
        n = wrong[0]
        what = f"step {n} says {shown[n][0]:g} s, its frames are at {step_seconds[n]:.2f} s"
        if len(wrong) == len(errors) > 1 and max(errors) - min(errors) <= 4 * shown[n][1] + _ROUNDING_SECONDS:
            what = f"all {len(errors)} times are off by about {sum(errors) / len(errors):+.1f} s ({what})"
        elif len(wrong) > 1:
            what += f", and {len(wrong) - 1} more"
        self.say("timestamps_wrong", what, "Pass the frames' own times, counted from where the answer counts from")

    def texts_before_runs(self) -> list[str]:
        """The text that stands before each run of placeholders, from the end of the run before it."""
        texts, begin, place = [], self.first, self.first
        while place < self.end:
            if self.ids[place] not in self.visual:
                place += 1
                continue
            texts.append(
                self.text(position for position in range(begin, place) if self.ids[position] not in self.special)
            )
            while place < self.end and self.ids[place] in self.visual:
                place += 1
            begin = place
        return texts

    def is_blank(self, place: int) -> bool:
        return self.ids[place] in self.special or not self.text([place]).strip()

    def text(self, places: Iterable[int]) -> str:
        tokens = [self.ids[place] for place in places]
        return self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _parted(before: str, answer: str) -> bool:
    """False where `answer` would begin within a number or a word; scripts without spaces have no such border."""
    return not re.search(r"[\d.]\d$|[A-Za-z]{2}$", before[-1:] + answer[:1])


def _found(code: str, what: str, where: str, fix: str) -> LabelFinding:
    assert CODES[code]
    return LabelFinding(code=code, what=what, where=where, fix=fix)


def _ints(values: Iterable[int] | None) -> list[int] | None:
    if values is None:
        return None
    return [int(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]


def _short(text: str, most: int = 40) -> str:
    return repr(text if len(text) <= most else text[: most - 1] + "…")
