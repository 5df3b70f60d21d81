"""One YAML file that every command reads: what it means, and what it refuses."""

import copy
import dataclasses
import json

import pytest
import yaml

from course_lib.config.run_config import load_run_config
from course_lib.errors import CourseError

SMALLEST = {
    "task": "video_text",
    "model": "./base",
    "data": {"train": "a.jsonl"},
    "ds_config": "ds.json",
    "output": "o",
}


def write(folder, values):
    path = folder / "run.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values), encoding="utf-8")
    return path


def load(folder, changes=None, **overrides):
    """The smallest config with dotted `changes` written into the file, then read."""
    values = copy.deepcopy(SMALLEST)
    for dotted, value in (changes or {}).items():
        section = values
        *parents, last = dotted.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return load_run_config(write(folder, values), overrides)


def refusal(folder, changes):
    with pytest.raises(CourseError) as caught:
        load(folder, changes)
    line = caught.value.line()
    assert caught.value.exit_code == 2
    assert line.startswith(str(folder / "run.yaml"))
    return line


def test_what_is_not_written_has_its_default(tmp_path):
    config = load(tmp_path)
    assert (config.ranks, config.train.max_steps, config.lora.r, config.data.on_bad_file) == (2, 100, 16, "stop")
    assert config.train.loss == "supervised_positions"


def test_paths_are_relative_to_the_file_and_not_to_where_one_stands(tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "configs", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = load(folder, {"data.held_out": "../data/b.jsonl", "output": "/abs/out"})
    assert config.data.train == folder / "a.jsonl"
    assert config.data.held_out == tmp_path / "data" / "b.jsonl"
    assert config.ds_config == folder / "ds.json"
    assert str(config.output) == "/abs/out"
    assert config.model == str(folder / "base")
    assert config.source == folder / "run.yaml"


def test_a_model_is_a_directory_beside_the_file_or_a_catalogue_name(tmp_path):
    assert load(tmp_path, {"model": "qwen3-vl-4b"}).model == "qwen3-vl-4b"
    (tmp_path / "qwen3-vl-4b").mkdir()
    assert load(tmp_path, {"model": "qwen3-vl-4b"}).model == str(tmp_path / "qwen3-vl-4b")


@pytest.mark.parametrize("written", ["1e-4", "1.0e-4", "0.0001", "'1e-4'"])
def test_a_rate_is_a_number_however_yaml_reads_it(tmp_path, written):
    text = yaml.safe_dump(SMALLEST) + f"train:\n  learning_rate: {written}\n"
    rate = load_run_config(write(tmp_path, text)).train.learning_rate
    assert rate == 1e-4
    assert isinstance(rate, float)


def test_a_whole_number_may_be_written_with_a_point_or_an_exponent(tmp_path):
    steps = load(tmp_path, {"train.max_steps": "1e3", "train.seed": 4.0}).train
    assert (steps.max_steps, steps.seed) == (1000, 4)
    assert type(steps.seed) is int


def test_one_target_need_not_be_a_list(tmp_path):
    assert load(tmp_path, {"lora.targets": "q_proj"}).lora.targets == ("q_proj",)
    assert load(tmp_path, {"lora.targets": ["q_proj", "v_proj"]}).lora.targets == ("q_proj", "v_proj")


def test_overrides_win_over_the_file_and_make_missing_sections(tmp_path):
    config = load(tmp_path, {"train.max_steps": 5}, **{"train.max_steps": 7, "budget.frames": 3})
    assert (config.train.max_steps, config.budget.frames) == (7, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ouput": "x"}, "unknown key 'ouput'. Nearest: output"),
        ({"train.learning_rat": 1}, "unknown key 'train.learning_rat'. Nearest: learning_rate"),
        ({"lora.rank": 4}, "unknown key 'lora.rank'"),
        ({"train.max_steps": "many"}, "'train.max_steps: many' must be a whole number"),
        ({"train.max_steps": 1.5}, "'train.max_steps: 1.5' must be a whole number"),
        ({"train.max_steps": True}, "must be a whole number"),
        ({"train.max_steps": "inf"}, "must be a whole number"),
        ({"train.max_steps": None}, "must be a whole number"),
        ({"train.learning_rate": "fast"}, "must be a number"),
        ({"train.learning_rate": [1e-4]}, "must be a number"),
        ({"train.bf16": "yes please"}, "'train.bf16: yes please' must be true or false"),
        ({"train.bf16": 1}, "must be true or false"),
        ({"node": 3}, "'node: 3' must be a text"),
        ({"data.train": None}, "'data.train: None' must be a text"),
        ({"ds_config": ["a"]}, "'ds_config: ['a']' must be a text"),
        ({"task": "text_video"}, "One of: video_text, video_speech, text"),
        ({"train.loss": "all"}, "One of: supervised_positions, all_positions"),
        ({"train": 3}, "'train' must be a section"),
        ({"train": None}, "'train' must be a section"),
    ],
)
def test_what_a_key_cannot_be_is_one_line_with_key_and_value(tmp_path, changes, said):
    assert said in refusal(tmp_path, changes)


