"""Notebook 00: the three model states, what a stage shards, GB and GiB.

Byte counts per parameter: 2 (bf16 weight) + 2 (bf16 gradient) + 4 (fp32 master) + 8 (Adam's two averages) = 16,
ZeRO (arXiv 1910.02054) §3.1; checked against DeepSpeed 0.19.8 by train/stages.py.
"""

import math

from course_lib.learn.exercise import Exercise, Help, Lesson, Misconception


def zero_stage_bytes(psi, stage, ranks):
    """Bytes of model states on one rank for psi parameters, all of them trained with AdamW in bf16."""
    weights, gradients, optimizer = 2 * psi, 2 * psi, 12 * psi
    if stage >= 1:
        optimizer = optimizer / ranks
    if stage >= 2:
        gradients = gradients / ranks
    if stage >= 3:
        weights = weights / ranks
    return weights + gradients + optimizer


def cards_needed(psi, card_gib):
    """The smallest number of cards of card_gib GiB that hold the model states of psi parameters at stage 3."""
    return math.ceil(16 * psi / (card_gib * 2**30))


ZERO_STAGE_BYTES = Exercise(
    name="zero_stage_bytes",
    task="Write zero_stage_bytes(psi, stage, ranks): bytes of weights, gradients and optimizer states on one rank.",
    difficulty=2,
    minutes=3,
    unit="bytes",
    solution=zero_stage_bytes,
    why=(
        "Each stage adds one thing to the list of what is shared out: 1 the optimizer states (12 of the 16 bytes), "
        "2 also the gradients (2), 3 also the weights (2). What is not shared out stays whole on every rank, so stage "
        "1 never falls below 4 bytes per parameter and stage 2 never below 2, however many ranks there are."
    ),
    cases=(
        {"psi": 1000, "stage": 0, "ranks": 1},
        {"psi": 2_135_104, "stage": 3, "ranks": 2},
        {"psi": 7.5e9, "stage": 0, "ranks": 4},
        {"psi": 7.5e9, "stage": 1, "ranks": 4},
        {"psi": 7.5e9, "stage": 2, "ranks": 4},
        {"psi": 7.5e9, "stage": 3, "ranks": 64},
        {"psi": 2e9, "stage": 1, "ranks": 64},
        {"psi": 2e9, "stage": 2, "ranks": 3},
    ),
    misconceptions=(
        Misconception(
            formula=lambda psi, stage, ranks: 16 * psi / ranks,
            says="You divided everything by {ranks} at every stage. Stage 0 shards nothing, and stages 1 and 2 "
            "only a part: which?",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: 16 * psi / ranks if stage else 16 * psi,
            says="You divided everything by {ranks}. Stage {stage} shards only some of the three model states: which?",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: 16 * psi,
            says="You gave the bytes of the whole model. With stage {stage}, {ranks} ranks share some of them.",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: zero_stage_bytes(psi, min(stage + 1, 3) if stage else 0, ranks),
            says="That is what stage {stage} + 1 would hold. Stage 1 begins with the optimizer states alone.",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: zero_stage_bytes(psi, max(stage - 1, 0), ranks),
            says="You shard one state too few: at stage {stage} count again what is shared out.",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: 2 * psi / (ranks if stage == 3 else 1),
            says="You counted the weights only. Training also keeps gradients and optimizer states.",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: zero_stage_bytes(psi, stage, ranks) * 12 / 16,
            says="You have 12 bytes per parameter. The fp32 master copy of the weights (4) is a state too.",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: _with_optimizer(psi, stage, ranks, optimizer=8),
            says="Your optimizer states take 8 bytes per parameter: Adam's two averages. The fp32 master copy of "
            "the weights (4) is missing.",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: _with_optimizer(psi, stage, ranks, optimizer=4),
            says="Your optimizer states take 4 bytes per parameter. Adam keeps two averages of 4 bytes each, and "
            "the optimizer updates an fp32 master copy (4 more).",
        ),
        Misconception(
            formula=lambda psi, stage, ranks: (
                zero_stage_bytes(psi, stage, ranks) + 2 * psi / (ranks if stage >= 2 else 1)
            ),
            says="You counted gradients in fp32 (4 bytes). This lab accumulates them in bf16 (2 bytes); with fp32 "
            "accumulation 18 bytes per parameter would be right.",
        ),
    ),
    hints=(
        "Start with three numbers: weights 2·psi, gradients 2·psi, optimizer states 12·psi. Add them up for stage 0.",
        "Stage 1 divides only the optimizer states by ranks, stage 2 also the gradients, stage 3 also the weights: "
        "three ifs with stage >= 1, stage >= 2 and stage >= 3.",
    ),
    helps=(
        Help(
            error="TypeError: unsupported operand type(s) for +: 'int' and 'ellipsis'",
            remedy="One of your three terms is still the three dots: give every state its bytes.",
            produced_by=lambda psi, stage, ranks: 2 * psi + ...,
        ),
    ),
)


