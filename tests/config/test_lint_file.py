"""Files as DeepSpeed's reader and the Trainer's reader see them."""

import pytest

from course_lib.config.ds_file import read_ds_config
from course_lib.config.lint_request import from_case, from_file, read_arguments
from course_lib.errors import CourseError


def written(tmp_path, text, name="ds.json"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_key_written_twice_is_found_at_its_depth(tmp_path):
    path = written(tmp_path, '{"zero_optimization": {"stage": 2, "stage": 3}, "a": 1, "a": 2}')
    config, findings = read_ds_config(path, framework="trainer")
    assert config["zero_optimization"]["stage"] == 3
    assert {(f.code, f.key) for f in findings} == {("duplicate_key", "a"), ("duplicate_key", "zero_optimization.stage")}


def test_deepspeed_reads_comments_and_the_trainer_does_not(tmp_path):
    path = written(tmp_path, '{\n # a comment\n "train_batch_size": 4,\n}')
    config, findings = read_ds_config(path, framework="raw")
    assert (dict(config), findings) == ({"train_batch_size": 4}, [])
    _, findings = read_ds_config(path, framework="trainer")
    assert [(f.code, f.level) for f in findings] == [("refused", "error")]
    assert "line 2" in findings[0].message


@pytest.mark.parametrize("text", ["[1]", "3", '{"a": }', "", "{'a': 1"])
def test_what_is_no_mapping_is_an_error_that_names_the_file(tmp_path, text):
    path = written(tmp_path, text)
    with pytest.raises(CourseError, match=r"ds\.json"):
        read_ds_config(path, framework="trainer")


def test_arguments_in_yaml_read_1e_4_as_a_number(tmp_path):
    path = written(tmp_path, "learning_rate: 1e-4\nlr_scheduler_type: cosine\nmax_grad_norm: 0.5\n", "args.yaml")
    assert read_arguments(path) == {"learning_rate": 1e-4, "lr_scheduler_type": "cosine", "max_grad_norm": 0.5}


@pytest.mark.parametrize("text", ["- a\n", "a: [\n", "just text\n"])
def test_arguments_that_are_no_mapping_are_an_error(tmp_path, text):
    with pytest.raises(CourseError, match=r"args\.yaml"):
        read_arguments(written(tmp_path, text, "args.yaml"))


def test_a_case_without_a_ds_config_is_an_error(tmp_path):
    with pytest.raises(CourseError, match="ds_config"):
        from_case(written(tmp_path, '{"framework": "raw"}'))


def test_a_run_config_brings_its_ranks_arguments_model_and_lora(tmp_path):
    written(tmp_path, '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}')
    run = written(
        tmp_path,
        "task: text\nmodel: some-model\ndata: {train: data}\noutput: out\nds_config: ds.json\nranks: 3\n"
        "lora: {r: 4, targets: [q_proj]}\ntrain: {max_grad_norm: 0.25, micro_batch_size: 6}\n",
        "run.yaml",
    )
    request = from_file(run)
    assert request.ds_path == tmp_path / "ds.json"
    assert (request.world_size, request.model) == (3, "some-model")
    assert request.training_arguments["max_grad_norm"] == 0.25
    assert request.training_arguments["per_device_train_batch_size"] == 6
    assert request.lora == {"r": 4, "lora_alpha": 32, "target_modules": ["q_proj"]}
