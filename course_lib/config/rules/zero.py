"""zero_optimization: keys that nothing reads at this stage, and settings that exclude each other.

The tables of fields are held against the installed source by a test (tests/config/test_zero_tables.py).
"""

from course_lib.config.facts import Facts
from course_lib.config.findings import Edit, Finding, delete, found, set_to
from course_lib.config.installed import deepspeed_version
from course_lib.config.schema import NO_DEFAULT
from course_lib.config.tree import get

ZERO = "zero_optimization"

STAGE_3_ONLY = frozenset(
    {
        "sub_group_size",
        "prefetch_bucket_size",
        "param_persistence_threshold",
        "model_persistence_threshold",
        "max_live_parameters",
        "max_reuse_distance",
        "gather_16bit_weights_on_model_save",
        "module_granularity_threshold",
        "use_all_reduce_for_fetch_params",
        "allgather_sequential",
        "zero_hpz_partition_size",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "memory_efficient_linear",
        "pipeline_loading_checkpoint",
        "override_module_apply",
        "log_trace_cache_warnings",
        "enable_sanity_checks",
        "save_muon_momentum_buffer_in_memory",
        "leaf_module",
    }
)
"""Fields that only the stage-3 optimizer and zero.Init read."""

STAGE_1_2_ONLY = frozenset(
    {
        "use_multi_rank_bucket_allreduce",
        "allgather_bucket_size",
        "ignore_unused_parameters",
        "round_robin_gradients",
        "parameter_alignment",
        "compute_grad_norm",
    }
)
"""Fields that only the optimizer of stages 1 and 2 reads."""

NEVER_READ = {f"{ZERO}.allgather_partitions": True, "disable_allgather": False}
"""Keys that are parsed and then read by nothing, and the value that is true anyway."""

ASKS_FOR_MORE = frozenset(
    {
        "zero_hpz_partition_size",
        "zero_quantized_weights",
        "zero_quantized_nontrainable_weights",
        "zero_quantized_gradients",
    }
)
"""ZeRO++: who writes one of these expects a saving, so its absence is more than untidy."""

SMALL_BUCKET = 200_000_000
"""Elements. NaN reports name buckets of 1e6 to 5e7; raising them to 2e8 helped (DeepSpeed#5347, #6351, #7188)."""


def zero_findings(facts: Facts) -> list[Finding]:
    findings = [*_never_read(facts)]
    if isinstance(facts.written.get(ZERO), dict):
        findings += [*_no_stage(facts), *_wrong_stage(facts), *_nan_prone(facts), *_excluding(facts)]
    return findings + _reduce_scatter(facts)


def _fields(facts: Facts) -> dict[str, str]:
    """Written key → field name, aliases undone ("stage3_max_live_parameters" → "max_live_parameters")."""
    model = facts.schema.blocks[ZERO].model
    assert model is not None
    names = {key: name for name, info in model.model_fields.items() for key in (name, info.alias) if key}
    return {key: names[key] for key in get(facts.written, ZERO, {}) if key in names}


def _never_read(facts: Facts) -> list[Finding]:
    findings = []
    for key, effective in NEVER_READ.items():
        value = get(facts.written, key, effective)
        if value != "auto" and value != effective and facts.schema.default_of(key) is not NO_DEFAULT:
            text = (
                f"nothing in DeepSpeed {deepspeed_version()} reads it: it works as if it were {str(effective).lower()}"
            )
            findings.append(found("no_effect", "error", key, text, f"Delete {key}", delete(key)))
    return findings


def _no_stage(facts: Facts) -> list[Finding]:
    block = facts.written[ZERO]
    if not block or "stage" in block:
        return []
    key = f"{ZERO}.stage"
    text = f"no stage is given and the default is {facts.schema.default_of(key)}: ZeRO is off"
    return [found("missing_key", "warning", key, text, "Set stage to 1, 2 or 3", set_to(key, _stage_meant(facts)))]


def _stage_meant(facts: Facts) -> int:
    """3 where something asks for it, else 2."""
    fields = _fields(facts).values()
    return 3 if any(field in STAGE_3_ONLY or field == "offload_param" for field in fields) else 2


def _wrong_stage(facts: Facts) -> list[Finding]:
    findings = []
    for key, field in _fields(facts).items():
        dotted = f"{ZERO}.{key}"
        only = "at stage 3" if field in STAGE_3_ONLY else "at stages 1 and 2" if field in STAGE_1_2_ONLY else ""
        if field == "zero_quantized_gradients":
            only = "at stage 3"
        elsewhere = (only == "at stage 3" and facts.stage < 3) or (only == "at stages 1 and 2" and facts.stage == 3)
        if facts.stage == 0 and field not in ("stage", "offload_optimizer", "offload_param"):
            elsewhere, only = True, only or "with ZeRO on"
        if not elsewhere:
            continue
        asked = field in ASKS_FOR_MORE and facts.zero(field) != facts.schema.default_of(dotted)
        text = f"read only {only}; this is stage {facts.stage}"
        level = "warning" if asked else "note"
        findings.append(found("no_effect", level, dotted, text, f"Delete {key}", delete(dotted)))
    return findings


