"""A ds_config against a model's shape and LoRA. The bounds are held against real, tiny models."""

import json

import pytest

from course_lib.config.lint import examine, lint
from course_lib.config.model_facts import model_facts
from course_lib.errors import CourseError

LLAMA = {
    "model_type": "llama",
    "config": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "config": {**LLAMA["config"], "num_local_experts": 8}}
OLMOE = {**LLAMA, "model_type": "olmoe", "config": {**LLAMA["config"], "num_experts": 64}}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "config": {**LLAMA["config"], "n_routed_experts": 16, "moe_intermediate_size": 64, "q_lora_rank": 32},
}
LORA = {"r": 16, "target_modules": ["q_proj", "v_proj"]}


def zero(**fields):
    return {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": fields}


def raw(config, **use):
    return {f.key: f for f in lint(config, framework="raw", world_size=2, **use)}


BUCKET = "zero_optimization.reduce_bucket_size"


@pytest.mark.parametrize("model", [None, LLAMA])
def test_the_default_bucket_under_lora_is_a_note_that_says_bytes(model):
    note = raw(zero(stage=3), model=model, lora=LORA)[BUCKET]
    assert (note.code, note.level) == ("bucket_under_lora", "note")
    assert f"{500_000_000 * 2:,} B" in note.message


def test_stage_2_with_overlap_holds_two_buckets():
    note = raw(zero(stage=2, overlap_comm=True), lora=LORA)[BUCKET]
    assert f"{2 * 500_000_000 * 2:,} B" in note.message


def test_in_fp32_a_bucket_weighs_twice_as_much():
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    assert f"{500_000_000 * 4:,} B" in raw(config, lora=LORA)[BUCKET].message


@pytest.mark.parametrize(
    ("config", "lora"),
    [
        (zero(stage=3), None),
        (zero(stage=3, reduce_bucket_size=5_000_000), LORA),
        (zero(stage=0), LORA),
        (zero(stage=3, contiguous_gradients=False), LORA),
        # r = 256 on seven targets of an 8B model fills the bucket.
        (
            zero(stage=3),
            {"r": 256, "target_modules": [f"{n}_proj" for n in ("q", "k", "v", "o", "gate", "up", "down")]},
        ),
    ],
)
def test_a_bucket_that_is_small_absent_or_filled_is_no_note(config, lora):
    assert BUCKET not in raw(config, model=LLAMA, lora=lora)


def test_sub_group_size_under_lora_is_inert_and_only_then():
    key = "zero_optimization.sub_group_size"
    assert raw(zero(stage=3, sub_group_size=1e8), model=LLAMA, lora=LORA)[key].code == "no_effect_under_lora"
    assert key not in raw(zero(stage=3, sub_group_size=1e5), model=LLAMA, lora=LORA)
    assert key not in raw(zero(stage=3, sub_group_size=1e8), model=LLAMA)


LEAF = "zero_optimization.leaf_module"


def test_a_mixture_of_experts_without_a_leaf_module_is_a_warning():
    warning = raw(zero(stage=3), model=OLMOE)[LEAF]
    assert (warning.code, warning.level) == ("moe_without_leaf", "warning")


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (zero(stage=3), MIXTRAL),  # DeepSpeed's own default covers it
        (zero(stage=3), LLAMA),
        (zero(stage=2), OLMOE),
        (zero(stage=3, leaf_module={"classes": ["OlmoeSparseMoeBlock"]}), OLMOE),
        (zero(stage=3, leaf_module={"name_suffixes": ["mlp"]}), OLMOE),
    ],
)
def test_a_covered_or_dense_or_unsharded_model_needs_no_leaf_module(config, model):
    assert LEAF not in raw(config, model=model)


LIVE = "zero_optimization.stage3_max_live_parameters"


def test_a_parameter_above_max_live_is_told_and_is_a_warning_where_the_default_would_not_hold_it_either():
    embedding = 128256 * 4096
    assert raw(zero(stage=3, stage3_max_live_parameters=5e8), model=LLAMA)[LIVE].level == "note"
    assert LIVE not in raw(zero(stage=3, stage3_max_live_parameters=embedding), model=LLAMA)
    fused = {**OLMOE, "config": {**OLMOE["config"], "intermediate_size": 4096}}
    note = raw(zero(stage=3, leaf_module={"classes": ["OlmoeSparseMoeBlock"]}), model=fused)[LIVE]
    assert note.level == "note"
    assert raw(zero(stage=3, stage3_max_live_parameters=5e8), model=fused)[LIVE].level == "warning"
    assert f"{64 * 2 * 4096 * 4096:,}" in note.message


