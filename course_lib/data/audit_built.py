"""A few samples of an audit, really built: does the installed library make of them what the arithmetic said?

Blank frames stand in for the clip, so nothing is decoded; the template, the processor and the labels are the real ones.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from course_lib.config.run_config import BudgetSection
from course_lib.data.audit import SampleAudit
from course_lib.data.grounding import GroundingDataset
from course_lib.data.labels import check_labels, placeholder_ids
from course_lib.data.windows import Window
from course_lib.errors import CourseError
from course_lib.tokens import judge
from course_lib.tokens.families import VideoModel
from course_lib.tokens.plan import processor_metadata

MOST_BUILT, MOST_SIZES = 6, 8


def chosen_samples(samples: Sequence[SampleAudit], most: int = MOST_BUILT) -> list[SampleAudit]:
    """The longest, the shortest, the one with most and with fewest supervised tokens, then evenly over the set."""
    ends = [
        pick(samples, key=key)
        for key in (lambda s: s.tokens, lambda s: s.supervised_tokens)
        for pick in (max, min)
    ]  # fmt: skip
    spread = samples[:: max(len(samples) // most, 1)]
    return list({sample.index: sample for sample in [*ends, *spread]}.values())[:most]


def check_built(
    samples: Sequence[SampleAudit],
    windows: Sequence[Window],
    processor: Any,
    budget: BudgetSection,
    *,
    times_in_text: bool,
) -> list[str]:
    """Build `samples` and compare length, supervised tokens and labels. One line per finding.

    Args:
        windows: of the whole set; a sample's `index` is its place there. times_in_text: the template writes the time
            of each step (Qwen3-VL).
    """
    dataset = GroundingDataset(windows, processor, budget)
    found = []
    for sample in samples:
        window = windows[sample.index]
        try:
            found += _check_one(sample, window, dataset, times_in_text)
        except CourseError as error:
            # A budget that fails is known already.
            found += [] if sample.findings else [error.line()]
    return found


def check_sizes(samples: Sequence[SampleAudit], model: VideoModel, processor: Any) -> tuple[list[str], int]:
    """Ask the installed processor for the grid of each size of clip, at most MOST_SIZES: (findings, sizes asked)."""
    sizes = {(sample.frames, sample.height, sample.width): sample for sample in samples}
    found = []
    for (frames, height, width), sample in list(sizes.items())[:MOST_SIZES]:
        answer = judge.ask(
            model, processor.video_processor, frames=frames, height=height, width=width,
            metadata=processor_metadata([k / 10 for k in range(frames)], frames / 10), do_sample_frames=False,
        )  # fmt: skip
        if answer.thw != sample.grid:
            found.append(
                f"{sample.where}: transformers {judge.library_version()} makes grid {list(answer.thw or ())} of "
                f"{frames} frames of {width}×{height}, planned {list(sample.grid)}"
            )
    return found, min(len(sizes), MOST_SIZES)


def _check_one(sample: SampleAudit, window: Window, dataset: GroundingDataset, times_in_text: bool) -> list[str]:
    video = dataset.processor.video_processor
    # A picture of the size that the processor would make of the clip: the same grid for a fraction of the memory.
    blank = np.zeros(
        (sample.frames, sample.grid[1] * video.patch_size, sample.grid[2] * video.patch_size, 3), dtype=np.uint8
    )
    item = dataset.build(window, blank, sample.frame_seconds)
    cost, found = dataset.cost(item), []
    if cost.grid == sample.grid and (len(item["input_ids"]), cost.supervised_tokens) != (
        sample.tokens,
        sample.supervised_tokens,
    ):
        found.append(
            f"{sample.where}: {len(item['input_ids'])} tokens with {cost.supervised_tokens} supervised were built, "
            f"planned {sample.tokens} with {sample.supervised_tokens}"
        )
    findings = check_labels(
        item["input_ids"], item["labels"], dataset.processor.tokenizer, answer=window.answer,
        attention_mask=item["attention_mask"], visual_token_ids=placeholder_ids(dataset.processor),
        step_seconds=sample.timestamps_seconds if times_in_text else None, where=sample.where,
    )  # fmt: skip
    return found + [finding.line() for finding in findings]
