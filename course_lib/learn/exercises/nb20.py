"""Notebook 20: visual tokens of a clip, a cap per frame in a limit for the whole video, frames for a price.

Arithmetic of Qwen3-VL: patches of 16 pixels, 2 × 2 of them merged, two frames a step (transformers 5.24,
Qwen3VLVideoProcessor); checked against the real processor by course_lib.tokens.check.
"""

from course_lib.learn.exercise import Exercise, Help, Lesson, Misconception


def visual_tokens(frames, height, width):
    """Visual tokens of Qwen3-VL for frames of height × width pixels after the resize (multiples of 32)."""
    steps = -(-frames // 2)
    return steps * (height // 32) * (width // 32)


def longest_edge(frames, cap):
    """size["longest_edge"] of Qwen3-VL that allows each of `frames` frames `cap` tokens: it counts the whole video."""
    return frames * cap * 32 * 32


def most_frames(tokens, cap):
    """The most frames whose visual tokens stay within `tokens` when one frame may have `cap` of them."""
    return tokens // cap * 2


VISUAL_TOKENS = Exercise(
    name="visual_tokens",
    task="Write visual_tokens(frames, height, width): visual tokens of Qwen3-VL, sizes being multiples of 32.",
    difficulty=2,
    minutes=3,
    unit="tokens",
    solution=visual_tokens,
    why=(
        "One token is a square of 32 × 32 pixels: a patch is 16 pixels wide, and 2 × 2 patches are merged. Two frames "
        "share a step; a last frame without a partner is repeated, so it costs a whole step: rounding up."
    ),
    cases=(
        {"frames": 2, "height": 320, "width": 320},
        {"frames": 8, "height": 1152, "width": 640},
        {"frames": 32, "height": 576, "width": 320},
        {"frames": 7, "height": 1152, "width": 640},
        {"frames": 33, "height": 64, "width": 96},
    ),
    misconceptions=(
        Misconception(
            formula=lambda frames, height, width: frames * 256,
            says="You took 256 tokens for every frame. That is the price of one fixed 448 × 448 picture of another "
            "family; this one pays for the pixels it gets.",
        ),
        Misconception(
            formula=lambda frames, height, width: frames * (height // 32) * (width // 32),
            says="You counted every one of the {frames} frames as a step. How many frames does one step hold?",
        ),
        Misconception(
            formula=lambda frames, height, width: -(-frames // 2) * (height // 16) * (width // 16),
            says="You counted patches. The grid is in patches of 16 pixels; 2 × 2 of them are merged into one token.",
        ),
        Misconception(
            formula=lambda frames, height, width: -(-frames // 2) * (height // 16) * (width // 16) // 2,
            says="You merged 2 patches into a token. They are merged 2 × 2: along the height and along the width.",
        ),
        Misconception(
            formula=lambda frames, height, width: frames * (height // 16) * (width // 16),
            says="You counted the patches of every frame. Two things are put together first: 2 × 2 patches, and the "
            "frames of one step.",
        ),
        Misconception(
            formula=lambda frames, height, width: frames // 2 * (height // 32) * (width // 32),
            says="You dropped the last of {frames} frames. It has no partner, so it is repeated: one step more.",
        ),
        Misconception(
            formula=lambda frames, height, width: frames / 2 * (height // 32) * (width // 32),
            says="There is no half step: an odd last frame is repeated and costs a whole one.",
        ),
        Misconception(
            formula=lambda frames, height, width: (height // 32) * (width // 32),
            says="That is one step. The clip has more of them.",
        ),
    ),
    hints=(
        "Three numbers are multiplied: steps, rows of tokens, columns of tokens. A token is 32 pixels high and wide.",
        "steps = -(-frames // 2) rounds up; rows = height // 32; columns = width // 32.",
    ),
    helps=(
        Help(
            error="TypeError: unsupported operand type(s) for *: 'ellipsis' and 'ellipsis'",
            remedy="`steps`, `rows` and `columns` are still the three dots. Give each of them its number.",
            produced_by=lambda frames, height, width: ... * ...,
        ),
    ),
)

LONGEST_EDGE = Exercise(
    name="longest_edge",
    task="Write longest_edge(frames, cap): the limit in pixels that allows every frame `cap` tokens in Qwen3-VL.",
    difficulty=2,
    minutes=3,
    unit="pixels",
    solution=longest_edge,
    why=(
        "Qwen3-VL holds frames × height × width, all frames together, against size['longest_edge']. A frame of `cap` "
        "tokens has cap × 32 × 32 pixels, and there are `frames` of them. The two frames of a step both count."
    ),
    cases=(
        {"frames": 2, "cap": 100},
        {"frames": 32, "cap": 196},
        {"frames": 8, "cap": 720},
        {"frames": 64, "cap": 128},
    ),
    misconceptions=(
        Misconception(
            formula=lambda frames, cap: cap * 32 * 32,
            says="That is the limit of one frame. Here it holds for all {frames} of them together: each would get a "
            "share of {cap} tokens, not {cap}.",
        ),
        Misconception(
            formula=lambda frames, cap: frames // 2 * cap * 32 * 32,
            says="You counted steps. The limit counts the pixels of every frame, of both frames of a step. (In "
            "qwen-vl-utils, total_pixels counts steps: half of this number.)",
        ),
        Misconception(
            formula=lambda frames, cap: frames * cap,
            says="Those are tokens. The limit is in pixels: how many pixels has a token?",
        ),
        Misconception(
            formula=lambda frames, cap: frames * cap * 16 * 16,
            says="You took 16 × 16 pixels for a token. That is a patch; 2 × 2 patches make a token.",
        ),
        Misconception(
            formula=lambda frames, cap: frames * cap * 28 * 28,
            says="28 × 28 pixels are a token of Qwen2-VL and Qwen2.5-VL. Qwen3-VL has patches of 16 pixels, 2 × 2 of "
            "them to a token.",
        ),
    ),
    hints=(
        "How many pixels has one token? How many tokens may one frame have? How many frames are there?",
        "Multiply the three: 32 * 32, cap, frames.",
    ),
    helps=(
        Help(
            error="TypeError: unsupported operand type(s) for *: 'ellipsis' and 'int'",
            remedy="`pixels_per_token` is still the three dots.",
            produced_by=lambda frames, cap: ... * cap,
        ),
    ),
)

MOST_FRAMES = Exercise(
    name="most_frames",
    task="Write most_frames(tokens, cap): how many frames fit into `tokens` visual tokens at `cap` tokens a frame?",
    difficulty=1,
    minutes=2,
    unit="frames",
    solution=most_frames,
    why=(
        "A step costs what one frame is allowed, cap tokens, and shows two frames. tokens // cap whole steps fit, so "
        "twice as many frames do. One frame more would open another step."
    ),
    cases=(
        {"tokens": 2880, "cap": 180},
        {"tokens": 2880, "cap": 720},
        {"tokens": 1000, "cap": 300},
        {"tokens": 1100, "cap": 196},
        {"tokens": 100, "cap": 128},
    ),
    misconceptions=(
        Misconception(
            formula=lambda tokens, cap: tokens // cap,
            says="Those are steps of {cap} tokens. Each of them shows two frames.",
        ),
        Misconception(
            formula=lambda tokens, cap: 2 * tokens // cap,
            says="You multiplied before you divided: the odd frame at the end opens a step that is not paid for.",
        ),
        Misconception(
            formula=lambda tokens, cap: 2 * tokens / cap,
            says="A part of a step cannot be bought: whole steps first, then two frames for each.",
        ),
        Misconception(
            formula=lambda tokens, cap: -(-tokens // cap) * 2,
            says="You rounded up: the last step is not paid for.",
        ),
        Misconception(
            formula=lambda tokens, cap: tokens // (2 * cap),
            says="Two frames share the price of one. You made each frame pay twice.",
        ),
    ),
    hints=(
        "How many steps of `cap` tokens fit into `tokens`? How many frames does a step show?",
        "Whole steps first: tokens // cap. Then times two.",
    ),
    helps=(
        Help(
            error="TypeError: unsupported operand type(s) for *: 'ellipsis' and 'int'",
            remedy="`steps` is still the three dots: how many steps of `cap` tokens are paid for?",
            produced_by=lambda tokens, cap: ... * 2,
        ),
    ),
)

LESSON = Lesson(
    number="20",
    title="The video token budget",
    predictions=("tokens_8_frames", "tokens_with_max_pixels", "tokens_with_cap"),
    exercises=(VISUAL_TOKENS, LONGEST_EDGE, MOST_FRAMES),
)
