"""Parts of the video_text task that a rank or the proof relies on."""

import json
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.config.run_config import load_run_config
from course_lib.errors import FINDING, CourseError
from course_lib.models.language_lora import add_language_lora
from course_lib.tasks import video_text
from course_lib.tasks.video_text_proof import CUT, NEW_TOKENS, generate, load_adapter, other_clip, read_answer
from course_lib.train.adapter_files import WEIGHTS_FILE, save_adapter
from course_lib.train.session import Session


def session(ranks, said):
    class Quiet(Session):
        def say(self, text):
            said.append(text)

    return Quiet(rank=0, ranks=ranks, cpu=True, environment={"python": "3"})


@pytest.fixture(scope="module")
def one_sample(new_small_run):
    """A run with one clip and one window: one sample."""
    run = new_small_run("one_sample")
    run.annotations["train"] = run.annotations["train"][:1]
    run.values["data"]["window_seconds"] = run.values["data"]["stride_seconds"] = 48
    return run.write()


def test_one_sample_for_two_ranks_is_refused_by_every_rank(one_sample, tiny_processor):
    with pytest.raises(CourseError) as caught:
        video_text._training_set(load_run_config(one_sample), session(2, []), tiny_processor)
    assert caught.value.exit_code == FINDING
    line = caught.value.line()
    assert "1 sample for 2 ranks × micro batch 2" in line
    assert "train.smoke" in line


def test_smoke_repeats_one_sample_until_every_rank_has_its_batch(one_sample, tiny_processor):
    said = []
    config = load_run_config(one_sample, {"train.smoke": True, "train.gradient_accumulation_steps": 3})
    dataset = video_text._training_set(config, session(2, said), tiny_processor)
    dataset.reader.close()
    assert len(dataset) == 2 * 2 * 3
    assert len(set(dataset.windows)) == 1
    assert any("teaches nothing" in line for line in said)
    assert any("12 samples on 2 ranks" in line for line in said)


def test_provenance_hashes_what_was_read_and_keeps_secrets_out(new_small_run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_a_secret_that_nobody_wrote_down")
    run = new_small_run("provenance")
    clip = run.folder / "clip.mp4"
    clip.write_bytes((run.example / "data" / "clips" / "train_000.mp4").read_bytes())
    run.annotations["train"] = run.annotations["train"][:1]
    run.annotations["train"][0]["video"] = "clip.mp4"
    config = load_run_config(run.write())
    record = video_text.provenance(config, session(2, []))
    assert "secret" not in json.dumps(record)
    assert record["ranks"] == 2
    assert record["run_config"]["train"]["seed"] == 0
    clip.write_bytes(clip.read_bytes() + b"x")
    again = video_text.provenance(config, session(2, []))
    assert again["annotations_sha256"] == record["annotations_sha256"]
    assert again["clips_sha256"] != record["clips_sha256"]


def test_a_fresh_load_finds_every_tensor_and_a_damaged_file_is_one_line(new_small_run, tiny_model):
    config = load_run_config(new_small_run("load_adapter").write())
    folder = config.output / video_text.ADAPTER
    with pytest.raises(CourseError, match="holds no adapter"):
        load_adapter(config, "cpu")
    model = add_language_lora(tiny_model.to(torch.bfloat16), config.lora)
    for p in model.parameters():
        if p.requires_grad:
            p.data = torch.randn_like(p)
    held = save_adapter(model, folder, {})
    _, equal = load_adapter(config, "cpu")
    assert equal == len(held) == 4 * 7 * 2
    weights = (folder / WEIGHTS_FILE).read_bytes()
    (folder / WEIGHTS_FILE).write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CourseError, match=r"adapter_model\.safetensors: cannot be read") as caught:
        load_adapter(config, "cpu")
    assert caught.value.exit_code == FINDING


def test_a_base_model_cut_short_is_one_line(tmp_path, tiny_directory):
    for name in ("config.json", "model.safetensors"):
        data = (tiny_directory / name).read_bytes()
        (tmp_path / name).write_bytes(data if name == "config.json" else data[: len(data) // 2])
    with pytest.raises(CourseError, match="cannot be loaded") as caught:
        video_text.load_base(tmp_path)
    assert caught.value.line().startswith(str(tmp_path))
    with pytest.raises(CourseError, match=r"no config\.json"):
        video_text.load_base(tmp_path / "nowhere")


@given(st.lists(st.integers(1, 6), min_size=2, max_size=6))
def test_the_shuffled_control_takes_frames_of_another_clip_each_used_once(windows_per_clip):
    videos = [clip for clip, count in enumerate(windows_per_clip) for _ in range(count)]
    try:
        partners = other_clip(videos)
    except CourseError:
        # Only where it cannot be done by a turn: one clip holds more than half of all windows.
        assert max(windows_per_clip) > len(videos) / 2
        return
    assert sorted(partners) == list(range(len(videos)))
    assert all(videos[index] != videos[partner] for index, partner in enumerate(partners))


def test_windows_of_one_clip_cannot_be_shuffled():
    with pytest.raises(CourseError, match="Hold out more clips"):
        other_clip(["a"] * 5)


def test_an_answer_that_never_ended_is_marked_and_one_that_did_is_cut_at_its_end(tiny_processor):
    tokenizer = tiny_processor.tokenizer

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    rows = [ids("1.0-2.0<|im_end|>9.9"), ids("3.0-4.0, 3.0-4.0, ")]
    width = max(map(len, rows))
    answers = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in rows])
    asked = []

    def fake_generate(**batch):
        asked.append(batch)
        return torch.cat([batch["input_ids"], answers], dim=1)

    model = types.SimpleNamespace(device="cpu", dtype=torch.float32, generate=fake_generate)
    prompt = {
        "input_ids": torch.tensor([5, 6, 7]),
        "attention_mask": torch.ones(3, dtype=torch.long),
        "labels": torch.tensor([-100, -100, 7]),
        "prompt_tokens": 2,
        "index": 0,
        "pixel_values_videos": torch.zeros(1, 2),
        "video_grid_thw": torch.tensor([[1, 1, 1]]),
    }
    texts = generate(model, lambda _: prompt, 2, tiny_processor, 2)
    assert texts == ["1.0-2.0", "3.0-4.0, 3.0-4.0, " + CUT]
    assert "labels" not in asked[0]
    assert asked[0]["input_ids"].tolist() == [[5, 6]] * 2
    assert asked[0]["max_new_tokens"] == NEW_TOKENS
    assert asked[0]["do_sample"] is False
    window = types.SimpleNamespace(seconds=8.0)
    assert read_answer(texts[0], window).status == "ok"
    assert read_answer("1.0-2.0" + CUT, window).status == "truncated"
