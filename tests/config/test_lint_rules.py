"""One small configuration per rule: the key, the code and the level of what lint says about it."""

import pytest

from course_lib.config.findings import has_error
from course_lib.config.lint import lint
from course_lib.config.rules.offload import file_system_of

BATCH = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": True}}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-4}}


def zero(**fields):
    return {**BATCH, "zero_optimization": fields}


def of(findings, key):
    return {(f.code, f.level) for f in findings if f.key == key}


RAW_CASES = {
    # keys
    "unknown at depth": (zero(stage=2, offload_optimizer={"device": "cpu", "pin_memry": True}),
                         "zero_optimization.offload_optimizer.pin_memry", "unknown_key", "error"),
    "unknown in an untyped block": ({**BATCH, "aio": {"block_siz": 1}}, "aio.block_siz", "unknown_key", "error"),
    "unknown two levels into an untyped block": (
        {**BATCH, "checkpoint": {"parallel_write": {"pipeline_stag": True}}},
        "checkpoint.parallel_write.pipeline_stag", "unknown_key", "error"),
    "a ZeRO key at the top": ({**BATCH, "reduce_bucket_size": 5e6}, "reduce_bucket_size", "misplaced_key", "error"),
    "a top key in ZeRO": (zero(stage=2, gradient_clipping=1.0),
                          "zero_optimization.gradient_clipping", "misplaced_key", "error"),
    "an optimizer parameter beside params": ({**BATCH, "optimizer": {**ADAMW, "lr": 1e-4}},
                                             "optimizer.lr", "misplaced_key", "error"),
    "removed inside ZeRO": (zero(stage=3, mics_shard_size=2), "zero_optimization.mics_shard_size",
                            "removed_key", "error"),
    "deprecated and converted": (zero(stage=2, cpu_offload=True), "zero_optimization.cpu_offload",
                                 "deprecated_key", "warning"),
    "deprecated and dropped": (zero(stage=2, cpu_offload_use_pin_memory=True),
                               "zero_optimization.cpu_offload_use_pin_memory", "no_effect", "error"),
    "zero_optimization: true": ({**BATCH, "zero_optimization": True}, "zero_optimization",
                                "deprecated_key", "warning"),
    "bfloat16 beside bf16": ({**BATCH, "bfloat16": {"enabled": False}}, "bfloat16", "no_effect", "error"),
    "a comment": ({**BATCH, "_comment": "mine"}, "_comment", "comment_key", "note"),
    # values
    "a number in quotes, typed": (zero(stage=3, reduce_bucket_size="5e7"),
                                  "zero_optimization.reduce_bucket_size", "wrong_type", "error"),
    "a number in quotes, untyped": ({**BATCH, "gradient_clipping": "1.0"}, "gradient_clipping", "wrong_type", "error"),
    "false in quotes": ({**BATCH, "dump_state": "false"}, "dump_state", "wrong_type", "error"),
    "true in quotes, typed": (zero(stage=3, overlap_comm="true"), "zero_optimization.overlap_comm",
                              "value_changed", "note"),
    "one key under two names": (zero(stage=3, max_live_parameters=1, stage3_max_live_parameters=2),
                                "zero_optimization.max_live_parameters", "duplicate_key", "error"),
    "a block that is a number": ({**BATCH, "flops_profiler": 3}, "flops_profiler", "wrong_type", "error"),
    "auto in optimizer params": ({**BATCH, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}},
                                 "optimizer.params.lr", "auto_not_resolved", "error"),
    "negative clipping": ({**BATCH, "gradient_clipping": -1.0}, "gradient_clipping", "out_of_range", "warning"),
    # batch
    "no batch at all": ({"bf16": {"enabled": True}}, "train_batch_size", "missing_key", "error"),
    "a total that does not divide": ({"train_batch_size": 7}, "train_batch_size", "batch_equation", "error"),
    "a fraction of a batch": ({**BATCH, "train_micro_batch_size_per_gpu": 1.5},
                              "train_micro_batch_size_per_gpu", "fractional_number", "error"),
    # precision
    "two precisions": ({**BATCH, "fp16": {"enabled": True}}, "fp16.enabled", "two_precisions", "error"),
    "a type that nobody knows": ({**BATCH, "data_types": {"grad_accum_dtype": "fp8"}},
                                 "data_types.grad_accum_dtype", "not_allowed", "error"),
    "a parameter type against bf16": ({**BATCH, "data_types": {"param_dtype": "fp16"}},
                                      "data_types.param_dtype", "data_type_conflict", "error"),
    "16-bit masters on the GPU": ({**zero(stage=2), "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
                                  "bf16.bf16_master_weights_and_grads", "contradiction", "error"),
    # ZeRO
    "a stage-3 key at stage 2": (zero(stage=2, stage3_max_live_parameters=1e9),
                                 "zero_optimization.stage3_max_live_parameters", "no_effect", "note"),
    "ZeRO++ at stage 2": (zero(stage=2, zero_quantized_weights=True),
                          "zero_optimization.zero_quantized_weights", "no_effect", "warning"),
    "a stage-2 key at stage 3": (zero(stage=3, round_robin_gradients=True),
                                 "zero_optimization.round_robin_gradients", "no_effect", "note"),
    "a bucket at stage 0": (zero(stage=0, reduce_bucket_size=5e6),
                            "zero_optimization.reduce_bucket_size", "no_effect", "note"),
    "what nothing reads": (zero(stage=2, allgather_partitions=False),
                           "zero_optimization.allgather_partitions", "no_effect", "error"),
    "an odd bucket": (zero(stage=2, allgather_bucket_size=5_000_001),
                      "zero_optimization.allgather_bucket_size", "contradiction", "error"),
    "no norm, but clipping by default": (zero(stage=2, compute_grad_norm=False),
                                         "zero_optimization.compute_grad_norm", "contradiction", "error"),
    "prescaling with reduce_scatter": ({**zero(stage=3), "prescale_gradients": True}, "prescale_gradients",
                                       "contradiction", "error"),
    "sum at stage 3": ({**zero(stage=3), "gradient_allreduce_op": "sum"}, "gradient_allreduce_op", "refused", "error"),
    "overlap with a small bucket at stage 1": (zero(stage=1, overlap_comm=True, reduce_bucket_size=1e6),
                                               "zero_optimization.overlap_comm", "nan_prone_overlap", "warning"),
    # offload
    "optimizer offload without ZeRO": (zero(stage=0, offload_optimizer={"device": "cpu"}),
                                       "zero_optimization.offload_optimizer", "no_effect_offload", "error"),
    "NVMe optimizer at stage 2": (zero(stage=2, offload_optimizer={"device": "nvme", "nvme_path": "/tmp"}),
                                  "zero_optimization.offload_optimizer.device", "no_effect_offload", "error"),
    "NVMe optimizer without a path": (zero(stage=3, offload_optimizer={"device": "nvme"}),
                                      "zero_optimization.offload_optimizer.nvme_path", "nvme_path", "error"),
    "a block without a device": (zero(stage=3, offload_param={"pin_memory": False}),
                                 "zero_optimization.offload_param", "no_effect_offload", "warning"),
    "a key beside device none": (zero(stage=3, offload_param={"device": "none", "pin_memory": False}),
                                 "zero_optimization.offload_param.pin_memory", "no_effect", "note"),
    "a partial offload at stage 2": (zero(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
                                     "zero_optimization.offload_optimizer.ratio", "refused", "error"),
    "aio without NVMe": ({**zero(stage=3), "aio": {"queue_depth": 16}}, "aio", "no_effect", "note"),
    # optimizer and scheduler
    "an optimizer that is none": ({**BATCH, "optimizer": {"type": "AdamZ"}}, "optimizer.type",
                                  "optimizer_refused", "error"),
    "an optimizer parameter that is none": (
        {**BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "learning_rate": 1}}},
        "optimizer.params.learning_rate", "optimizer_refused", "error"),
    "max_grad_norm as a parameter": ({**BATCH, "optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1}}},
                                     "optimizer.params.max_grad_norm", "misplaced_key", "error"),
    "an untested optimizer under ZeRO": ({**zero(stage=2), "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
                                         "optimizer.type", "optimizer_refused", "error"),
    "a torch optimizer that refuses": (
        {**BATCH, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True, "betas": [2, 0.9]}}},
        "optimizer.params.betas", "optimizer_refused", "error"),
    "a scheduler that is none": ({**BATCH, "scheduler": {"type": "WarmupDecay", "params": {}}}, "scheduler.type",
                                 "scheduler_refused", "error"),
    "a warm-up of 0": ({**BATCH, "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
                       "scheduler.params.warmup_num_steps", "scheduler_refused", "error"),
    "a scheduler that lacks a parameter": ({**BATCH, "scheduler": {"type": "WarmupDecayLR", "params": {}}},
                                           "scheduler.params", "scheduler_refused", "error"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAW_CASES)
def test_a_raw_config_is_told_what_is_wrong(name):
    config, key, code, level = RAW_CASES[name]
    assert (code, level) in of(lint(config, framework="raw", world_size=2), key)


def trainer(config=None, **arguments):
    base = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2},
    }
    return {**base, **(config or {})}, arguments


