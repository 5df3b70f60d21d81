"""An adapter on disk is what the ranks held, or it is said what is not."""

import errno
import hashlib
import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from course_lib.errors import FINDING, CourseError
from course_lib.train.adapter_files import (
    HELD_FILE,
    WEIGHTS_FILE,
    compare_with_held,
    gather_trainable,
    names_in_file,
    save_adapter,
    saved_name,
    tensor_record,
)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.v_proj = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.v_proj(self.q_proj(x))


def trained(dtype=torch.float32, r=2):
    """A peft model whose adapter has moved from where it started."""
    import peft

    model = peft.get_peft_model(Two(), peft.LoraConfig(r=r, target_modules=["q_proj", "v_proj"]))
    for p in model.parameters():
        if p.requires_grad:
            p.data = torch.randn_like(p).to(dtype)
    return model


def fresh(folder):
    """Trainable parameters by name of base + adapter, as a new process loads them."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(Two(), folder, is_trainable=True)
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@pytest.fixture
def folder(tmp_path):
    save_adapter(trained(), tmp_path / "adapter", {"provenance": {"ranks": 1}})
    return tmp_path / "adapter"


def refusal(folder, loaded):
    with pytest.raises(CourseError) as caught:
        compare_with_held(folder, loaded)
    assert caught.value.exit_code == FINDING
    return caught.value.line()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_tensor_comes_back_bit_for_bit(tmp_path, dtype):
    model = trained(dtype)
    held = save_adapter(model, tmp_path / "adapter", {"provenance": {"ranks": 1}})
    loaded = fresh(tmp_path / "adapter")
    assert len(held) == compare_with_held(tmp_path / "adapter", loaded) == 4
    for name, p in model.named_parameters():
        if p.requires_grad:
            assert torch.equal(loaded[name].to(dtype), p)


def test_the_folder_holds_adapters_alone_and_what_was_put_beside_them(folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["adapter_config.json", HELD_FILE, "provenance.json", WEIGHTS_FILE]
    )
    names = names_in_file(folder)
    assert len(names) == 4
    assert all(".lora_" in name and "default" not in name for name in names)


def test_a_record_is_about_bytes_and_not_about_strides():
    tensor = torch.arange(6, dtype=torch.float32).view(2, 3)
    record = tensor_record(tensor)
    assert record == tensor_record(tensor.t().contiguous().t())
    assert record == {
        "dtype": "float32",
        "shape": [2, 3],
        "sha256": hashlib.sha256(tensor.numpy().tobytes()).hexdigest(),
    }
    assert record != tensor_record(tensor.view(3, 2))
    assert record != tensor_record(tensor.double())
    assert tensor_record(torch.tensor(0.0)) != tensor_record(torch.tensor(-0.0))


def test_only_what_trains_is_gathered_and_as_a_copy():
    model = trained()
    gathered = gather_trainable(model)
    assert set(gathered) == {name for name, p in model.named_parameters() if p.requires_grad}
    name, tensor = next(iter(gathered.items()))
    tensor.zero_()
    assert dict(model.named_parameters())[name].abs().sum() > 0


def test_one_changed_element_is_named(folder):
    loaded = fresh(folder)
    name = sorted(loaded)[2]
    loaded[name].data[1, 0] = torch.nextafter(loaded[name].data[1, 0], torch.tensor(9.0))
    line = refusal(folder, loaded)
    assert "1 of 4" in line
    assert f"{saved_name(name)} differs" in line


def test_a_tensor_that_was_not_loaded_and_one_that_was_not_held_are_named(folder):
    loaded = fresh(folder)
    name = sorted(loaded)[0]
    missing = {other: p for other, p in loaded.items() if other != name}
    assert f"{saved_name(name)} was held but not loaded" in refusal(folder, missing)
    assert "stranger.lora_A.weight was loaded but not held" in refusal(
        folder, loaded | {"stranger.lora_A.default.weight": torch.ones(2)}
    )


def test_another_shape_is_named_with_both(folder):
    loaded = fresh(folder)
    name = sorted(loaded)[0]
    loaded[name] = loaded[name].t()
    assert "([8, 2] against [2, 8])" in refusal(folder, loaded)


def rewrite(folder, change):
    tensors = load_file(folder / WEIGHTS_FILE)
    change(tensors)
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_missing_in_the_file_or_added_to_it_is_named_though_peft_passes_over_it(folder):
    names = sorted(names_in_file(folder))
    rewrite(folder, lambda tensors: tensors.pop(names[0]))
    assert f"{names[0]} was held but is not in the file" in refusal(folder, fresh(folder))
    rewrite(folder, lambda tensors: tensors.update({"a.stranger.lora_A.weight": torch.ones(1)}))
    assert "a.stranger.lora_A.weight is in the file but was not held" in refusal(folder, fresh(folder))


@pytest.mark.parametrize("kept", [0, 7, 300, -1])
def test_a_file_cut_short_is_one_line(folder, kept):
    path = folder / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CourseError, match=r"adapter_model\.safetensors: cannot be read") as caught:
        names_in_file(folder)
    assert caught.value.exit_code == FINDING


def test_a_folder_without_an_adapter_is_one_line(tmp_path):
    with pytest.raises(CourseError, match="holds no adapter"):
        names_in_file(tmp_path)


def test_tensors_of_no_size_are_refused_and_nothing_is_written(tmp_path):
    model = trained()
    for name, p in model.named_parameters():
        if "q_proj.lora_B" in name:
            p.data = torch.empty(0)
    with pytest.raises(CourseError, match=r"1 adapter tensors are empty, first .*q_proj\.lora_B"):
        save_adapter(model, tmp_path / "adapter", {})
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_which_nothing_trains_is_refused(tmp_path):
    with pytest.raises(CourseError, match="no trainable tensor"):
        save_adapter(trained().requires_grad_(False), tmp_path / "adapter", {})


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("when", ["weights", "records"])
def test_a_write_that_fails_leaves_the_old_adapter_whole(folder, monkeypatch, when):
    before = content(folder)
    model, full = trained(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*_, **__):
        raise full

    if when == "weights":
        monkeypatch.setattr(type(model), "save_pretrained", fail)
    else:
        monkeypatch.setattr("course_lib.files.os.fsync", fail)
    with pytest.raises(CourseError, match="No space left on device"):
        save_adapter(model, folder, {})
    assert content(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["adapter"]


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user cannot mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_leaves_the_old_adapter_whole_and_no_half_of_the_new_one(small_disk):
    folder = small_disk / "adapter"
    save_adapter(trained(), folder, {})
    before = content(folder)
    # 2 × 2 × 8 × 4,000 × 4 bytes: 1 MB, four times the disk.
    with pytest.raises(CourseError, match=r"disk/adapter: cannot write .*(No space left|os error 28)") as caught:
        save_adapter(trained(r=4000), folder, {})
    assert "\n" not in caught.value.line()
    assert content(folder) == before
    assert [path.name for path in small_disk.iterdir()] == ["adapter"]
    assert compare_with_held(folder, fresh(folder)) == 4


def test_the_records_are_json_that_another_process_can_read(folder):
    held = json.loads((folder / HELD_FILE).read_text())
    tensors = load_file(folder / WEIGHTS_FILE)
    assert held == {name: tensor_record(tensor) for name, tensor in tensors.items()}
