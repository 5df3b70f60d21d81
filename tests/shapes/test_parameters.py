"""Parameter counts, LoRA targets and layer stacks, read off transformers' own classes."""

import pytest

from course_lib.catalog import catalogue, find_entry
from course_lib.errors import CourseError
from course_lib.shapes.build import build_model
from course_lib.shapes.config import load_config, text_config
from course_lib.shapes.parameters import read_shape
from course_lib.shapes.stacks import plan_stack, shorten

pytestmark = pytest.mark.slow

PUBLISHED = {
    name: entry.checkpoint_parameters
    for name, entry in catalogue().items()
    if entry.checkpoint_parameters and name != "longcat-flash-560b"
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SEVEN = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_count_is_the_published_one(name):
    shape = read_shape(name)
    assert shape.total == PUBLISHED[name]
    assert sum(shape.by_part().values()) == shape.total


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-vl-2b", "qwen3.5-4b", "qwen3-30b-a3b", "qwen2.5-omni-7b"])
def test_the_short_model_stands_for_the_whole_one(name):
    whole = [(n, p.numel()) for n, p in build_model(load_config(name)).named_parameters()]
    assert [(p.name, p.numel) for p in read_shape(name).parameters] == whole


def test_longcat_has_two_counts():
    # 28 layers × (768 - 512) identity rows × 2·2048·6144 are allocated by transformers and not in the checkpoint.
    shape = read_shape("longcat-flash-560b")
    rows = 28 * 256 * 2 * 2048 * 6144
    assert shape.total - rows == pytest.approx(find_entry("longcat-flash-560b").checkpoint_parameters, rel=1e-3)
    assert shape.by_part()["experts"] == 28 * (768 * 2 + 512) * 2048 * 6144


@pytest.mark.parametrize(("targets", "millions"), [(ATTENTION, 65.5), (SEVEN, 207.1)])
def test_lora_on_70b_is_65_million_on_attention_and_207_million_on_all_seven(targets, millions):
    shape = read_shape("llama-3.3-70b", lora={"r": 16, "lora_alpha": 32, "target_modules": targets})
    assert shape.trainable / 1e6 == pytest.approx(millions, abs=0.1)
    assert shape.by_part()["adapters"] == shape.trainable


def test_tied_weights_are_counted_once():
    shape = read_shape("llama-3.2-1b")
    assert shape.tied == ("lm_head.weight",)
    assert "lm_head" not in shape.by_part()


def test_hub_ids_and_letter_case_find_the_entry():
    assert find_entry("Qwen/Qwen3-VL-4B-Instruct").name == "qwen3-vl-4b"
    assert find_entry("QWEN3-VL-4B").name == "qwen3-vl-4b"


def test_every_entry_says_where_it_is_from():
    for entry in catalogue().values():
        assert entry.source
        assert entry.licence
        assert entry.date


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(CourseError, match=r"unknown model 'qwen3-vl-5b'.*qwen3-vl-4b"):
        load_config("qwen3-vl-5b")


def test_targets_that_match_nothing_name_the_nearest():
    with pytest.raises(CourseError, match="no parameter matches LoRA target") as caught:
        read_shape("longcat-flash-560b", lora={"r": 8, "target_modules": ["q_proj", "k_proj"]})
    assert "q_a_proj" in caught.value.line()
    assert "kv_b_proj" in caught.value.line()


def test_a_config_without_a_causal_lm_is_refused():
    with pytest.raises(CourseError, match="no causal language model"):
        read_shape({"model_type": "vit", "config": {}})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"config": {}}, "'model_type' is missing"),
        ({"model_type": "lama", "config": {}}, r"unknown model_type 'lama'.*llama"),
        ({"model_type": "llama", "config": {"hidden_size": -4}}, "negative"),
    ],
)
def test_a_bad_config_is_one_line(model, message):
    with pytest.raises(CourseError, match=message) as caught:
        read_shape(model)
    assert "\n" not in caught.value.line()


def test_a_directory_with_a_config_is_read(tmp_path):
    config = load_config("llama-3.2-1b")
    config.save_pretrained(tmp_path)
    assert read_shape(str(tmp_path)).total == PUBLISHED["llama-3.2-1b"]


def test_first_and_last_layers_stand_for_themselves():
    stack = plan_stack("text", ["a"] * 80, whole_prefix=True)
    assert stack.chosen == (0, 1, 79)
    assert stack.counts() == (1, 78, 1)


def test_layers_before_the_last_new_kind_stand_for_themselves():
    stack = plan_stack("text", ["lin", "lin", "lin", "full"] * 8, whole_prefix=True)
    assert stack.chosen[:4] == (0, 1, 2, 3)
    assert sum(stack.counts()) == 32


def test_shortening_keeps_dense_layers_dense():
    config = load_config(
        {"model_type": "qwen3_moe", "config": {"num_hidden_layers": 8, "mlp_only_layers": [0, 3], "num_experts": 4}}
    )
    short, stacks = shorten(config)
    kept = [real for real in stacks[0].chosen if real in (0, 3)]
    assert len(text_config(short).mlp_only_layers) == len(kept)
