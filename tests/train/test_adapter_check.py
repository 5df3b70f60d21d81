"""course verify adapter: each way in which an adapter can be worthless is named; a good one passes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from course_lib.errors import CourseError
from course_lib.tasks.video_text import load_base
from course_lib.train.adapter_check import WEIGHTS, check_adapter
from course_lib.train.adapter_files import save_adapter

BASE = Path(__file__).parents[2] / "examples" / "video_text" / "checkpoints" / "tiny-qwen3-vl"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=r".*language_model.*\.(q_proj|v_proj)", init_lora_weights=False)
    folder = tmp_path_factory.mktemp("run") / "adapter"
    save_adapter(get_peft_model(load_base(BASE), config), folder, {})
    return folder


@pytest.fixture
def adapter(good, tmp_path):
    return Path(shutil.copytree(good, tmp_path / "adapter"))


def change(folder, edit):
    tensors = load_file(folder / WEIGHTS)
    save_file(edit(tensors), folder / WEIGHTS)


def codes(folder, base=None):
    return [finding.code for finding in check_adapter(folder, base).findings]


def test_a_good_adapter_passes_and_every_tensor_finds_its_place(adapter):
    report = check_adapter(adapter, BASE)
    assert report.findings == ()
    assert report.tensors == report.placed == report.held == 2 * 2 * 4


def test_tensors_without_elements_are_found(adapter):
    change(adapter, lambda tensors: {name: torch.zeros(0) for name in tensors})
    assert "empty" in codes(adapter)


def test_a_prefix_that_peft_would_ignore_is_found(adapter):
    change(adapter, lambda tensors: {name.removeprefix("base_model."): tensor for name, tensor in tensors.items()})
    assert "prefix" in codes(adapter)


def test_an_adapter_that_never_trained_is_found(adapter):
    change(adapter, lambda tensors: {n: t * 0 if ".lora_B." in n else t for n, t in tensors.items()})
    assert "untrained" in codes(adapter)


def test_nan_is_found(adapter):
    change(
        adapter,
        lambda tensors: {n: t / 0 if "layers.0.self_attn.q_proj.lora_A" in n else t for n, t in tensors.items()},
    )
    assert "not_finite" in codes(adapter)


def test_one_changed_element_is_found(adapter):
    def edit(tensors):
        name = sorted(tensors)[3]
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1)[0] += 1
        return tensors

    change(adapter, edit)
    assert codes(adapter) == ["changed"]


def test_layers_that_the_base_does_not_have_are_found(adapter):
    (adapter / "tensors_held.json").unlink()
    change(adapter, lambda tensors: {name.replace("layers.3.", "layers.9."): t for name, t in tensors.items()})
    assert codes(adapter, BASE) == ["unused"]


def test_a_module_that_should_have_been_saved_is_missed(adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"modules_to_save": ["lm_head"]}))
    assert "module_missing" in codes(adapter)


def test_a_config_of_another_run_is_found(adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"r": 8}))
    assert "rank" in codes(adapter)


@pytest.mark.parametrize("harm", ["truncated", "missing", "pickle"])
def test_files_that_cannot_be_read_are_one_line(adapter, harm):
    weights = adapter / WEIGHTS
    data = weights.read_bytes()
    weights.unlink()
    if harm == "truncated":
        weights.write_bytes(data[: len(data) // 2])
    elif harm == "pickle":
        (adapter / "adapter_model.bin").write_bytes(data)
    with pytest.raises(CourseError) as caught:
        check_adapter(adapter)
    assert "\n" not in caught.value.line()
    assert {"truncated": "damaged", "missing": "has no", "pickle": "Only safetensors"}[harm] in caught.value.line()
