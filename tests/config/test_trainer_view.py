"""What the Trainer passes on to DeepSpeed, and what it leaves behind."""

import ast
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib.config.lint import examine
from course_lib.config.trainer_view import HIDDEN_SIZE_KEYS, through_trainer, trainer_defaults
from course_lib.config.tree import get

AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": "auto",
    },
}
TEXT_MODEL = SimpleNamespace(hidden_size=1000)
VIDEO_MODEL = SimpleNamespace(text_config=SimpleNamespace(hidden_size=1000))


def test_every_auto_is_filled_from_arguments_and_model():
    arguments = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 5, "max_grad_norm": 0.7, "bf16": True}
    view = through_trainer(AUTO, arguments, world_size=4, model_config=TEXT_MODEL)
    filled = view.config
    assert filled["train_batch_size"] == 3 * 5 * 4
    assert filled["gradient_clipping"] == 0.7
    assert filled["bf16"]["enabled"] is True
    assert [get(filled, key) for key in HIDDEN_SIZE_KEYS] == [1000**2, int(0.9 * 1000**2), 10 * 1000]
    assert filled["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is False
    assert (view.leftover_autos, view.waiting, view.refusals, view.mismatches) == ((), (), (), ())


def test_without_a_model_the_bucket_autos_wait():
    view = through_trainer(AUTO, None, world_size=1)
    assert set(view.waiting) == set(HIDDEN_SIZE_KEYS)
    assert all(get(view.config, key) == "auto" for key in HIDDEN_SIZE_KEYS)


def test_a_video_model_at_stage_2_cannot_fill_the_stage_3_autos():
    """transformers fills them at stage 3 only; accelerate then looks for config.hidden_size and raises."""
    stage_2 = {**AUTO, "zero_optimization": {**AUTO["zero_optimization"], "stage": 2}}
    assert through_trainer(stage_2, None, world_size=1, model_config=TEXT_MODEL).leftover_autos == ()
    left = through_trainer(stage_2, None, world_size=1, model_config=VIDEO_MODEL).leftover_autos
    assert set(left) == {f"zero_optimization.{key}" for key in AUTO["zero_optimization"] if "stage3_p" in key}
    assert through_trainer(AUTO, None, world_size=1, model_config=VIDEO_MODEL).leftover_autos == ()


def test_the_live_deepspeed_config_of_a_notebook_survives_a_lint():
    """Creating an HfDeepSpeedConfig registers it globally; from_pretrained asks that register for stage 3."""
    import transformers.integrations.deepspeed as integration

    live = integration.HfDeepSpeedConfig({"zero_optimization": {"stage": 3}})
    through_trainer({**AUTO, "zero_optimization": {"stage": 2}}, None, world_size=1)
    assert integration.is_deepspeed_zero3_enabled()
    assert integration.deepspeed_config() is live.config


def test_accelerate_fills_the_autos_that_we_think_it_fills():
    """`_fill_in` repeats a part of Accelerator._prepare_deepspeed; here is that part's own list of keys."""
    import accelerate.accelerator as module

    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    prepare = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_prepare_deepspeed")
    keys = set()
    for node in ast.walk(prepare):
        match node:
            case ast.Assign(targets=[ast.Name(id="config_kwargs")], value=ast.Dict(keys=names)):
                keys |= {name.value for name in names}
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id="config_kwargs"), slice=ast.Constant(value=name))]
            ):
                keys.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="config_kwargs")), args=[ast.Dict(keys=names)]):
                keys |= {name.value for name in names}
    ours = {
        *HIDDEN_SIZE_KEYS,
        "gradient_clipping",
        "train_micro_batch_size_per_gpu",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    }
    # transformers has filled these before accelerate is asked.
    earlier = {
        *("train_batch_size", "optimizer.params.lr", "optimizer.params.weight_decay"),
        *(
            f"scheduler.params.{name}"
            for name in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
        ),
    }
    assert keys == ours | earlier


def test_a_refused_key_is_named_and_the_rest_goes_on():
    view = through_trainer({**AUTO, "optimizer": "AdamW"}, {"max_grad_norm": 0.5}, world_size=1)
    assert [key for key, _ in view.refusals] == ["optimizer"]
    assert view.config["gradient_clipping"] == 0.5


def test_the_report_says_where_each_auto_comes_from():
    report = examine(AUTO, world_size=2, training_arguments={"max_grad_norm": 0.5})
    clipping, bucket = report.resolved["gradient_clipping"], report.resolved[HIDDEN_SIZE_KEYS[0]]
    assert (clipping.written, clipping.value, clipping.source) == ("auto", 0.5, "Trainer: max_grad_norm")
    assert (bucket.value, "needs --model" in bucket.source) == ("auto", True)
    raw = examine(AUTO, framework="raw", world_size=2)
    assert raw.resolved[HIDDEN_SIZE_KEYS[0]].value == 500_000_000
    assert raw.resolved["bf16.enabled"].value is False


@pytest.mark.slow
def test_the_defaults_read_from_source_are_the_defaults():
    from transformers import TrainingArguments

    read = trainer_defaults()
    plain = bool | int | float | str
    fields = {f.name: f.default for f in dataclasses.fields(TrainingArguments) if isinstance(f.default, plain)}
    # An Enum member is written by name in the source; no field that the integration reads is one.
    assert {name: value for name, value in fields.items() if read.get(name) is not None} | {} == {
        name: value for name, value in read.items() if value is not None
    }
    assert {"per_device_train_batch_size", "max_grad_norm", "bf16", "warmup_steps", "learning_rate"} <= set(read)
