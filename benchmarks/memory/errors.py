"""Predictions beside measurements, and beside what today's tools say for the same cases.

    python benchmarks/memory/errors.py

Reads benchmarks/results/memory_cases.json (measured) and writes benchmarks/results/memory_errors.json,
docs/memory_errors.md and course_lib/memory/measured_errors.json (what error bars are taken from).
"""

import json
import statistics
import warnings
from pathlib import Path
from typing import Any

from course_lib.memory.case import MemoryCase, case_from
from course_lib.memory.error_bar import traits
from course_lib.memory.report import plan_case
from course_lib.memory.settings import zero_settings
from course_lib.shapes.config import text_config
from course_lib.shapes.parameters import ModelShape, read_shape
from course_lib.units import GIB

ROOT = Path(__file__).parents[2]
CASES = ROOT / "benchmarks/results/memory_cases.json"


def main() -> None:
    warnings.simplefilter("ignore")
    rows = [_row(record) for record in json.loads(CASES.read_text())["cases"]]
    versions = sorted({(row["torch"], row["transformers"]) for row in rows})
    result = {
        "label": "predicted against measured",
        "versions_measured": versions,
        "summary": {name: _summary(group) for name, group in _groups(rows).items()},
        "rows": rows,
    }
    (ROOT / "benchmarks/results/memory_errors.json").write_text(json.dumps(result, indent=1) + "\n")
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs/memory_errors.md").write_text(_page(result))
    kept = [{"name": r["name"], "traits": r["traits"], "steady_error": round(r["steady_error"], 5)} for r in rows]
    (ROOT / "course_lib/memory/measured_errors.json").write_text(json.dumps(kept, indent=1) + "\n")
    for name, summary in result["summary"].items():
        print(name, summary)


def _row(record: dict[str, Any]) -> dict[str, Any]:
    case, measured = case_from(record["case"]), record["measured"]
    shape = read_shape(case.model, lora=case.lora, dtype=case.dtype, attention=case.attention, thinker_only=True)
    settings = zero_settings(case.ds_config, hidden_size=text_config(shape.config).hidden_size, assumptions=[])
    report = plan_case(case, shape=shape)
    last = measured["steps"][-1]
    truth = last["peak_allocated"] * GIB
    overall = max(
        [measured["load"]["peak_allocated"], measured["init"]["peak_allocated"]]
        + [step["peak_allocated"] for step in measured["steps"]]
    )
    sums = {name: sum(parts.values()) for name, parts in report.phases.items()}
    forward = max(sums["forward"], sums["loss"])
    phases = {
        "load": (sums["load"], measured["load"]["peak_allocated"]),
        "init": (sums["init"], measured["init"]["peak_allocated"]),
        "forward": (forward, last["peak_through_forward"]),
        "backward": (max(forward, sums["backward"]), last["peak_through_backward"]),
    }
    offloads = bool(settings.offload_optimizer or settings.offload_param)
    return {
        "name": record["name"],
        "held_out": record.get("held_out", False),
        "torch": measured["torch"],
        "transformers": measured["transformers"],
        "traits": traits(case, settings.stage, offloads=offloads),
        "measured_gib": last["peak_allocated"],
        "predicted_gib": round(report.steady_peak_allocated_bytes / GIB, 4),
        "steady_error": report.steady_peak_allocated_bytes / truth - 1,
        "peak_error": report.peak_allocated_bytes / (overall * GIB) - 1,
        "reserved_error": report.peak_reserved_bytes / (max(step["peak_reserved"] for step in measured["steps"]) * GIB)
        - 1,
        "phase_errors_of_peak": {name: (p - m * GIB) / (overall * GIB) for name, (p, m) in phases.items()},
        "deepspeed_error": _deepspeed(shape, case, settings) / truth - 1,
        "accelerate_error": _accelerate(shape) / truth - 1,
        "one_line_error": _one_line(shape, case) / truth - 1,
    }