DECAY = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"}}

TRAINER_CASES = {
    "bf16 off in the arguments": (*trainer({"bf16": {"enabled": True}}, bf16=False), "bf16.enabled",
                                  "trainer_mismatch", "error"),
    "micro batch": (*trainer({"train_micro_batch_size_per_gpu": 4}, per_device_train_batch_size=2),
                    "train_micro_batch_size_per_gpu", "trainer_mismatch", "error"),
    "total batch": (*trainer({"train_batch_size": 64}, per_device_train_batch_size=2),
                    "train_batch_size", "trainer_mismatch", "error"),
    "learning rate": (*trainer({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, learning_rate=1e-4),
                      "optimizer.params.lr", "trainer_mismatch", "error"),
    "learning rate left out": (*trainer({"optimizer": {"type": "AdamW", "params": {}}}, learning_rate=1e-4),
                               "optimizer.params.lr", "argument_not_used", "error"),
    "fp16 against bf16": (*trainer({"bf16": {"enabled": True}}, fp16=True), "bf16.enabled", "refused", "error"),
    "clipping left out": ({k: v for k, v in trainer()[0].items() if k != "gradient_clipping"},
                          {"max_grad_norm": 0.5}, "gradient_clipping", "argument_not_used", "error"),
    "accumulation left out": ({k: v for k, v in trainer()[0].items() if k != "gradient_accumulation_steps"},
                              {"gradient_accumulation_steps": 4}, "gradient_accumulation_steps",
                              "argument_not_used", "warning"),
    "no ZeRO block": ({k: v for k, v in trainer()[0].items() if k != "zero_optimization"}, {},
                      "zero_optimization", "refused", "error"),
    "no batch keys": ({"zero_optimization": {"stage": 2}}, {}, "train_batch_size", "missing_key", "error"),
    "an auto that nothing fills": (*trainer({"zero_optimization": {"stage": 3, "overlap_comm": "auto"}}),
                                   "zero_optimization.overlap_comm", "auto_not_resolved", "error"),
    "two schedulers": (*trainer({"scheduler": DECAY}, lr_scheduler_type="cosine"), "scheduler",
                       "two_schedulers", "warning"),
    "one scheduler said twice": (*trainer({"scheduler": DECAY}, lr_scheduler_type="linear"), "scheduler",
                                 "two_schedulers", "note"),
    "two optimizers": (*trainer({"optimizer": ADAMW}, optim="adafactor", learning_rate=1e-4), "optimizer",
                       "two_optimizers", "warning"),
    "warm-up longer than max_steps": (
        *trainer({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 50}}}, max_steps=20),
        "scheduler.params.warmup_num_steps", "warmup_too_long", "warning"),
    "an offload device that nobody names": (
        *trainer({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "auto"}}}),
        "zero_optimization.offload_optimizer.device", "no_effect_offload", "warning"),
    "a block that is text": (*trainer({"optimizer": "AdamW"}), "optimizer", "wrong_type", "error"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINER_CASES)
