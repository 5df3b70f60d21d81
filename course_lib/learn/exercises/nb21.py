"""Notebook 21: events counted from the window, labels on the answer alone, and who gets which sample.

The dealing is that of accelerate 1.15 (`BatchSampler`, then `BatchSamplerShard`), which HF Trainer uses;
course_lib.data.coverage does it for whole epochs.
"""

from course_lib.learn.exercise import Exercise, Help, Lesson, Misconception


def rebase(events, start, length):
    """Parts of `events` inside [start, start + length), counted from the window's start."""
    inside = []
    for begin, end in events:
        begin, end = max(begin - start, 0), min(end - start, length)
        if begin < end:
            inside.append((begin, end))
    return inside


def labels_of(ids, attention, prompt_tokens):
    """Labels of one padded sample: the token where the answer stands, -100 on the prompt and on padding."""
    labels = []
    for place, token in enumerate(ids):
        graded = place >= prompt_tokens and attention[place] == 1
        labels.append(token if graded else -100)
    return labels


def samples_of(rank, step, ranks, batch_size):
    """Positions in the epoch's order that `rank` gets in `step`, both counted from 0."""
    first = (step * ranks + rank) * batch_size
    return list(range(first, first + batch_size))


def _reaching_in(events, start, length):
    return [(begin, end) for begin, end in events if end > start and begin < start + length]


REBASE = Exercise(
    name="rebase",
    task="Write rebase(events, start, length): the parts of the events inside the window, in the window's own seconds.",
    difficulty=2,
    minutes=4,
    solution=rebase,
    why=(
        "The model sees the window's first frame as second 0, so the start is subtracted from both ends. What reaches "
        "over an edge is cut at 0 or at the window's length: the model cannot know what lies beyond. An event with no "
        "second inside leaves nothing: its begin is not before its end any more."
    ),
    cases=(
        {"events": [(9, 12)], "start": 8, "length": 8},
        {"events": [(24, 25), (31, 35)], "start": 24, "length": 8},
        {"events": [(20, 27)], "start": 24, "length": 8},
        {"events": [(1, 3), (40, 43)], "start": 24, "length": 8},
        {"events": [(22, 40)], "start": 24, "length": 8},
        {"events": [(16, 24), (26, 27.5), (32, 35)], "start": 24, "length": 8},
    ),
    misconceptions=(
        Misconception(
            formula=lambda events, start, length: _reaching_in(events, start, length),
            says="Those are seconds of the film. The model sees second {start} of the film as second 0.",
        ),
        Misconception(
            formula=lambda events, start, length: [
                (max(begin, start), min(end, start + length)) for begin, end in _reaching_in(events, start, length)
            ],
            says="You cut at the edges, but you still count from the film's start. Subtract {start}.",
        ),
        Misconception(
            formula=lambda events, start, length: [
                (begin - start, end - start) for begin, end in _reaching_in(events, start, length)
            ],
            says="You moved the events and did not cut them: a window of {length} s has no seconds before 0 or after "
            "{length}.",
        ),
        Misconception(
            formula=lambda events, start, length: [
                (begin - start, min(end - start, length)) for begin, end in _reaching_in(events, start, length)
            ],
            says="You cut the ends and not the begins: an event that is running when the window opens begins at 0.",
        ),
        Misconception(
            formula=lambda events, start, length: [
                (max(begin - start, 0), end - start) for begin, end in _reaching_in(events, start, length)
            ],
            says="You cut the begins and not the ends: nothing in a window of {length} s ends after {length}.",
        ),
        Misconception(
            formula=lambda events, start, length: [
                (begin - start, end - start) for begin, end in events if begin >= start and end <= start + length
            ],
            says="You left out events that reach over an edge. Their part inside the window can be seen, so it belongs "
            "into the answer.",
        ),
        Misconception(
            formula=lambda events, start, length: [
                (max(begin - start, 0), min(end - start, length)) for begin, end in events
            ],
            says="You kept events with no second inside the window: once cut, they begin after they end.",
        ),
        Misconception(
            formula=lambda events, start, length: [
                (max(begin - start, 0), min(end - start, length))
                for begin, end in events
                if end >= start and begin <= start + length
            ],
            says="An event that only touches the edge has no second inside: begin < end, not begin <= end.",
        ),
    ),
    hints=(
        "Three things, in this order: subtract the start from both ends, cut at 0 and at length, drop what is empty.",
        "begin, end = max(begin - start, 0), min(end - start, length). The stub's `if` drops what is empty.",
    ),
    helps=(
        Help(
            error="TypeError: cannot unpack non-iterable ellipsis object",
            remedy="The line `begin, end = ...` still has the three dots: it needs two values, with a comma between.",
            produced_by=eval("lambda events, start, length: [begin for begin, end in [...]]"),
        ),
    ),
)

_ROW = {"ids": [11, 12, 13, 14, 21, 22, 2], "attention": [1, 1, 1, 1, 1, 1, 1], "prompt_tokens": 4}
_PADDED = {"ids": [11, 12, 13, 21, 2, 0, 0], "attention": [1, 1, 1, 1, 1, 0, 0], "prompt_tokens": 3}
_SAME_TOKEN = {"ids": [11, 12, 21, 22, 2, 2, 2], "attention": [1, 1, 1, 1, 1, 0, 0], "prompt_tokens": 2}

