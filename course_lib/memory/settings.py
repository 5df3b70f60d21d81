"""What a ds_config means for memory: the keys that decide bytes, with DeepSpeed's defaults.

Not here: judging the config (config/), what each engine does with it (engine/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.errors import CourseError

DTYPE_BYTES = {"float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroSettings:
    """The zero_optimization section and its neighbours, resolved (DeepSpeed 0.19.8 `runtime/zero/config.py`)."""

    stage: int = 0
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    prefetch_bucket_size: int = 50_000_000
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int = 2**63
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000
    memory_efficient_linear: bool = True
    offload_optimizer: str | None = None
    offload_param: str | None = None
    pin_memory: bool = True
    offload_param_pin_memory: bool = True
    hpz_partition_size: int = 1
    gradient_clipping: float = 1.0
    gradient_bytes: int = 2
    """Bytes per element of the gradient accumulation dtype (the model dtype unless data_types says otherwise)."""
    gradient_accumulation_steps: int = 1
    check_gradient_overflow: bool = True

    @property
    def keeps_linear_inputs(self) -> bool:
        """Whether DeepSpeed replaces F.linear by its own, which keeps every input (stage 3)."""
        return self.stage == 3 and self.memory_efficient_linear


def zero_settings(ds_config: dict[str, Any], *, hidden_size: int, assumptions: list[str]) -> ZeroSettings:
    """Resolve a ds_config.

    Args:
        hidden_size: for "auto", which HF resolves from it (hidden², 0.9·hidden², 10·hidden).
        assumptions: gets one line for each "auto" that was resolved that way.
    """
    zero = ds_config.get("zero_optimization") or {}
    if zero is True:
        zero = {"stage": 1}
    autos = {
        "reduce_bucket_size": hidden_size**2,
        "stage3_prefetch_bucket_size": int(0.9 * hidden_size**2),
        "stage3_param_persistence_threshold": 10 * hidden_size,
    }
    if any(zero.get(key) == "auto" for key in autos):
        assumptions.append(
            '"auto" bucket sizes are what the HF Trainer makes of them (hidden², 0.9·hidden², 10·hidden)'
        )
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        raise CourseError(f"zero_optimization.stage must be 0, 1, 2 or 3, got {stage!r}", where="ds_config")

    def number(key: str, default: int) -> int:
        value = zero.get(key, default)
        if value == "auto":
            value = autos.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise CourseError(f"zero_optimization.{key}: {value!r} must be a number of elements", where="ds_config")
        return int(value)

    def flag(key: str, default: bool) -> bool:
        value = zero.get(key, default)
        return default if value in ("auto", None) else bool(value)

    optimizer_device, pin = _offload(zero.get("offload_optimizer"))
    param_device, param_pin = _offload(zero.get("offload_param"))
    model_bytes = 2 if _enabled(ds_config, "bf16") or _enabled(ds_config, "fp16") else 4
    accumulation = (ds_config.get("data_types") or {}).get("grad_accum_dtype")
    clipping = ds_config.get("gradient_clipping", 1.0)
    steps = ds_config.get("gradient_accumulation_steps", 1)
    return ZeroSettings(
        stage=stage,
        reduce_bucket_size=number("reduce_bucket_size", 500_000_000),
        allgather_bucket_size=number("allgather_bucket_size", 500_000_000),
        overlap_comm=flag("overlap_comm", stage == 3),
        contiguous_gradients=flag("contiguous_gradients", True) or (optimizer_device is not None and stage < 3),
        reduce_scatter=flag("reduce_scatter", True),
        prefetch_bucket_size=number("stage3_prefetch_bucket_size", 50_000_000),
        param_persistence_threshold=number("stage3_param_persistence_threshold", 100_000),
        model_persistence_threshold=number("stage3_model_persistence_threshold", 2**63),
        max_live_parameters=number("stage3_max_live_parameters", 1_000_000_000),
        max_reuse_distance=number("stage3_max_reuse_distance", 1_000_000_000),
        sub_group_size=number("sub_group_size", 1_000_000_000),
        memory_efficient_linear=flag("memory_efficient_linear", True),
        offload_optimizer=optimizer_device,
        offload_param=param_device if stage == 3 else None,
        pin_memory=pin,
        offload_param_pin_memory=param_pin,
        hpz_partition_size=number("zero_hpz_partition_size", 1),
        gradient_clipping=clipping if isinstance(clipping, int | float) else 1.0,
        gradient_bytes=DTYPE_BYTES.get(accumulation, model_bytes),
        gradient_accumulation_steps=steps if isinstance(steps, int) and steps > 0 else 1,
        check_gradient_overflow=(ds_config.get("bf16") or {}).get("check_grad_overflow", True) is not False,
    )


def _offload(section: Any) -> tuple[str | None, bool]:
    if not isinstance(section, dict) or section.get("device") in (None, "none", "auto"):
        return None, False
    return str(section["device"]), section.get("pin_memory", True) is not False


def _enabled(ds_config: dict[str, Any], key: str) -> bool:
    section = ds_config.get(key)
    return isinstance(section, dict) and section.get("enabled", key == "bf16") not in (False, None)