def test_a_trainer_config_is_told_what_is_wrong(name):
    config, arguments, key, code, level = TRAINER_CASES[name]
    assert (code, level) in of(lint(config, world_size=2, training_arguments=arguments), key)


@pytest.mark.parametrize("name", [name for name, case in TRAINER_CASES.items() if case[3] == "trainer_mismatch"])
def test_an_argument_that_is_not_given_is_no_mismatch_but_its_default_is_a_warning(name):
    config, _, key, _, _ = TRAINER_CASES[name]
    assert not has_error(lint(config, world_size=2, training_arguments={"seed": 1}))
    complete = lint(config, world_size=2, training_arguments={"seed": 1}, arguments_complete=True)
    expected = {"train_batch_size"} if key == "train_batch_size" else {key}
    # What is implied by the JSON's own batch keys cannot differ from it.
    if key not in ("train_batch_size", "train_micro_batch_size_per_gpu"):
        assert ("trainer_default_differs", "warning") in of(complete, next(iter(expected)))


def test_lint_names_the_nearest_key_and_the_right_home():
    findings = lint({**BATCH, "wal_clock_breakdown": True, "offload_param": {"device": "cpu"}}, framework="raw")
    fixes = {f.key: f.fix for f in findings}
    assert "wall_clock_breakdown" in fixes["wal_clock_breakdown"]
    assert "zero_optimization.offload_param" in fixes["offload_param"]