LABELS_OF = Exercise(
    name="labels_of",
    task="Write labels_of(ids, attention, prompt_tokens): the token where it is graded, -100 everywhere else.",
    difficulty=2,
    minutes=4,
    solution=labels_of,
    why=(
        "Graded is what the model has to say: everything after the prompt that is no padding, the end token included. "
        "Padding is told by its place (attention 0) and not by its value, because in many models the padding token and "
        "the end token are the same. Nothing is shifted: the model compares position p with label p + 1 itself."
    ),
    cases=(_ROW, _PADDED, _SAME_TOKEN, {"ids": [11, 12, 2], "attention": [1, 1, 1], "prompt_tokens": 2}),
    misconceptions=(
        Misconception(
            formula=lambda ids, attention, prompt_tokens: list(ids),
            says="You graded every token: the model would be trained to write the question too.",
        ),
        Misconception(
            formula=lambda ids, attention, prompt_tokens: [-100] * prompt_tokens + ids[prompt_tokens:],
            says="You graded the padding: the model would be trained to go on after the end.",
        ),
        Misconception(
            formula=lambda ids, attention, prompt_tokens: [t if a else -100 for t, a in zip(ids, attention)],  # noqa: B905
            says="You masked the padding and left the prompt: its first {prompt_tokens} tokens are the question.",
        ),
        Misconception(
            formula=lambda ids, attention, prompt_tokens: [
                -100 if place < prompt_tokens or (0 in attention and token == ids[-1]) else token
                for place, token in enumerate(ids)
            ],
            says="You masked by value. Where padding and end are the same token, that hides the end of the answer, and "
            "the model never learns to stop.",
        ),
        Misconception(
            formula=lambda ids, attention, prompt_tokens: ids[:prompt_tokens] + [-100] * (len(ids) - prompt_tokens),
            says="It is the other way round: the prompt gets -100, the answer keeps its tokens.",
        ),
        Misconception(
            formula=lambda ids, attention, prompt_tokens: [*labels_of(ids, attention, prompt_tokens)[1:], -100],
            says="You shifted the labels by one. The model does that itself; now every answer is one token early.",
        ),
        Misconception(
            formula=lambda ids, attention, prompt_tokens: [
                -100 if label == 2 else label for label in labels_of(ids, attention, prompt_tokens)
            ],
            says="The token that ends the answer belongs to it: without it the model never learns to stop.",
        ),
    ),
    hints=(
        "A token is graded if two things hold: it stands behind the prompt, and attention says that it is no padding.",
        "graded = place >= prompt_tokens and attention[place] == 1",
    ),
    helps=(
        Help(
            error="IndexError: list index out of range",
            remedy="You look one place ahead, as in ids[place + 1]. A label stands at the place of its own token.",
            produced_by=lambda ids, attention, prompt_tokens: [ids[place + 1] for place in range(len(ids))],
        ),
    ),
)

SAMPLES_OF = Exercise(
    name="samples_of",
    task="Write samples_of(rank, step, ranks, batch_size): the samples that one rank gets in one step of HF Trainer.",
    difficulty=2,
    minutes=3,
    solution=samples_of,
    why=(
        "A step uses ranks × batch_size samples, so `step` steps have used step × ranks × batch_size before it. Within "
        "the step, rank 0 takes the first batch_size, rank 1 the next. Together: (step × ranks + rank) × batch_size."
    ),
    cases=(
        {"rank": 0, "step": 0, "ranks": 2, "batch_size": 2},
        {"rank": 1, "step": 0, "ranks": 2, "batch_size": 2},
        {"rank": 0, "step": 1, "ranks": 2, "batch_size": 2},
        {"rank": 3, "step": 2, "ranks": 4, "batch_size": 1},
        {"rank": 1, "step": 3, "ranks": 3, "batch_size": 4},
    ),
    misconceptions=(
        Misconception(
            formula=lambda rank, step, ranks, batch_size: [step * batch_size + n for n in range(batch_size)],
            says="You gave every rank the same samples. Then {ranks} ranks learn what one would.",
        ),
        Misconception(
            formula=lambda rank, step, ranks, batch_size: [
                rank + ranks * (step * batch_size + n) for n in range(batch_size)
            ],
            says="That is how torch's DistributedSampler deals: one sample to each rank in turn. HF Trainer fills "
            "whole batches first and deals those.",
        ),
        Misconception(
            formula=lambda rank, step, ranks, batch_size: [(step + rank) * batch_size + n for n in range(batch_size)],
            says="A step uses {ranks} batches, not one: after step 0, {ranks} × {batch_size} samples are gone.",
        ),
        Misconception(
            formula=lambda rank, step, ranks, batch_size: [step * ranks + rank + n for n in range(batch_size)],
            says="You counted batches where samples are asked for: each of them has {batch_size}.",
        ),
        Misconception(
            formula=lambda rank, step, ranks, batch_size: (step * ranks + rank) * batch_size,
            says="That is the first of them. A batch is a list of {batch_size}.",
        ),
    ),
    hints=(
        "How many samples have been used before this step? How many of this step go to lower ranks?",
        "Both are whole batches: step * ranks of them, and rank of them. first = (step * ranks + rank) * batch_size.",
    ),
    helps=(
        Help(
            error="TypeError: unsupported operand type(s) for +: 'ellipsis' and 'int'",
            remedy="`first` is still the three dots: the first sample of this rank in this step.",
            produced_by=lambda rank, step, ranks, batch_size: list(range(0, ... + batch_size)),
        ),
    ),
)

LESSON = Lesson(
    number="21",
    title="Data that teaches",
    predictions=("event_end_seconds", "graded_tokens", "graded_after_cut", "steps_10_samples", "steps_1_sample"),
    exercises=(REBASE, LABELS_OF, SAMPLES_OF),
)
