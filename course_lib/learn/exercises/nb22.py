"""Notebook 22: does it learn from the pixels? IoU, the constant answer, and controls that take the pixels away.

The bounds are those that examples/video_text is held to (course_lib.evaluate.grounding).
"""

from course_lib.learn.exercise import Exercise, Help, Lesson, Misconception


def temporal_iou(truth, answer):
    """Seconds in both sets of intervals over seconds in either; 1 when both are empty."""
    both = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in truth for b in answer)
    either = sum(end - start for start, end in truth + answer) - both
    return both / either if either else 1.0


def looked_at_pixels(iou):
    """True when the adapted model beats the constant by 0.30 and loses that lead without the right pixels."""
    lead = iou["after"] - iou["best_constant"] >= 0.30
    ceiling = iou["best_constant"] + 0.05
    return lead and iou["shuffled"] <= ceiling and iou["blank"] <= ceiling


def _seconds(intervals):
    return sum(end - start for start, end in intervals)


def _both(truth, answer):
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in truth for b in answer)


def _hull(intervals):
    return [(min(start for start, _ in intervals), max(end for _, end in intervals))] if intervals else []


TEMPORAL_IOU = Exercise(
    name="temporal_iou",
    task="Write temporal_iou(truth, answer): the seconds in both lists of intervals over the seconds in either.",
    difficulty=2,
    minutes=5,
    solution=temporal_iou,
    why=(
        "Two intervals share min(ends) − max(starts) seconds, or none when that is negative. Summed over all pairs, "
        "that is what both cover. Adding the two lengths counts those seconds twice, so they are taken off once. "
        "When there is nothing to find and nothing was answered, the answer is right: 1."
    ),
    cases=(
        {"truth": [(2, 4)], "answer": [(2, 4)]},
        {"truth": [(2, 4)], "answer": [(3, 5)]},
        {"truth": [(2, 4)], "answer": [(0, 8)]},
        {"truth": [(0, 1)], "answer": [(6, 8)]},
        {"truth": [(0.5, 2), (5, 7.5)], "answer": [(1, 6)]},
        {"truth": [(0, 4)], "answer": [(0, 1), (3, 6)]},
        {"truth": [], "answer": []},
        {"truth": [(1, 2)], "answer": []},
    ),
    misconceptions=(
        Misconception(
            formula=lambda truth, answer: _both(truth, answer) / _seconds(truth) if truth else 1.0,
            says="You divided by the seconds of the truth alone. Then the answer 'keep everything' would always get 1.",
        ),
        Misconception(
            formula=lambda truth, answer: _both(truth, answer) / _seconds(answer) if answer else float(not truth),
            says="You divided by the seconds of the answer alone. Then one safe tenth of a second would get 1.",
        ),
        Misconception(
            formula=lambda truth, answer: _both(truth, answer) / (_seconds(truth) + _seconds(answer) or 1),
            says="Seconds in either: you added both lengths, so what they share is counted twice.",
        ),
        Misconception(
            formula=lambda truth, answer: (
                2 * _both(truth, answer) / (_seconds(truth) + _seconds(answer)) if truth + answer else 1.0
            ),
            says="That is the Dice score: twice the shared seconds over the sum. IoU divides by the seconds in either.",
        ),
        Misconception(
            formula=lambda truth, answer: temporal_iou(_hull(truth), _hull(answer)),
            says="You went from the first start to the last end: the gaps between the intervals are not kept.",
        ),
        Misconception(
            formula=lambda truth, answer: (
                _both(truth, answer) / ((_seconds(truth) + _seconds(answer) - _both(truth, answer)) or 1)
            ),
            says="Nothing to keep and nothing kept is a right answer: 1, not 0.",
        ),
        Misconception(
            formula=lambda truth, answer: _signed_iou(truth, answer),
            says="Two intervals that do not meet share 0 seconds, not a negative number.",
        ),
    ),
    hints=(
        "How many seconds do (2, 4) and (3, 5) share? min(4, 5) − max(2, 3). And if they do not meet?",
        "Sum the shared seconds over all pairs: that is `both`. Seconds in either: all lengths added, minus `both`.",
    ),
    helps=(
        Help(
            error="TypeError: unsupported operand type(s) for /: 'ellipsis' and 'ellipsis'",
            remedy="`both` and `either` are still the three dots. Give each of them its seconds.",
            produced_by=lambda truth, answer: ... / ...,
        ),
        Help(
            error="ZeroDivisionError: division by zero",
            remedy="Neither list has an interval: nothing to find and nothing answered. Decide that case first.",
            produced_by=lambda truth, answer: (
                _both(truth, answer) / (_seconds(truth) + _seconds(answer) - _both(truth, answer))
            ),
        ),
    ),
)