def _deepspeed(shape: ModelShape, case: MemoryCase, settings: Any) -> float:
    """DeepSpeed's own estimators; below stage 3 the ZeRO-2 one, the nearest there is."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    offload = settings.offload_optimizer is not None
    if settings.stage == 3:
        _, gpu, _ = estimate_zero3_model_states_mem_needs(
            total_params=shape.total,
            largest_layer_params=max(p.numel for p in shape.parameters),
            num_gpus_per_node=case.world_size,
            cpu_offload=offload,
            cpu_offload_params=settings.offload_param is not None,
        )
        return gpu
    _, gpu = estimate_zero2_model_states_mem_needs(
        total_params=shape.total, num_gpus_per_node=case.world_size, cpu_offload=offload
    )
    return gpu


def _accelerate(shape: ModelShape) -> float:
    """`accelerate estimate-memory`, its training cell for bfloat16: the largest of its four figures."""
    from accelerate.commands.estimate import estimate_training_usage

    usage = estimate_training_usage(4 * shape.total, "bfloat16")
    return max(value for value in usage.values() if isinstance(value, int | float))


def _one_line(shape: ModelShape, case: MemoryCase) -> float:
    """2Ψ + logits (bf16, fp32 and its gradient) + checkpoint boundaries."""
    text = text_config(shape.config)
    positions = case.micro_batch_size * case.sequence_length
    layers = next(stack.depth for stack in shape.stacks if stack.name == "text")
    return 2 * shape.total + 10 * positions * text.vocab_size + 2 * positions * text.hidden_size * layers


def _groups(rows: list[dict]) -> dict[str, list[dict]]:
    return {
        "all": rows,
        "LoRA": [r for r in rows if r["traits"]["lora"]],
        "full": [r for r in rows if not r["traits"]["lora"]],
        "held out": [r for r in rows if r["held_out"]],
    }


def _summary(rows: list[dict]) -> dict[str, Any]:
    if not rows:
        return {"cases": 0}

    def spread(key: str) -> dict[str, float]:
        values = [row[key] for row in rows]
        return {
            "mean_abs": round(statistics.mean(map(abs, values)), 4),
            "worst": round(max(values, key=abs), 4),
            "lowest": round(min(values), 4),
        }

    keys = ("steady_error", "peak_error", "reserved_error", "deepspeed_error", "accelerate_error", "one_line_error")
    phases = [error for row in rows for error in row["phase_errors_of_peak"].values()]
    return {
        "cases": len(rows),
        **{key: spread(key) for key in keys},
        "phase_worst_of_peak": round(max(phases, key=abs), 4),
    }


def _page(result: dict) -> str:
    lines = [
        "# How far the memory predictions are off",
        "",
        "Measured: one NVIDIA H200, one process per case, three steps, `reset_peak_memory_stats` before each; torch",
        "and transformers as in the last column (the predictions model the installed versions). Error is predicted",
        "divided by measured, minus one, on `max_memory_allocated` of the last step. Written by",
        "`benchmarks/memory/errors.py` from `benchmarks/results/memory_cases.json`.",
        "No constant was fitted to these cases: every block has its",
        "source in torch, transformers, peft or DeepSpeed; cuDNN's attention workspace was read off the allocator's",
        "log. Held out: predicted before they were measured, and nothing was changed because of them.",
        "",
        "The other tools: DeepSpeed's `estimate_zero2/3_model_states_mem_needs` (model states only), `accelerate",
        "estimate-memory` (its training cell), and one line, 2Ψ + 10·positions·vocabulary + 2·positions·hidden·layers.",
        "",
        "| cases | n | ours mean / worst | lowest | whole run worst | reserved worst | phase worst (of peak) "
        "| DeepSpeed mean | accelerate mean | one line mean |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, s in result["summary"].items():
        if not s["cases"]:
            continue
        lines.append(
            f"| {name} | {s['cases']} | {_pc(s['steady_error']['mean_abs'])} / {_pc(s['steady_error']['worst'])} "
            f"| {_pc(s['steady_error']['lowest'])} | {_pc(s['peak_error']['worst'])} "
            f"| {_pc(s['reserved_error']['worst'])} | {_pc(s['phase_worst_of_peak'])} "
            f"| {_pc(s['deepspeed_error']['mean_abs'])} | {_pc(s['accelerate_error']['mean_abs'])} "
            f"| {_pc(s['one_line_error']['mean_abs'])} |"
        )
    lines += [
        "",
        "| case | measured GiB | predicted GiB | error | whole run | reserved "
        "| DeepSpeed | accelerate | one line | versions |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(result["rows"], key=lambda row: (not row["traits"]["lora"], row["name"])):
        lines.append(
            f"| {r['name']}{' (held out)' if r['held_out'] else ''} | {r['measured_gib']:.2f} "
            f"| {r['predicted_gib']:.2f} | {_pc(r['steady_error'])} | {_pc(r['peak_error'])} "
            f"| {_pc(r['reserved_error'])} | {_pc(r['deepspeed_error'])} | {_pc(r['accelerate_error'])} "
            f"| {_pc(r['one_line_error'])} | torch {r['torch'].split('+')[0]}, transformers {r['transformers']} |"
        )
    return "\n".join(lines) + "\n"


def _pc(value: float) -> str:
    return f"{100 * value:+.2f} %"


if __name__ == "__main__":
    main()
