"""bf16, fp16 and data_types: which precision wins, and what contradicts it."""

from course_lib.config.facts import Facts
from course_lib.config.findings import Finding, delete, found, set_to
from course_lib.config.installed import deepspeed_config_module
from course_lib.config.tree import get


def precision_findings(facts: Facts) -> list[Finding]:
    return [*_both(facts), *_data_types(facts), *_master_weights(facts)]


def _on(facts: Facts, block: str) -> bool:
    return get(facts.final, f"{block}.enabled", False) in (True, 1, "true", "True")


def _both(facts: Facts) -> list[Finding]:
    if not (_on(facts, "bf16") and _on(facts, "fp16")):
        return []
    text = "bf16 and fp16 are both on; DeepSpeed asserts that one of them is off"
    keys = [key for key in ("bf16.enabled", "fp16.enabled") if facts.writes(key)] or ["fp16.enabled"]
    off = set_to("fp16.enabled", False)
    return [found("two_precisions", "error", key, text, "Switch one of them off", off) for key in keys]


def _data_types(facts: Facts) -> list[Finding]:
    """Names that DtypeEnum does not know, and types that the engine cannot combine (engine._do_sanity_check)."""
    if facts.parsed is None:
        return []
    kinds = deepspeed_config_module().DtypeEnum
    model = (
        "bf16" if facts.parsed.bfloat16_config.enabled else "fp16" if facts.parsed.float16_config.enabled else "fp32"
    )
    findings = []
    for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype"):
        key, value = f"data_types.{name}", facts.value(f"data_types.{name}", None)
        if value is None:
            continue
        try:
            same = kinds(value) is kinds(model)
        except ValueError:
            text = f"{value!r} is no data type that DeepSpeed knows; it raises when the engine starts"
            findings.append(found("not_allowed", "error", key, text, "One of bf16, fp16, fp32", delete(key)))
            continue
        if name == "param_dtype" and not same:
            text = f"{value} contradicts the precision that is on ({model}); the engine asserts that they agree"
            findings.append(
                found("data_type_conflict", "error", key, text, f"Delete it, or write {model}", delete(key))
            )
        if name == "grad_accum_dtype" and not same and facts.stage == 0:
            text = (
                f"{model} parameters with {value} gradients need ZeRO; at stage 0 the engine raises NotImplementedError"
            )
            findings.append(
                found("data_type_conflict", "error", key, text, "Delete it, or use stage 1 to 3", delete(key))
            )
    return findings


def _master_weights(facts: Facts) -> list[Finding]:
    """16-bit master weights need the CPU optimizer (runtime/base_optimizer.py, _configure_master_weights)."""
    if facts.parsed is None or facts.stage == 0:
        return []
    fp16, bf16 = facts.parsed.float16_config, facts.parsed.bfloat16_config
    findings = []
    if fp16.fp16_master_weights_and_grads and bf16.bf16_master_weights_and_grads:
        key = "fp16.fp16_master_weights_and_grads"
        text = "fp16 and bf16 master weights exclude each other"
        findings.append(found("contradiction", "error", key, text, "Switch one of them off", delete(key)))
    offloaded = facts.device("offload_optimizer") != "none"
    needs = {
        "fp16.fp16_master_weights_and_grads": fp16.fp16_master_weights_and_grads,
        "bf16.bf16_master_weights_and_grads": bf16.bf16_master_weights_and_grads and not bf16.bf16_optimizer_states,
    }
    for key, on in needs.items():
        if on and not offloaded:
            text = "16-bit master weights need offload_optimizer with DeepSpeed's CPU Adam; the engine asserts it"
            findings.append(
                found("contradiction", "error", key, text, "Offload the optimizer, or delete it", delete(key))
            )
    return findings
