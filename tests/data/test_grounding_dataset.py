"""One window of a real clip as a training sample: what is learnt, what is shown, and what it may cost."""

import re
import shutil
import types
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_lib.config.run_config import BudgetSection
from course_lib.data import grounding
from course_lib.data.grounding import GroundingDataset, answer_text, collate, load_processor, render_prompt
from course_lib.data.windows import Window
from course_lib.errors import FINDING, CourseError
from course_lib.models.supervised_loss import IGNORED

BUDGET = BudgetSection(frames=16, max_tokens_per_frame=1, min_tokens_per_frame=1)
QUESTION = "Which parts are worth keeping?"
EVENTS = ((0.5, 1.5), (3.0, 7.5))


def window(video, events=EVENTS, start=8.0, end=16.0, question=QUESTION):
    return Window(video=video, question=question, start_seconds=start, end_seconds=end, events=events, index=0)


@pytest.fixture(scope="module")
def clips(example_folder):
    return [example_folder / "data" / "clips" / f"train_00{number}.mp4" for number in range(2)]


@pytest.fixture(scope="module")
def dataset(clips, tiny_processor):
    """Two windows with different answers, of two clips."""
    made = GroundingDataset([window(clips[0]), window(clips[1], events=())], tiny_processor, BUDGET)
    yield made
    made.reader.close()


def seconds_in(text):
    return [float(number) for number in re.findall(r"<([\d.]+) seconds>", text)]


def test_labels_are_the_answer_with_its_end_and_nothing_else(dataset):
    tokenizer = dataset.processor.tokenizer
    for index, answer in enumerate(("0.5-1.5, 3.0-7.5", "none")):
        item = dataset[index]
        learnt = item["labels"] != IGNORED
        assert tokenizer.decode(item["input_ids"][learnt]) == answer + "<|im_end|>"
        assert item["labels"][learnt].equal(item["input_ids"][learnt])
        # One block at the very end, after the words that open the answer.
        assert learnt.nonzero().flatten().tolist() == list(range(item["prompt_tokens"], len(item["input_ids"])))
        assert tokenizer.decode(item["input_ids"][~learnt]).endswith("<|im_start|>assistant\n")


def test_the_prompt_does_not_know_the_answer(dataset, clips):
    told = dataset[0]
    frames, seconds = dataset.frames(0)
    other = dataset.build(window(clips[0], events=()), frames, seconds)
    assert len(other["input_ids"]) != len(told["input_ids"])
    prompt = told["prompt_tokens"]
    assert other["prompt_tokens"] == prompt
    assert other["input_ids"][:prompt].equal(told["input_ids"][:prompt])
    alone = dataset.processor(
        text=[render_prompt(dataset.processor, QUESTION)],
        videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
        video_metadata=[
            {"fps": 1000.0, "frames_indices": [round(1000 * s) for s in seconds], "total_num_frames": 8000}
        ],
        do_sample_frames=False,
        return_tensors="pt",
    )
    assert alone["input_ids"][0].equal(told["input_ids"][:prompt])
    assert alone["video_grid_thw"].equal(told["video_grid_thw"])


def test_the_question_is_in_the_prompt_and_the_answer_is_not(dataset):
    item = dataset[0]
    prompt = dataset.processor.tokenizer.decode(item["input_ids"][: item["prompt_tokens"]])
    assert QUESTION in prompt
    assert "0.5-1.5" not in prompt


def test_the_model_reads_the_real_time_of_each_pair_of_frames(dataset):
    frames, _ = dataset.frames(0)
    seconds = np.array([0.1, 0.3, 0.4, 2.0, 2.1, 2.2, 5.0, 5.4, 5.5, 5.6, 6.0, 6.2, 7.0, 7.1, 7.2, 7.9])
    item = dataset.build(dataset.windows[0], frames, seconds)
    read = seconds_in(dataset.processor.tokenizer.decode(item["input_ids"]))
    assert read == pytest.approx(seconds.reshape(8, 2).mean(axis=1), abs=0.051)


def test_times_count_from_the_start_of_the_window(dataset):
    _, seconds = dataset.frames(0)
    # 16 middles of half a second; a frame every 1/8 s is at most 1/16 s away.
    assert seconds == pytest.approx((np.arange(16) + 0.5) / 2, abs=1 / 16 + 1e-6)