def test_the_batch_equation_without_a_rank_count_holds_for_some_number_of_ranks():
    six = {"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    assert lint(six, framework="raw") == []
    assert of(lint({**six, "train_batch_size": 7}, framework="raw"), "train_batch_size") == {
        ("batch_equation", "error")
    }


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_tensor_parallel_ranks_do_not_count_for_the_batch(ranks):
    config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
    config["tensor_parallel"] = {"autotp_size": 2}
    errors = of(lint(config, framework="raw", world_size=ranks), "train_batch_size")
    assert bool(errors) == (ranks != 8)


def test_gds_is_judged_for_a_gpu_node_not_for_this_machine():
    config = zero(stage=3, offload_param={"device": "nvme", "nvme_path": "/tmp"})
    assert not has_error(lint({**config, "aio": {"use_gds": True}}, framework="raw", world_size=2))


@pytest.mark.parametrize(("ranks", "fits"), [(2, True), (4, False), (6, True), (9, True)])
def test_hpz_groups_must_divide_the_ranks(ranks, fits):
    findings = lint(zero(stage=3, zero_hpz_partition_size=3), framework="raw", world_size=ranks)
    assert (findings == []) is fits


MOUNTS = """\
/dev/nvme0n1 / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
/dev/nvme1n1 /home/me/local xfs rw 0 0
share /mnt/my\\040disk cifs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/scratch", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/offload", "nfs4"),
        ("/home/me/local/offload", "xfs"),
        ("/homestead", "ext4"),
        ("/mnt/my disk/x", "cifs"),
    ],
)
def test_a_path_belongs_to_the_deepest_mount_above_it(tmp_path, path, kind):
    assert file_system_of(tmp_path.__class__(path), MOUNTS) == kind


def test_nvme_on_a_network_file_system_is_a_warning(monkeypatch):
    monkeypatch.setattr("course_lib.config.rules.offload.file_system_of", lambda path: "nfs4")
    findings = lint(zero(stage=3, offload_param={"device": "nvme", "nvme_path": "/home"}), framework="raw")
    key = "zero_optimization.offload_param.nvme_path"
    assert of(findings, key) == {("network_file_system", "warning")}