def _nan_prone(facts: Facts) -> list[Finding]:
    bucket = facts.zero("reduce_bucket_size")
    risky = facts.stage in (1, 2) and facts.zero("overlap_comm") and facts.zero("contiguous_gradients")
    if not risky or bucket is None or bucket >= SMALL_BUCKET or facts.is_open(f"{ZERO}.reduce_bucket_size"):
        return []
    key = f"{ZERO}.overlap_comm"
    text = (
        f"overlap_comm with contiguous_gradients and a bucket of {bucket:,} elements at stage {facts.stage}: "
        "public reports of NaN or a constant grad_norm with loss 0 (DeepSpeed#5347, #6351, #7188, #8061)"
    )
    fix = f"overlap_comm: false, or reduce_bucket_size of {SMALL_BUCKET:,} or more"
    return [found("nan_prone_overlap", "warning", key, text, fix, set_to(key, False))]


def _excluding(facts: Facts) -> list[Finding]:
    """Assertions that the ZeRO optimizers make when they are built, after the model is loaded."""
    findings: list[Finding] = []
    stage, offload = facts.stage, facts.device("offload_optimizer") != "none"

    def contradiction(field: str, text: str, fix: str, edit: Edit | None = None) -> None:
        key = f"{ZERO}.{field}"
        findings.append(found("contradiction", "error", key, text, fix, edit or delete(key)))

    if stage in (1, 2) and facts.zero("compute_grad_norm") is False:
        clipping = facts.value("gradient_clipping", facts.schema.default_of("gradient_clipping"))
        if isinstance(clipping, int | float) and clipping > 0:
            contradiction(
                "compute_grad_norm", f"false needs gradient_clipping 0, which is {clipping}", "Set one of them"
            )
        if offload:
            contradiction("compute_grad_norm", "false does not work with offload_optimizer", "Delete it")
    bucket = facts.zero("allgather_bucket_size")
    if stage in (1, 2) and isinstance(bucket, int) and bucket % 2:
        key = f"{ZERO}.allgather_bucket_size"
        contradiction(
            "allgather_bucket_size", f"{bucket} is odd; stages 1 and 2 assert an even one", "", set_to(key, bucket + 1)
        )
    if facts.zero("legacy_stage1"):
        contradiction("legacy_stage1", "the old stage 1 is gone; the engine raises", "Delete it")
    if stage == 3 and facts.zero("elastic_checkpoint"):
        contradiction("elastic_checkpoint", "stage 3 raises NotImplementedError at the first checkpoint", "Delete it")
    if stage in (1, 2) and offload and facts.zero("contiguous_gradients") is False:
        key = f"{ZERO}.contiguous_gradients"
        text = "offload_optimizer switches it on at stages 1 and 2, whatever is written"
        findings.append(found("contradiction", "warning", key, text, "Delete it", delete(key)))
    parts = facts.zero("zero_hpz_partition_size")
    if stage == 3 and facts.world_size and isinstance(parts, int) and parts > 1:
        parts = min(parts, facts.world_size)
        if facts.world_size % parts:
            contradiction(
                "zero_hpz_partition_size", f"{facts.world_size} ranks do not divide into groups of {parts}", ""
            )
    if facts.value("managed_gradient_accumulation", True) is False and stage < 2 and facts.zero("overlap_comm"):
        contradiction("overlap_comm", "managed_gradient_accumulation false allows it only from stage 2", "")
    return findings


def _reduce_scatter(facts: Facts) -> list[Finding]:
    """prescale_gradients and gradient_predivide_factor need reduce_scatter off at stages 2 and 3."""
    if facts.parsed is None or facts.stage < 2 or not facts.zero("reduce_scatter"):
        return []
    if facts.stage == 2 and facts.value("gradient_allreduce_op", "mean") == "sum":
        return []  # stage 2 asserts only when gradients are averaged
    findings = []
    for key, neutral in (("prescale_gradients", False), ("gradient_predivide_factor", 1.0)):
        if facts.value(key, neutral) != neutral:
            text = f"not supported at stage {facts.stage} with reduce_scatter on; the optimizer asserts it"
            findings.append(found("contradiction", "error", key, text, f"Delete {key}", delete(key)))
    return findings
