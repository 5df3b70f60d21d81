"""Cutting by whole steps: random samples of both kinds of template, then the real processors and the real model."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.data.truncation import cut_to_length
from course_lib.errors import FINDING, CourseError
from course_lib.models.supervised_loss import IGNORED

START, END, VIDEO, TURN = 1, 2, 3, 4
SPECIAL = (START, END, VIDEO, TURN)
WORDS = range(10, 90)
ANSWER = [91, 92, 93, TURN]


def make(draw, *, timed: bool):
    """A sample as the processors lay it out; every patch row carries (video, step), every step its own time token."""
    videos = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3))
    words = st.lists(st.sampled_from(WORDS), max_size=5)
    ids, rows, grids = [TURN, *draw(words)], [], []
    for n, (steps, high, wide) in enumerate(videos):
        grids.append((steps, 2 * high, 2 * wide))
        rows += [(n, k) for k in range(steps) for _ in range(4 * high * wide)]
        ids.append(START)
        for k in range(steps):
            times = [100 + k, *draw(st.lists(st.just(99), max_size=2))] if timed else []
            ids += [*times, *([START] if timed else []), *[VIDEO] * (high * wide), *([END] if timed else [])]
        ids += [END, *draw(words)]
    ids.append(TURN)
    prompt = len(ids)
    ids += ANSWER
    item = {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.ones(len(ids), dtype=torch.long),
        "mm_token_type_ids": torch.tensor([2 * (token == VIDEO) for token in ids]),
        "labels": torch.tensor([IGNORED] * prompt + ANSWER),
        "pixel_values_videos": torch.tensor(rows),
        "video_grid_thw": torch.tensor(grids),
        "second_per_grid_ts": torch.full((len(grids),), 0.5),
        "prompt_tokens": prompt,
        "index": 7,
    }
    return item


def text_of(ids):
    return [token for token in ids.tolist() if token in WORDS]


def runs_of(ids):
    text = "".join("v" if token == VIDEO else " " for token in ids.tolist())
    return [len(run) for run in text.split()]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.booleans())
def test_a_cut_sample_is_whole(data, timed):
    item = make(data.draw, timed=timed)
    length = len(item["input_ids"])
    max_tokens = data.draw(st.integers(1, length + 3))
    limits = {"video_token_id": VIDEO, "merge_size": 2, "special_ids": SPECIAL}
    try:
        cut = cut_to_length(item, max_tokens, **limits)
    except CourseError as error:
        refused = error
    else:
        refused = None
    if refused:
        assert refused.exit_code == FINDING
        missing = int(re.search(r"too long by (\d+) token", refused.what)[1])
        assert cut_to_length(item, max_tokens + missing, **limits).dropped_tokens == length - max_tokens - missing
        with pytest.raises(CourseError):
            cut_to_length(item, max_tokens + missing - 1, **limits)
        return
    small, size = cut.item, len(cut.item["input_ids"])
    assert size <= max_tokens or size == length <= max_tokens
    assert size == length - cut.dropped_tokens
    for name in ("attention_mask", "mm_token_type_ids", "labels"):
        assert len(small[name]) == size
    assert small["labels"].tolist() == [IGNORED] * (size - 4) + ANSWER
    assert small["input_ids"].tolist()[-4:] == ANSWER
    assert small["prompt_tokens"] == size - 4
    assert text_of(small["input_ids"]) == text_of(item["input_ids"])
    assert (small["mm_token_type_ids"] == 2).tolist() == (small["input_ids"] == VIDEO).tolist()
    # Pixels, grids and placeholders tell the same story, and each row is the right one.
    per_step = [int(high * wide) // 4 for _, high, wide in item["video_grid_thw"].tolist()]
    assert small["video_grid_thw"][:, 0].tolist() == [len(steps) for steps in cut.kept_steps]
    expected = [[n, k] for n, steps in enumerate(cut.kept_steps) for k in steps for _ in range(4 * per_step[n])]
    assert small["pixel_values_videos"].tolist() == expected
    whole = [len(steps) * size for steps, size in zip(cut.kept_steps, per_step, strict=True)]
    steps = [size for steps, size in zip(cut.kept_steps, per_step, strict=True) for _ in steps]
    assert runs_of(small["input_ids"]) == (steps if timed else whole)
    if timed:
        times = [token - 100 for token in small["input_ids"].tolist() if token >= 100]
        assert times == [k for steps in cut.kept_steps for k in steps]
    for n, kept in enumerate(cut.kept_steps):
        assert kept[0] == 0
        strides = set(np.diff(kept).tolist())
        # Spread over the whole clip: its end is not cut off.
        total = int(item["video_grid_thw"][n, 0])
        assert total - kept[-1] <= -(-total // len(kept))
        if not timed and len(kept) > 1:
            assert len(strides) == 1
            assert small["second_per_grid_ts"][n] == 0.5 * strides.pop()
        elif len(kept) > 1:
            assert max(strides) - min(strides) <= 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_more_steps_are_dropped_than_needed(data):
    """One video with times: with one step more it would not have fitted, however the steps were spread."""
    item = make(data.draw, timed=True)
    if len(item["video_grid_thw"]) > 1:
        return
    length = len(item["input_ids"])
    max_tokens = data.draw(st.integers(length - item["video_grid_thw"][0, 0].item(), length))
    try:
        cut = cut_to_length(item, max_tokens, video_token_id=VIDEO, merge_size=2, special_ids=SPECIAL)
    except CourseError:
        return
    if cut.dropped_steps:
        cheapest = 3 + item["video_grid_thw"][0, 1].item() * item["video_grid_thw"][0, 2].item() // 4
        dearest = cheapest + 2
        assert cut.dropped_steps <= -(-(length - max_tokens) // cheapest)
        assert cut.dropped_steps * dearest >= length - max_tokens


def test_steps_that_must_stay_stay():
    ids = [TURN, START, *[100, START, VIDEO, END] * 4, END, TURN, *ANSWER]
    sample = {
        "input_ids": torch.tensor(ids), "labels": torch.tensor([IGNORED] * (len(ids) - 4) + ANSWER),
        "video_grid_thw": torch.tensor([[4, 2, 2]]),
    }  # fmt: skip
    limits = {"video_token_id": VIDEO, "merge_size": 2, "special_ids": SPECIAL}
    assert cut_to_length(sample, len(ids) - 8, min_steps=2, **limits).kept_steps == ((0, 2),)
    with pytest.raises(CourseError, match=r"^sample: too long by 1 token: 16 are needed .* 2 steps of each video, 15"):
        cut_to_length(sample, len(ids) - 9, min_steps=2, **limits)


def test_a_sample_that_was_cut_blindly_is_refused():
    ids = [TURN, START, *[100, START, VIDEO, VIDEO, END] * 4, END, TURN, *ANSWER]
    sample = {
        "input_ids": torch.tensor(ids[:10] + ids[11:]), "labels": torch.full((len(ids) - 1,), IGNORED),
        "video_grid_thw": torch.tensor([[4, 2, 4]]),
    }  # fmt: skip
    with pytest.raises(CourseError, match="do not belong to grids"):
        cut_to_length(sample, 12, video_token_id=VIDEO, merge_size=2, special_ids=SPECIAL)


def test_labels_on_the_video_forbid_the_cut():
    ids = [TURN, START, *[100, START, VIDEO, END] * 4, END, TURN, *ANSWER]
    sample = {
        "input_ids": torch.tensor(ids), "labels": torch.tensor(ids), "video_grid_thw": torch.tensor([[4, 2, 2]])
    }  # fmt: skip
    with pytest.raises(CourseError, match="have labels"):
        cut_to_length(sample, 14, video_token_id=VIDEO, merge_size=2, special_ids=SPECIAL)


def built(processor, *, frames=16):
    from course_lib.config.run_config import BudgetSection
    from course_lib.data.grounding import GroundingDataset
    from course_lib.data.windows import Window

    budget = BudgetSection(frames=frames, max_tokens_per_frame=4, min_tokens_per_frame=1)
    window = Window(
        video=Path("clip.mp4"), question="Keep?", start_seconds=0.0, end_seconds=8.0, events=((1.5, 3.0),), index=0
    )
    pictures = np.random.default_rng(0).integers(0, 255, (frames, 64, 64, 3), dtype=np.uint8)
    seconds = [(k + 0.5) * 8.0 / frames for k in range(frames)]
    return GroundingDataset([window], processor, budget).build(window, pictures, seconds)


def test_the_real_model_takes_a_cut_sample(tiny_model, tiny_processor):
    """And loses what was cut: its loss is that of a sample built with only the kept frames."""
    from course_lib.data.grounding import collate
    from course_lib.data.labels import check_labels, placeholder_ids
    from course_lib.models.supervised_loss import supervised_loss

    item = built(tiny_processor)
    cut = cut_to_length(
        item, len(item["input_ids"]) - 20, video_token_id=tiny_processor.video_token_id,
        merge_size=2, special_ids=tiny_processor.tokenizer.all_special_ids,
    )  # fmt: skip
    assert 0 < cut.dropped_steps < 8
    step_seconds = [0.5 + k for k in cut.kept_steps[0]]
    assert not check_labels(
        cut.item["input_ids"], cut.item["labels"], tiny_processor.tokenizer, answer="1.5-3.0",
        visual_token_ids=placeholder_ids(tiny_processor), step_seconds=step_seconds,
    )  # fmt: skip
    batch = collate([cut.item | {"index": 0}], tiny_processor.tokenizer.pad_token_id)
    batch.pop("sample_index")
    with torch.no_grad():
        loss, _ = supervised_loss(tiny_model, batch)
    assert torch.isfinite(loss)
    assert int((batch["input_ids"] == tiny_processor.video_token_id).sum()) == 8 - cut.dropped_steps


def test_the_run_of_qwen2_5_stays_even(tiny_processor):
    import transformers

    processor = transformers.Qwen2_5_VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(),
        tokenizer=tiny_processor.tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(
            size={"shortest_edge": 784, "longest_edge": 4 * 784 * 16}, cap_pixels_per_frame=True, max_video_tokens=4
        ),
        chat_template=tiny_processor.chat_template,
    )
    item = built(processor)
    per_step = int(item["video_grid_thw"].prod()) // 4 // 8
    cut = cut_to_length(
        item, len(item["input_ids"]) - per_step, video_token_id=processor.video_token_id, merge_size=2,
        special_ids=processor.tokenizer.all_special_ids,
    )  # fmt: skip
    assert cut.kept_steps == ((0, 2, 4, 6),)
    assert torch.as_tensor(cut.item["second_per_grid_ts"]).tolist() == pytest.approx(
        [2 * second for second in torch.as_tensor(item["second_per_grid_ts"]).tolist()]
    )
    assert runs_of_item(cut.item, processor.video_token_id) == [4 * per_step]


def runs_of_item(item, token):
    return [len(run) for run in "".join("v" if t == token else " " for t in item["input_ids"].tolist()).split()]