def test_a_variable_rate_is_read_by_its_times_and_not_by_its_numbers(tmp_path, tiny_processor):
    import av

    # Dense at the start, sparse at the end: frame k stands at 8·(k/40)² seconds.
    ticks = [round(8000 * (k / 40) ** 2) for k in range(40)]
    with av.open(str(tmp_path / "vfr.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "ultrafast", "crf": "10"})
        stream.width, stream.height, stream.pix_fmt = 96, 96, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, tick in enumerate(ticks):
            picture = np.full((96, 96, 3), 20 + 5 * number, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = tick, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    budget = BudgetSection(frames=8, max_tokens_per_frame=1, min_tokens_per_frame=1)
    dataset = GroundingDataset([window(tmp_path / "vfr.mp4", ((0.5, 1.0),), 2.0, 6.0)], tiny_processor, budget)
    frames, seconds = dataset.frames(0)
    item = dataset[0]
    dataset.reader.close()
    times = np.array(ticks) / 1000
    wanted = 2.0 + (np.arange(8) + 0.5) / 2
    expected = [int(np.abs(times - moment).argmin()) for moment in wanted]
    assert seconds == pytest.approx(times[expected] - 2.0, abs=1e-3)
    shown = [float(frame.mean()) for frame in frames]
    assert shown == pytest.approx([20 + 5 * number for number in expected], abs=2)
    read = seconds_in(tiny_processor.tokenizer.decode(item["input_ids"]))
    assert read == pytest.approx(seconds.reshape(4, 2).mean(axis=1), abs=0.051)


def test_the_cost_is_counted_on_what_came_out(dataset):
    item = dataset[0]
    cost = dataset.cost(item)
    # 32 × 32 pixels are one token; two frames share a grid step.
    assert (cost.frames, cost.grid, cost.visual_tokens) == (16, (8, 2, 2), 8)
    assert cost.text_tokens + cost.visual_tokens == len(item["input_ids"])
    assert cost.supervised_tokens == len(item["input_ids"]) - item["prompt_tokens"]


def test_a_cap_that_was_not_applied_is_refused(clips, tiny_directory):
    loose = load_processor(tiny_directory, BudgetSection(frames=16, max_tokens_per_frame=4, min_tokens_per_frame=1))
    dataset = GroundingDataset([window(clips[0])], loose, BUDGET)
    with pytest.raises(CourseError, match=r"grid \[8, 4, 4\] costs 4 tokens per frame.* 1\b") as caught:
        dataset[0]
    dataset.reader.close()
    assert caught.value.exit_code == FINDING
    assert "train_000.mp4 at 8 s" in caught.value.line()


def test_the_cap_of_the_budget_is_what_the_processor_gives(clips, tiny_directory):
    # A 96 × 96 picture is 3 × 3 tokens; caps below that shrink it, larger ones leave it.
    for cap, most in ((1, 1), (4, 4), (9, 9), (64, 9)):
        budget = BudgetSection(frames=4, max_tokens_per_frame=cap, min_tokens_per_frame=1)
        dataset = GroundingDataset([window(clips[0])], load_processor(tiny_directory, budget), budget)
        cost = dataset.cost(dataset[0])
        dataset.reader.close()
        assert cost.visual_tokens // cost.grid[0] == most


def test_another_number_of_frames_than_asked_for_is_refused(dataset):
    frames, seconds = dataset.frames(0)
    with pytest.raises(CourseError, match="16 frames were asked for, 8 came out"):
        dataset.build(dataset.windows[0], frames[:8], seconds[:8])


def test_an_odd_number_of_frames_is_filled_up_to_a_pair(clips, tiny_processor):
    budget = BudgetSection(frames=5, max_tokens_per_frame=1, min_tokens_per_frame=1)
    dataset = GroundingDataset([window(clips[0])], tiny_processor, budget)
    assert dataset.cost(dataset[0]).frames == 6
    dataset.reader.close()


def test_an_answer_that_melts_into_the_prompt_is_refused(dataset, monkeypatch):
    monkeypatch.setattr(
        grounding, "render_prompt", lambda processor, question: render_prompt(processor, question) + "no"
    )
    frames, seconds = dataset.frames(1)
    prompt = render_prompt(dataset.processor, QUESTION) + "no"
    tokenizer = dataset.processor.tokenizer
    joined = tokenizer(prompt + "none<|im_end|>", add_special_tokens=False)["input_ids"]
    apart = tokenizer("none<|im_end|>", add_special_tokens=False)["input_ids"]
    assert joined[-len(apart) :] != apart, "this prompt must melt for the test to mean anything"
    with pytest.raises(CourseError, match="answer's tokens change"):
        dataset.build(dataset.windows[1], frames, seconds)


def test_controls_change_the_pixels_and_not_one_id(dataset):
    item, other = dataset[0], dataset[1]
    frames, seconds = dataset.frames(0)
    blank = dataset.build(dataset.windows[0], np.zeros_like(frames), seconds)
    shuffled = dataset.build(dataset.windows[0], dataset.frames(1)[0], seconds)
    for control in (blank, shuffled):
        assert control["input_ids"].equal(item["input_ids"])
        assert control["labels"].equal(item["labels"])
        assert not control["pixel_values_videos"].equal(item["pixel_values_videos"])
    assert shuffled["pixel_values_videos"].equal(other["pixel_values_videos"])
    assert len(blank["pixel_values_videos"].unique()) == 1


def test_training_pads_on_the_right_and_nothing_padded_is_learnt_or_seen(dataset):
    items = [dataset[0], dataset[1]]
    pad = dataset.processor.tokenizer.pad_token_id
    batch = collate(items, pad)
    for row, item in enumerate(items):
        length = len(item["input_ids"])
        for name in ("input_ids", "labels", "mm_token_type_ids"):
            assert batch[name][row, :length].equal(item[name])
        assert batch["attention_mask"][row].tolist() == [1] * length + [0] * (batch["input_ids"].shape[1] - length)
        assert set(batch["input_ids"][row, length:].tolist()) <= {pad}
        assert set(batch["labels"][row, length:].tolist()) <= {IGNORED}
        assert set(batch["mm_token_type_ids"][row, length:].tolist()) <= {0}
    assert batch["sample_index"].tolist() == [0, 1]
    assert batch["pixel_values_videos"].shape[0] == sum(item["pixel_values_videos"].shape[0] for item in items)
    assert batch["video_grid_thw"].tolist() == [[8, 2, 2]] * 2


def test_generation_pads_on_the_left_and_sees_the_prompt_alone(dataset, clips):
    long = window(clips[0], question=QUESTION * 2)
    frames, seconds = dataset.frames(0)
    items = [dataset[0], dataset.build(long, frames, seconds)]
    pad = dataset.processor.tokenizer.pad_token_id
    batch = collate(items, pad, prompts_only=True)
    assert "labels" not in batch
    assert "sample_index" not in batch
    width = items[1]["prompt_tokens"]
    assert batch["input_ids"].shape[1] == width > items[0]["prompt_tokens"]
    for row, item in enumerate(items):
        prompt = item["prompt_tokens"]
        assert batch["input_ids"][row].tolist() == [pad] * (width - prompt) + item["input_ids"][:prompt].tolist()
        assert batch["attention_mask"][row].tolist() == [0] * (width - prompt) + [1] * prompt


def test_a_built_sample_is_kept_while_there_is_room(clips, tiny_processor, monkeypatch):
    dataset = GroundingDataset([window(clips[0])] * 2, tiny_processor, BUDGET)
    assert dataset[0] is dataset[0]
    monkeypatch.setattr(grounding, "CACHE_BYTES", 0)
    assert dataset[1] is not dataset[1]
    assert dataset[1]["input_ids"].equal(dataset[0]["input_ids"])
    assert dataset[1]["index"] == 1
    dataset.reader.close()


def test_an_unreadable_clip_is_one_line(tmp_path, tiny_processor):
    (tmp_path / "a.mp4").write_bytes(b"not a film")
    dataset = GroundingDataset([window(tmp_path / "a.mp4")], tiny_processor, BUDGET)
    with pytest.raises(CourseError, match=r"a\.mp4"):
        dataset[0]
    dataset.reader.close()


def test_the_answer_ends_with_the_token_that_ends_the_turn(tiny_processor):
    assert answer_text(tiny_processor, "none") == "none<|im_end|>"


def test_a_directory_without_a_usable_processor_is_one_line(tmp_path, tiny_directory):
    def copied(name, files):
        folder = tmp_path / name
        folder.mkdir()
        for file in files:
            shutil.copy(tiny_directory / file, folder / file)
        return folder

    tokenizer = ["config.json", "tokenizer.json", "tokenizer_config.json"]
    folders = [tmp_path / "nowhere", copied("bare", ["config.json"]), copied("tokenizer", tokenizer)]
    broken = copied("broken", [*tokenizer, "chat_template.jinja"])
    (broken / "processor_config.json").write_text("{")
    for folder in (*folders, broken):
        with pytest.raises(CourseError) as caught:
            load_processor(folder, BUDGET)
        assert caught.value.line().startswith(str(folder))


def test_a_processor_without_a_per_frame_cap_is_refused(tiny_directory, monkeypatch):
    import transformers

    other = types.SimpleNamespace(video_processor=types.SimpleNamespace())
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda directory: other)
    with pytest.raises(CourseError, match="no per-frame video cap"):
        load_processor(tiny_directory, BUDGET)
