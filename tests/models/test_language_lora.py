"""LoRA stands on the language model alone, and a name that matches nothing is said."""

import pytest
import torch

from course_lib.config.run_config import LoraSection
from course_lib.errors import CourseError
from course_lib.models.language_lora import add_language_lora, count_trainable, language_targets


def test_adapters_are_on_every_named_layer_of_the_language_model_and_nowhere_else(tiny_model):
    layers = tiny_model.config.text_config.num_hidden_layers
    model = add_language_lora(tiny_model, LoraSection(r=4))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert all(".lora_" in name and ".language_model.layers." in name for name in trained)
    assert not any("visual" in name for name in trained)
    assert len(trained) == layers * 7 * 2
    assert count_trainable(model).modules == layers * 7


def test_a_name_that_the_vision_part_has_too_is_taken_in_the_language_model_only(tiny_model):
    # Both parts have a down-projection; the vision encoder alone has `qkv`.
    pattern = language_targets(tiny_model, ("down_proj",))
    assert pattern.count("|") + 1 == tiny_model.config.text_config.num_hidden_layers
    with pytest.raises(CourseError, match="'qkv'"):
        language_targets(tiny_model, ("qkv",))


def test_the_targets_match_whole_names():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.proj, self.q_proj = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    assert language_targets(Two(), ("proj",)) == "proj"


def test_a_target_that_is_not_there_is_refused_with_its_neighbours(tiny_model):
    with pytest.raises(CourseError) as caught:
        add_language_lora(tiny_model, LoraSection(targets=("q_proj", "k_prj")))
    line = caught.value.line()
    assert "'k_prj'" in line
    assert "qwen3_vl" in line
    assert "Nearest: k_proj" in line


def test_r_alpha_and_dropout_arrive_in_peft(tiny_model):
    model = add_language_lora(tiny_model, LoraSection(r=3, alpha=12, dropout=0.25, targets=("q_proj",)))
    layer = model.base_model.model.model.language_model.layers[0].self_attn.q_proj
    assert layer.r["default"] == 3
    assert layer.scaling["default"] == 12 / 3
    assert layer.lora_dropout["default"].p == 0.25


def test_counts_are_elements_and_whole_ones_where_a_rank_holds_a_shard(tiny_model):
    base = sum(p.numel() for p in tiny_model.parameters())
    model = add_language_lora(tiny_model, LoraSection(r=4, targets=("q_proj",)))
    # q_proj of the tiny model: 128 → 4 heads × 32.
    expected = tiny_model.config.text_config.num_hidden_layers * 4 * (128 + 128)
    count = count_trainable(model)
    assert (count.trainable, count.frozen) == (expected, base)
    assert f"{expected:,} of {base + expected:,}" in count.describe()
    for p in model.parameters():
        p.ds_numel, p.data = p.numel(), torch.empty(0)
    assert count_trainable(model) == count