@pytest.mark.parametrize("key", ["task", "model", "data", "ds_config", "output"])
def test_a_required_key_that_is_missing_is_named(tmp_path, key):
    values = {name: value for name, value in SMALLEST.items() if name != key}
    with pytest.raises(CourseError, match=f"key '{key}' is missing"):
        load_run_config(write(tmp_path, values))


@pytest.mark.parametrize(
    "key",
    [
        "ranks",
        "lora.r",
        "lora.alpha",
        "budget.frames",
        "budget.max_tokens_per_frame",
        "budget.min_tokens_per_frame",
        "data.window_seconds",
        "data.stride_seconds",
        "train.micro_batch_size",
        "train.gradient_accumulation_steps",
        "train.max_steps",
        "train.logging_steps",
    ],
)
def test_what_must_be_above_zero_is(tmp_path, key):
    for value in (0, -1):
        assert f"'{key}: {value}" in refusal(tmp_path, {key: value})


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("key", ["data.window_seconds", "data.stride_seconds", "train.learning_rate"])
def test_a_number_that_is_none_is_refused(tmp_path, key, value):
    assert f"'{key}: {value}" in refusal(tmp_path, {key: value})


@pytest.mark.parametrize(
    "key",
    ["warmup_steps", "save_steps", "save_total_limit", "learning_rate", "weight_decay", "max_grad_norm"],
)
def test_what_must_not_be_negative_may_be_zero(tmp_path, key):
    load(tmp_path, {f"train.{key}": 0})
    assert f"'train.{key}: -1" in refusal(tmp_path, {f"train.{key}": -1})


def test_a_warm_up_as_long_as_the_run_is_refused(tmp_path):
    load(tmp_path, {"train.warmup_steps": 9, "train.max_steps": 10})
    said = refusal(tmp_path, {"train.warmup_steps": 10, "train.max_steps": 10})
    assert "warmup_steps 10 is not below max_steps 10" in said


def test_a_floor_above_the_cap_is_refused(tmp_path):
    assert "floor would win" in refusal(tmp_path, {"budget.min_tokens_per_frame": 9, "budget.max_tokens_per_frame": 8})


@pytest.mark.parametrize("dropout", [-0.1, 1, "nan"])
def test_a_dropout_that_leaves_nothing_is_refused(tmp_path, dropout):
    assert "'lora.dropout:" in refusal(tmp_path, {"lora.dropout": dropout})


def test_lora_without_targets_is_refused(tmp_path):
    assert "'lora.targets' names no module" in refusal(tmp_path, {"lora.targets": []})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a mapping"),
        ("- a\n- b\n", "must be a mapping"),
        ("task: [\nmodel: x\n", "not valid YAML in line"),
        ("task: \t x: y\n", "not valid YAML"),
        ("task: \x07\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_config_is_one_line(tmp_path, text, said):
    with pytest.raises(CourseError, match=said) as caught:
        load_run_config(write(tmp_path, text))
    assert str(tmp_path / "run.yaml") in caught.value.line()


def test_the_config_that_a_refusal_points_to_exists(tmp_path, example_folder):
    with pytest.raises(CourseError) as caught:
        load_run_config(write(tmp_path, ""))
    assert (example_folder.parents[1] / caught.value.fix.removeprefix("See ")).is_file()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CourseError, match=r"nowhere\.yaml: cannot be read"):
        load_run_config(tmp_path / "nowhere.yaml")


def test_an_override_cannot_go_through_a_value(tmp_path):
    with pytest.raises(CourseError, match=r"override 'model\.size' goes through 'model'"):
        load(tmp_path, None, **{"model.size": 3})


def test_a_config_cannot_be_changed_and_becomes_plain_json(tmp_path):
    config = load(tmp_path, {"lora.targets": ["q_proj"]})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.ranks = 3
    record = json.loads(json.dumps(config.as_record()))
    assert record["data"]["train"] == str(tmp_path / "a.jsonl")
    assert record["lora"]["targets"] == ["q_proj"]


def test_every_run_config_of_the_examples_is_read(example_folder):
    configs = sorted(example_folder.parent.glob("*/run_*.yaml"))
    assert example_folder / "run_cpu.yaml" in configs
    for path in configs:
        config = load_run_config(path)
        assert config.ds_config.is_file(), path
        assert config.data.train.is_file(), path