def _with_optimizer(psi, stage, ranks, *, optimizer):
    """zero_stage_bytes with another number of optimizer bytes per parameter."""
    missing = (12 - optimizer) * psi / (ranks if stage >= 1 else 1)
    return zero_stage_bytes(psi, stage, ranks) - missing


CARDS_NEEDED = Exercise(
    name="cards_needed",
    task="Write cards_needed(psi, card_gib): how many cards of card_gib GiB hold the model states at stage 3?",
    difficulty=1,
    minutes=2,
    unit="cards",
    solution=cards_needed,
    why=(
        "Stage 3 shares out all 16 bytes per parameter, so N cards must satisfy 16·psi / N ≤ card. The smallest such "
        "N is 16·psi / card rounded up. A card's GiB are 2³⁰ bytes each; with GB (10⁹) you would buy one too many."
    ),
    cases=(
        {"psi": 0.1e9, "card_gib": 12},
        {"psi": 2e9, "card_gib": 12},
        {"psi": 2**30, "card_gib": 8},
        {"psi": 7e9, "card_gib": 80},
        {"psi": 3.1e9, "card_gib": 12},
        {"psi": 7e9, "card_gib": 12},
    ),
    misconceptions=(
        Misconception(
            formula=lambda psi, card_gib: 16 * psi // (card_gib * 2**30),
            says="You rounded down: the last bytes would have no card to lie on.",
        ),
        Misconception(
            formula=lambda psi, card_gib: max(1, 16 * psi // (card_gib * 2**30)),
            says="You rounded down: the last bytes would have no card to lie on.",
        ),
        Misconception(
            formula=lambda psi, card_gib: max(1, round(16 * psi / (card_gib * 2**30))),
            says="You rounded to the nearest number. A part of a card too little is too little: round up.",
        ),
        Misconception(
            formula=lambda psi, card_gib: 16 * psi // (card_gib * 2**30) + 1,
            says="You added one after rounding down. When the states fit exactly, that is one card too many.",
        ),
        Misconception(
            formula=lambda psi, card_gib: 16 * psi / (card_gib * 2**30),
            says="Nobody sells a part of a card: round up.",
        ),
        Misconception(
            formula=lambda psi, card_gib: math.ceil(16 * psi / (card_gib * 1e9)),
            says="You took a GiB for 10⁹ bytes (that is a GB). A GiB is 2³⁰ bytes, 7.4 % more.",
        ),
        Misconception(
            formula=lambda psi, card_gib: math.ceil(2 * psi / (card_gib * 2**30)),
            says="You counted the weights only: 2 of the 16 bytes that each parameter costs in training.",
        ),
        Misconception(
            formula=lambda psi, card_gib: math.ceil(4 * psi / (card_gib * 2**30)),
            says="You counted 4 bytes per parameter. In training it is 16: see the table of the lab.",
        ),
    ),
    hints=(
        "How many bytes are there in all (16 per parameter), and how many bytes does one card have (card_gib · 2**30)?",
        "Divide the first by the second and round up: math.ceil.",
    ),
    helps=(
        Help(
            error="NameError: name 'math' is not defined",
            remedy="Add `import math` above your function.",
            # The name is looked up when the function runs, as in a learner's cell without the import.
            produced_by=eval("lambda psi, card_gib: math.ceil(16 * psi / card_gib)", {}),
        ),
    ),
)

LESSON = Lesson(
    number="00",
    title="Start here",
    predictions=("bytes_per_parameter", "stage_3_bytes_per_rank"),
    exercises=(ZERO_STAGE_BYTES, CARDS_NEEDED),
)