def test_lora_targets_are_looked_up_in_the_models_own_source():
    targets = {"r": 8, "target_modules": ["q_proj", "v_proj"]}
    missing = raw(zero(stage=2), model=DEEPSEEK, lora=targets)["lora.target_modules"]
    assert (missing.code, missing.level) == ("lora_target", "error")
    assert "q_a_proj" in missing.fix or "q_b_proj" in missing.fix
    some = {"r": 8, "target_modules": ["o_proj", "v_proj"]}
    assert raw(zero(stage=2), model=DEEPSEEK, lora=some)["lora.target_modules"].level == "warning"
    assert "lora.target_modules" not in raw(zero(stage=2), model=LLAMA, lora=targets)
    assert "lora.target_modules" not in raw(zero(stage=2), model=LLAMA, lora={"target_modules": "all-linear"})


def test_the_trainer_fills_the_buckets_from_the_model():
    config = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    config["zero_optimization"] = {"stage": 3, "reduce_bucket_size": "auto"}
    assert examine(config, world_size=2, model=LLAMA).resolved[BUCKET].value == 4096**2


def test_a_small_auto_bucket_with_overlap_at_stage_2_is_the_nan_prone_one():
    config = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    config["zero_optimization"] = {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": True}
    assert lint(config, world_size=2) == []
    found = {f.key: f.code for f in lint(config, world_size=2, model=LLAMA)}
    assert found == {"zero_optimization.overlap_comm": "nan_prone_overlap"}


def test_an_unknown_model_is_said_and_the_rest_is_checked():
    report = examine({**zero(stage=3), "amp": {}}, framework="raw", world_size=2, model="no-such-model")
    assert [f.key for f in report.findings] == ["amp"]
    assert any("no-such-model" in line for line in report.not_checked)


def test_a_directory_that_is_not_here_yet_is_known_by_its_hub_name():
    assert model_facts("/nowhere/models/Qwen3-VL-4B-Instruct").model_type == "qwen3_vl"
    with pytest.raises(CourseError, match="no-such-model"):
        model_facts("/nowhere/no-such-model")


def test_a_directory_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **LLAMA["config"]}))
    assert model_facts(tmp_path) == model_facts(str(tmp_path / "config.json"))
    assert model_facts(tmp_path).largest_parameter == 128256 * 4096
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CourseError, match="model_type"):
        model_facts(tmp_path)


TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 200,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "extra"),
    [
        ("llama", {}),
        ("llama", {"vocab_size": 20}),
        ("mixtral", {"num_local_experts": 4}),
        ("qwen3_moe", {"num_experts": 6, "moe_intermediate_size": 40}),
        ("olmoe", {"num_experts": 5}),
    ],
)
def test_the_largest_parameter_is_that_of_the_real_model(model_type, extra):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {**TINY, **extra}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **config))
    largest = max(p.numel() for p in model.parameters())
    assert model_facts({"model_type": model_type, "config": config}).largest_parameter == largest


@pytest.mark.slow
@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"]])
@pytest.mark.parametrize("r", [1, 8])
def test_the_bound_on_adapters_is_above_what_peft_makes(r, targets):
    import peft
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **TINY))
    lora = {"r": r, "target_modules": targets}
    made = peft.get_peft_model(model, peft.LoraConfig(**lora))
    trainable = sum(p.numel() for p in made.parameters() if p.requires_grad)
    bound = model_facts({"model_type": "llama", "config": TINY}).adapters_at_most(lora)
    assert trainable <= bound <= 4 * trainable


@pytest.mark.slow
def test_plain_fields_and_transformers_own_config_give_the_same_facts():
    from transformers import AutoConfig

    for model_type, extra in (("llama", {}), ("mixtral", {"num_local_experts": 4})):
        fields = {**TINY, **extra}
        plain = model_facts({"model_type": model_type, "config": fields})
        whole = AutoConfig.for_model(model_type, **fields).to_dict()
        full = model_facts({"model_type": model_type, "config": whole})
        assert (plain.hidden_size, plain.experts, plain.largest_parameter) == (
            full.hidden_size,
            full.experts,
            full.largest_parameter,
        )
    video = AutoConfig.for_model("qwen3_vl", text_config=TINY)
    assert not hasattr(video, "hidden_size")