def _signed_iou(truth, answer):
    both = sum(min(a[1], b[1]) - max(a[0], b[0]) for a in truth for b in answer)
    either = _seconds(truth) + _seconds(answer) - both
    return both / either if either else 1.0


def _run(before, after, best_constant, shuffled, blank):
    named = {"before": before, "after": after, "best_constant": best_constant, "shuffled": shuffled, "blank": blank}
    return {"iou": named}


LOOKED_AT_PIXELS = Exercise(
    name="looked_at_pixels",
    task="Write looked_at_pixels(iou): do these five mean IoUs prove that the model answers from the pixels?",
    difficulty=2,
    minutes=4,
    solution=looked_at_pixels,
    why=(
        "A high score can come from habits of the data: events that tend to lie in the middle, or to last two seconds. "
        "The best constant answer measures how far habits go. Pixels are proved by a lead over it, and by the lead's "
        "disappearance when the frames come from another clip (shuffled) or are blank."
    ),
    cases=(
        _run(0.02, 0.85, 0.21, 0.19, 0.15),
        _run(0.02, 0.55, 0.40, 0.38, 0.35),
        _run(0.02, 0.80, 0.21, 0.70, 0.20),
        _run(0.02, 0.80, 0.21, 0.20, 0.75),
        _run(0.60, 0.62, 0.25, 0.22, 0.21),
        _run(0.02, 0.45, 0.48, 0.44, 0.44),
    ),
    misconceptions=(
        Misconception(
            formula=lambda iou: iou["after"] > iou["before"],
            says="Better than before is not enough: learning the usual answer also beats an untrained start.",
        ),
        Misconception(
            formula=lambda iou: iou["after"] > iou["best_constant"],
            says="A lead over the constant must be clear (0.30), and it must vanish when the pixels are taken away.",
        ),
        Misconception(
            formula=lambda iou: iou["after"] - iou["best_constant"] >= 0.30,
            says="You did not look at the controls: with other frames, or with none, the lead has to disappear.",
        ),
        Misconception(
            formula=lambda iou: (
                iou["after"] - iou["best_constant"] >= 0.30 and iou["shuffled"] <= iou["best_constant"] + 0.05
            ),
            says="You checked the shuffled frames and not the blank ones.",
        ),
        Misconception(
            formula=lambda iou: (
                iou["after"] - iou["best_constant"] >= 0.30 and iou["blank"] <= iou["best_constant"] + 0.05
            ),
            says="You checked the blank frames and not the shuffled ones.",
        ),
        Misconception(
            formula=lambda iou: (
                iou["after"] - iou["before"] >= 0.30
                and max(iou["shuffled"], iou["blank"]) <= iou["best_constant"] + 0.05
            ),
            says="Hold `after` against the best constant answer, not against `before`: what the base model could "
            "already see does not count against the pixels.",
        ),
        Misconception(
            formula=lambda iou: iou["after"] >= 0.75,
            says="A high number alone proves nothing: how high would an answer get that never looks?",
        ),
    ),
    hints=(
        "Three conditions: after − best_constant ≥ 0.30, and two more about shuffled and blank.",
        "The ceiling for both controls is best_constant + 0.05. Join the three conditions with `and`.",
    ),
    helps=(
        Help(
            error="KeyError: 'constant'",
            remedy="The names are before, after, best_constant, shuffled and blank.",
            produced_by=lambda iou: iou["after"] - iou["constant"] >= 0.30,
        ),
    ),
)

LESSON = Lesson(
    number="22",
    title="Train video → text",
    predictions=("best_constant_iou", "after_iou", "shuffled_iou"),
    exercises=(TEMPORAL_IOU, LOOKED_AT_PIXELS),
)
