"""The audit against what GroundingDataset really builds, and each thing that must stop a run before it starts."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from course_lib.cli import app, load_commands
from course_lib.config.run_config import BudgetSection, load_run_config
from course_lib.data.audit import SampleAuditor, SetAudit, audit_windows, effective_model
from course_lib.data.audit_built import check_built, check_sizes
from course_lib.data.audit_clips import read_infos, usable
from course_lib.data.audit_run import audit_run
from course_lib.data.grounding import GroundingDataset, collate, load_processor
from course_lib.data.windows import Annotation, Window
from course_lib.errors import CourseError
from course_lib.media.video import VideoInfo

pytestmark = pytest.mark.slow

load_commands()
BUDGET = BudgetSection(frames=16, max_tokens_per_frame=1, min_tokens_per_frame=1)


@pytest.fixture(scope="module")
def shipped(example_folder):
    """The audit of the shipped run, and how often each progress line moved."""
    seen = {}
    config = load_run_config(example_folder / "run_cpu.yaml")
    return audit_run(config, progress=lambda what, done, total: seen.update({what: (done, total)})), seen


def test_every_token_and_grid_is_what_the_data_set_builds(shipped, tiny_processor, example_folder):
    from course_lib.tasks.video_text import read_windows

    audit, _ = shipped
    config = load_run_config(example_folder / "run_cpu.yaml")
    for which, audited, every in (("train", audit.train, 90), ("held_out", audit.held_out, 30)):
        windows = read_windows(config, which).windows
        assert [(s.clip, s.start_seconds) for s in audited.samples] == [(w.video, w.start_seconds) for w in windows]
        dataset = GroundingDataset(windows, tiny_processor, config.budget)
        for sample in (*audited.samples[::every], audited.longest):
            item = dataset[sample.index]
            cost = dataset.cost(item)
            assert (cost.frames, cost.grid, cost.visual_tokens) == (16, sample.grid, sample.visual_tokens)
            assert (cost.text_tokens, cost.supervised_tokens) == (sample.text_tokens, sample.supervised_tokens)
            assert len(item["input_ids"]) == sample.tokens
            text = tiny_processor.tokenizer.decode(item["input_ids"])
            assert all(f"<{second:.1f} seconds>" in text for second in sample.timestamps_seconds)
        dataset.reader.close()


def test_the_shipped_run_has_no_finding(shipped):
    audit, seen = shipped
    assert audit.findings == audit.notes == ()
    assert audit.labels_checked >= 10
    assert audit.sizes_checked == 2
    assert seen["clips of train.jsonl"] == (40, 40)
    assert seen["samples of held_out.jsonl"] == (len(audit.held_out.samples),) * 2


def test_the_batches_are_those_of_the_first_epoch(shipped, tiny_processor):
    """Padding and logits as the collator and the loss would have them."""
    import torch

    from course_lib.models.supervised_loss import supervised_positions

    audit, _ = shipped
    built = []
    for step in audit.coverage.steps:
        for batch in step:
            items = []
            for index in batch:
                sample = audit.train.samples[index]
                labels = torch.full((sample.tokens,), -100)
                labels[sample.tokens - sample.supervised_tokens :] = 1
                items.append({"input_ids": torch.ones(sample.tokens, dtype=torch.long), "labels": labels, "index": 0})
                items[-1]["attention_mask"] = torch.ones_like(items[-1]["input_ids"])
            built.append(collate(items, tiny_processor.tokenizer.pad_token_id))
    batches = audit.batches()
    assert batches["largest_tokens"] == max(batch["input_ids"].numel() for batch in built)
    assert batches["epoch_tokens"] == sum(batch["input_ids"].numel() for batch in built)
    held = sum(int(batch["attention_mask"].sum()) for batch in built)
    assert batches["padding_share"] == pytest.approx(1 - held / batches["epoch_tokens"], abs=1e-4)
    kept = max(len(batch["labels"]) * len(supervised_positions(batch["labels"])) for batch in built)
    assert batches["logits_bytes_with_this_loss"] == kept * 370 * 4


def test_the_histogram_counts_every_sample_once(shipped):
    audited = shipped[0].train
    bins = audited.histogram()
    for n, bin_ in enumerate(bins):
        assert bin_["samples"] == sum(bin_["from"] <= length <= bin_["to"] for length in audited.lengths)
        assert n == 0 or bin_["from"] == bins[n - 1]["to"] + 1
    assert sum(bin_["samples"] for bin_ in bins) == len(audited.samples)


def processor_folder(folder, kind, tiny_processor):
    """A model directory of another family: only what the audit and the data set read of it."""
    import transformers

    parts = {"tokenizer": tiny_processor.tokenizer, "chat_template": tiny_processor.chat_template}
    if kind == "qwen2_5_vl":
        processor = transformers.Qwen2_5_VLProcessor(
            image_processor=transformers.Qwen2VLImageProcessor(),
            video_processor=transformers.Qwen2VLVideoProcessor(),
            **parts,
        )
    else:
        processor = transformers.Qwen3VLProcessor(
            image_processor=transformers.Qwen2VLImageProcessor(patch_size=16),
            video_processor=transformers.Qwen3VLVideoProcessor(),
            **parts,
        )
    processor.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "text_config": {"vocab_size": 370}}))
    return folder


def random_case(rng, number):
    """A window of a clip of any size, rate and frame count; variable rates included."""
    rate, count = rng.choice([8, 23.976, 29.97, 60]), rng.randint(30, 400)
    gaps = np.array([rng.choice([1, 1, 1, 3]) if number % 3 == 0 else 1 for _ in range(count)]) / rate
    times = np.concatenate([[0.0], np.cumsum(gaps)[:-1]])
    info = VideoInfo(
        path=Path(f"{number}.mp4"), width=rng.randint(40, 420), height=rng.randint(40, 420), frames=count,
        duration_seconds=float(times[-1] + 1 / rate), average_fps=rate, rotation_degrees=0, has_audio=False,
        timestamps_seconds=times,
    )  # fmt: skip
    seconds = min(8.0, info.duration_seconds)
    start = round(rng.uniform(0, info.duration_seconds - seconds), 3)
    event = (round(rng.uniform(0, seconds / 2), 2), round(rng.uniform(seconds / 2 + 0.2, seconds), 2))
    window = Window(
        video=info.path, question=rng.choice(["Which parts are worth keeping?", "Where is the red square, <b>?"]),
        start_seconds=start, end_seconds=start + seconds, events=rng.choice([(), (event,)]), index=number,
    )  # fmt: skip
    return window, info


@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_5", "qwen2_5_vl"])
def test_any_clip_costs_what_was_audited(kind, tmp_path, tiny_processor):
    folder, rng = processor_folder(tmp_path, kind, tiny_processor), random.Random(kind)
    for number in range(10):
        low = rng.randint(1, 12)
        budget = BudgetSection(
            frames=rng.choice([2, 4, 7, 8]), max_tokens_per_frame=low + rng.randint(0, 20), min_tokens_per_frame=low
        )
        processor = load_processor(folder, budget)
        window, info = random_case(rng, number)
        sample = SampleAuditor(effective_model(str(folder), budget, processor), budget, processor).audit(window, info)
        dataset = GroundingDataset([], processor, budget)
        frames = np.zeros((budget.frames, info.height, info.width, 3), dtype=np.uint8)
        if sample.tokens_per_step > max(budget.max_tokens_per_frame, int(1.05 * budget.min_tokens_per_frame)):
            assert sample.findings
            with pytest.raises(CourseError, match="the cap is"):
                dataset.build(window, frames, sample.frame_seconds)
            continue
        item = dataset.build(window, frames, sample.frame_seconds)
        cost = dataset.cost(item)
        assert (cost.grid, cost.visual_tokens) == (sample.grid, sample.visual_tokens)
        assert (cost.text_tokens, cost.supervised_tokens) == (sample.text_tokens, sample.supervised_tokens)
        assert cost.visual_tokens // cost.grid[0] == sample.tokens_per_step


def clip(*, width, height, frames=200, rate=20.0):
    times = np.arange(frames) / rate
    return VideoInfo(
        path=Path("clip.mp4"), width=width, height=height, frames=frames, duration_seconds=frames / rate,
        average_fps=rate, rotation_degrees=0, has_audio=False, timestamps_seconds=times,
    )  # fmt: skip


def window(index=0, *, start=0.0, events=((1.0, 2.0),)):
    return Window(
        video=Path("clip.mp4"), question="Keep?", start_seconds=start, end_seconds=start + 8, events=events, index=index
    )


def audited(folder, budget, info, *, processor="own", **named):
    own = load_processor(folder, budget) if processor == "own" else processor
    auditor = SampleAuditor(effective_model(str(folder), budget, own), budget, own)
    return audit_windows([window()], {Path("clip.mp4"): info}, auditor, **named)


def test_a_cap_that_never_reached_the_processor_is_a_finding(tiny_directory):
    from transformers import AutoProcessor

    budget = BudgetSection(frames=8, max_tokens_per_frame=9, min_tokens_per_frame=1)
    unset = AutoProcessor.from_pretrained(tiny_directory)
    unset.video_processor = type(unset.video_processor)(
        **unset.video_processor.to_dict() | {"cap_pixels_per_frame": False, "do_sample_frames": False}
    )
    found = audited(tiny_directory, budget, clip(width=320, height=240), processor=unset).findings()
    assert found == ["clip.mp4 at 0 s: max_tokens_per_frame 9 had no effect: 80 tokens per frame"]
    assert audited(tiny_directory, budget, clip(width=320, height=240)).findings() == []


def test_a_floor_that_overrules_the_cap_is_a_finding(tiny_directory):
    # 1.05 × 67 is 70.35 tokens, and a clip of 10 : 7 takes all 70 of them.
    budget = BudgetSection(frames=8, max_tokens_per_frame=69, min_tokens_per_frame=67)
    result = audited(tiny_directory, budget, clip(width=1000, height=700))
    assert result.samples[0].limited_by == "min_tokens_per_frame"
    assert result.findings() == [
        "clip.mp4 at 0 s: max_tokens_per_frame 69 had no effect: 70 tokens per frame: the floor of 67 allows 70"
    ]


def test_a_floor_without_effect_is_a_finding(tiny_directory):
    budget = BudgetSection(frames=16, max_tokens_per_frame=196, min_tokens_per_frame=128)
    (found,) = audited(tiny_directory, budget, clip(width=96, height=96)).findings()
    assert found == "clip.mp4 at 0 s: min_tokens_per_frame 128 had no effect: 9 tokens per frame"


def test_the_cap_means_one_frame_in_a_family_where_the_same_knob_counts_the_clip(tmp_path, tiny_processor):
    folder = processor_folder(tmp_path, "qwen2_5_vl", tiny_processor)
    budget = BudgetSection(frames=16, max_tokens_per_frame=128, min_tokens_per_frame=4)
    result = audited(folder, budget, clip(width=640, height=480))
    assert result.findings() == []
    # 640×480 would be 391 tokens of 28 pixels; capped at 128 a step, and not at 0.9 · 128 tokens over all eight steps.
    assert 8 * 100 < result.longest.tokens < 8 * 128 + 100


def test_frames_that_the_clip_does_not_have_are_a_note(tiny_directory):
    budget = replace(BUDGET, frames=32)
    result = audited(tiny_directory, budget, clip(width=96, height=96, frames=20, rate=2.0))
    assert result.findings() == []
    (note,) = result.notes()
    assert "only 17 different frames for 32" in note


def test_too_long_samples_are_one_finding(tiny_directory):
    whole = audited(tiny_directory, BUDGET, clip(width=96, height=96))
    longest = whole.longest.tokens
    short = audited(tiny_directory, BUDGET, clip(width=96, height=96), max_tokens=longest - 3)
    assert whole.over_length == ()
    assert short.findings() == [f"clip.mp4 at 0 s: {longest} tokens, 3 over the limit of {longest - 3}"]


def test_what_the_processor_refuses_names_the_sample(tiny_directory):
    with pytest.raises(CourseError, match=r"clip\.mp4 at 0 s: .* more than 200 times longer"):
        audited(tiny_directory, BUDGET, clip(width=9000, height=32))


def test_a_wrong_figure_would_be_found_by_the_built_samples(tiny_processor, tiny_directory):
    """The check by the installed library fails when the arithmetic does."""
    result = audited(tiny_directory, BUDGET, clip(width=96, height=96), processor=tiny_processor)
    right, model = result.samples[0], effective_model(str(tiny_directory), BUDGET, tiny_processor)
    check = {"windows": [window()], "processor": tiny_processor, "budget": BUDGET, "times_in_text": True}
    assert check_built([right], **check) == []
    assert check_sizes([right], model, tiny_processor) == ([], 1)
    (found,) = check_built([replace(right, text_tokens=right.text_tokens + 1)], **check)
    assert f"{right.tokens} tokens with {right.supervised_tokens} supervised were built" in found
    shifted = tuple(second + 1 for second in right.timestamps_seconds)
    (found,) = check_built([replace(right, timestamps_seconds=shifted)], **check)
    assert "all 8 times are off by about -1.0 s" in found
    (found,), _ = check_sizes([replace(right, grid=(8, 4, 4))], model, tiny_processor)
    assert "makes grid [8, 2, 2] of 16 frames of 96×96, planned [8, 4, 4]" in found


def test_without_the_models_folder_the_text_is_estimated(tiny_directory):
    budget = BudgetSection(frames=16, max_tokens_per_frame=196, min_tokens_per_frame=4)
    auditor = SampleAuditor(effective_model("Qwen3-VL-4B-Instruct", budget), budget)
    sample = auditor.audit(window(), clip(width=640, height=1152))
    known = audited(tiny_directory, budget, clip(width=640, height=1152)).samples[0]
    assert sample.exact is False
    assert (sample.grid, sample.visual_tokens) == (known.grid, known.visual_tokens)
    assert sample.timestamps_seconds == known.timestamps_seconds
    assert abs(sample.text_tokens - known.text_tokens) < 40


@pytest.fixture
def small_run(tmp_path, example_folder):
    """Three shipped clips in a folder of their own, with a run config beside them."""
    (tmp_path / "clips").mkdir()
    lines = (example_folder / "data" / "train.jsonl").read_text().splitlines()[:3]
    for line in lines:
        name = json.loads(line)["video"]
        shutil.copy(example_folder / "data" / name, tmp_path / name)
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    text = (example_folder / "run_cpu.yaml").read_text()
    text = text.replace("checkpoints/tiny-qwen3-vl", str(example_folder / "checkpoints" / "tiny-qwen3-vl"))
    text = text.replace("data/train.jsonl", "train.jsonl").replace("  held_out: data/held_out.jsonl\n", "")
    text = text.replace("stride_seconds: 2", "stride_seconds: 8").replace("batch_size: 16", "batch_size: 4")
    text = text.replace("ds_config_cpu.json", str(example_folder / "ds_config_cpu.json"))
    (tmp_path / "run.yaml").write_text(text.replace("../../runs/video_text", "out"))
    return tmp_path / "run.yaml"


def course(*arguments):
    return CliRunner().invoke(app, ["tokens", *map(str, arguments)])


def test_the_command_prints_the_audit_and_ends_with_0(small_run):
    result = course(small_run, "--json")
    assert result.exit_code == 0, result.stdout
    record = json.loads(result.stdout)
    assert record["findings"] == []
    assert record["requested"] == {"frames": 16, "max_tokens_per_frame": 1, "min_tokens_per_frame": 1}
    assert record["effective"]["padded_frames"] == 16
    assert record["max_tokens"] == 4096
    assert record["held_out"] is None
    sample = record["train"]["per_sample"][0]
    assert (sample["grid"], sample["visual_tokens"]) == ([8, 2, 2], 8)
    assert sample["tokens"] == sample["visual_tokens"] + sample["text_tokens"]
    assert len(sample["timestamps_seconds"]) == 8
    assert record["coverage"]["samples"] == record["train"]["samples"] == len(record["train"]["per_sample"])


def test_a_smoke_run_is_its_first_window_repeated(small_run):
    settings = {"train.smoke": True, "train.gradient_accumulation_steps": 3}
    audit = audit_run(load_run_config(small_run, settings))
    assert len(audit.train.samples) == audit.coverage.samples == 2 * 4 * 3
    assert len(set(audit.train.lengths)) == len(audit.train.histogram()) == 1


def test_people_get_a_histogram(small_run):
    result = course(small_run)
    assert result.exit_code == 0
    for part in ("Training samples by tokens", "█", "longest sample", "16 frames"):
        assert part in result.stdout


@pytest.mark.parametrize(
    ("arguments", "finding"),
    [
        (("--max-length", 100), "over the limit of 100"),
        (("--set", "ranks=40", "--set", "train.micro_batch_size=64"), "rank"),
        (("--set", "budget.min_tokens_per_frame=64", "--set", "budget.max_tokens_per_frame=64"), "had no effect"),
    ],
)
def test_what_must_stop_a_run_ends_with_1(small_run, arguments, finding):
    result = course(small_run, "--json", *arguments)
    assert result.exit_code == 1, result.stdout[-500:]
    assert any(finding in line for line in json.loads(result.stdout)["findings"])


def test_labels_that_would_be_wrong_end_with_1(small_run, monkeypatch):
    """Answers without an end: the labels of really built samples are what is checked."""
    monkeypatch.setattr("course_lib.data.grounding.answer_text", lambda processor, answer: answer)
    result = course(small_run, "--json")
    assert result.exit_code == 1
    assert any("no token ends the answer" in line for line in json.loads(result.stdout)["findings"])


@pytest.mark.parametrize(("policy", "code"), [("skip", 0), ("stop", 1)])
def test_a_broken_clip_is_left_out_with_its_reason(small_run, policy, code):
    names = sorted((small_run.parent / "clips").iterdir())
    names[0].write_bytes(names[0].read_bytes()[:2000])
    names[1].unlink()
    result = course(small_run, "--json", "--set", f"data.on_bad_file={policy}", "--set", "train.micro_batch_size=2")
    assert result.exit_code == code, result.stdout[-500:]
    record = json.loads(result.stdout)
    assert record["train"]["clips"] == 1
    reasons = {Path(entry["clip"]).name: entry["reason"] for entry in record["train"]["left_out"]}
    assert len(reasons) == 2
    assert sum("left out" in line for line in record["notes" if policy == "skip" else "findings"]) == 2


def test_no_clip_left_is_one_line(small_run):
    for name in (small_run.parent / "clips").iterdir():
        name.write_bytes(b"no video")
    result = course(small_run, "--set", "data.on_bad_file=skip")
    assert isinstance(result.exception, CourseError)
    assert (result.exception.exit_code, "no clip is left of 3" in str(result.exception)) == (1, True)


def test_a_clip_shorter_than_its_annotation_is_left_out(example_folder):
    path = example_folder / "data" / "clips" / "train_000.mp4"
    infos = read_infos([path, path])
    made = [
        Annotation(video=path, duration_seconds=seconds, question="?", events=()) for seconds in (48.0, 48.09, 48.2)
    ]
    kept, left_out = usable(made, infos)
    assert [annotation.duration_seconds for annotation in kept] == [48.0, 48.09]
    assert "its annotation says 48.20 s" in left_out[0]["reason"]


def test_headers_are_those_of_the_frame_reader(example_folder):
    from course_lib.media.video import FrameReader

    path = example_folder / "data" / "clips" / "train_001.mp4"
    read = read_infos([path])[path]
    with FrameReader() as reader:
        info = reader.info(path)
    assert (read.width, read.height, read.frames) == (info.width, info.height, info.frames)
    assert read.timestamps_seconds.tolist() == info.timestamps_seconds.tolist()


@pytest.mark.parametrize("arguments", [("--frames", 4), ("--knob", "max_pixels=3"), ("--curve",)])
def test_options_of_a_clip_do_not_go_with_a_run(small_run, arguments):
    result = course(small_run, *arguments)
    assert isinstance(result.exception, CourseError)
    assert result.exception.exit_code == 2


def test_options_of_a_run_do_not_go_with_a_clip(tmp_path):
    for arguments in (("--model", "qwen3-vl-4b", "--set", "ranks=3"), ()):
        result = course(tmp_path / "clip.mp4", *arguments)
        assert isinstance(result.exception, CourseError)
        assert result.exception.exit_code == 2


def test_an_empty_set_of_samples_has_no_findings():
    assert SetAudit(samples=()).findings() == []
