"""One case on a real GPU, in this process: three steps, peaks by phase. Started fresh per case by measure.py.

    python -m course_lib.evaluate.measure_worker CASE.json OUT.json [--steps 3] [--history TRACE.json]

The steps are those of a plain loop around deepspeed.initialize, with a synchronise between phases and the running
peak restarted at each step. With RANK and WORLD_SIZE set (torchrun) every rank writes OUT.rankN.json.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.memory.case import MemoryCase, case_from
from course_lib.memory.inputs import make_batch
from course_lib.memory.trace.step import forward_pass
from course_lib.shapes.build import build_model, model_class
from course_lib.shapes.config import load_config
from course_lib.shapes.lora import attach_lora


def engine_config(case: MemoryCase) -> dict[str, Any]:
    """The ds_config that is run: the case's, with its batch, its optimizer and what the case format implies."""
    config = copy.deepcopy(case.ds_config)
    config.setdefault("train_micro_batch_size_per_gpu", case.micro_batch_size)
    config.setdefault("gradient_accumulation_steps", 1)
    config.setdefault("steps_per_print", 10**9)
    if "optimizer" not in config:
        torch_adam = case.optimizer == "AdamW (torch)"
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4, **({"torch_adam": True} if torch_adam else {})}}
        config.setdefault("zero_force_ds_cpu_optimizer", False)
    return config


def measure(case: MemoryCase, *, steps: int, history: Path | None = None) -> dict[str, Any]:
    """Peaks of `case` on the current GPU. Needs CUDA; runs `steps` training steps."""
    import deepspeed
    import torch
    import transformers

    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = f"cuda:{rank}"
    torch.cuda.set_device(rank)
    deepspeed.init_distributed("nccl", verbose=False)
    if history:
        torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=2_000_000)
    record: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "deepspeed": deepspeed.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "unit": "GiB (2**30)",
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }
    torch.manual_seed(0)
    with _phase(record, "load"):
        model, config, context = _load(case, device)
    record["parameters"] = _count(model, trainable_only=False)
    record["trainable"] = _count(model, trainable_only=True)
    with _phase(record, "init"):
        engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=[p for p in model.parameters() if p.requires_grad],
            config=engine_config(case),
        )
    batch = make_batch(case, config, device=device, pixel_device=device)
    record["batch_allocated"] = _gib(torch.cuda.memory_allocated())
    record["steps"] = [_step(engine, batch, case) for _ in range(steps)]
    free, total = torch.cuda.mem_get_info()
    record["card_used"] = _gib(total - free)
    record["host_rss"] = _gib(_peak_rss())
    if history:
        _write_history(history)
    del context
    return record


def _load(case: MemoryCase, device: str) -> tuple[Any, Any, Any]:
    import torch

    config = load_config(case.model)
    context = None
    if case.quantization:
        raise CourseError("quantized cases are predicted, not measured", fix="Measure the case without quantization")
    if case.load == "zero_init":
        from transformers.integrations import HfDeepSpeedConfig

        # transformers partitions parameters as they are made while this object lives.
        context = HfDeepSpeedConfig(engine_config(case))
        kind = model_class(config)
        model = kind._from_config(config, dtype=getattr(torch, case.dtype), attn_implementation=case.attention)
    else:
        model = build_model(config, dtype=case.dtype, attention=case.attention, device=device)
    model.config.use_cache = False
    if case.lora is not None:
        model = attach_lora(model, case.lora)
    if case.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    return model, config, context


def _step(engine: Any, batch: dict[str, Any], case: MemoryCase) -> dict[str, Any]:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    loss, output = forward_pass(engine, batch, case)
    kept = output if case.outputs_kept else None
    del output
    torch.cuda.synchronize()
    forward, after_forward = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    engine.backward(loss)
    torch.cuda.synchronize()
    backward, after_backward = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    engine.step()
    torch.cuda.synchronize()
    record = {
        "peak_allocated": _gib(torch.cuda.max_memory_allocated()),
        "peak_reserved": _gib(torch.cuda.max_memory_reserved()),
        "allocated_after": _gib(torch.cuda.memory_allocated()),
        "peak_through_forward": _gib(forward),
        "peak_through_backward": _gib(backward),
        "allocated_after_forward": _gib(after_forward),
        "allocated_after_backward": _gib(after_backward),
        "loss": float(loss),
        "seconds": round(time.perf_counter() - started, 3),
    }
    del kept
    return record


@contextlib.contextmanager
def _phase(record: dict[str, Any], name: str):
    import torch

    torch.cuda.reset_peak_memory_stats()
    yield
    gc.collect()
    torch.cuda.synchronize()
    record[name] = {
        "peak_allocated": _gib(torch.cuda.max_memory_allocated()),
        "peak_reserved": _gib(torch.cuda.max_memory_reserved()),
        "allocated_after": _gib(torch.cuda.memory_allocated()),
    }


def _count(model: Any, *, trainable_only: bool) -> int:
    return sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad or not trainable_only)


def _gib(value: float) -> float:
    return round(value / 2**30, 5)


def _peak_rss() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _write_history(path: Path) -> None:
    """The allocator's own log, one line per event: action, address, bytes, stream and the nearest Python frames."""
    import gzip

    import torch

    traces = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    keep = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map")
    with gzip.open(path, "wt") as out:
        for event in traces:
            if event["action"] not in keep:
                continue
            frames = [
                f"{'/'.join(f['filename'].split('/')[-2:])}:{f['line']}:{f['name']}"
                for f in event.get("frames", [])
                if "site-packages/torch/nn/modules/module" not in f["filename"]
            ][:7]
            out.write(json.dumps([event["action"], event["addr"], event["size"], event["stream"], frames]) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--history", type=Path)
    given = parser.parse_args(arguments)
    values = json.loads(given.case.read_text())
    case = case_from(values.get("case", values), where=str(given.case))
    result: dict[str, Any] = {"case": values.get("case", values)}
    code = 0
    try:
        result["measured"] = measure(case, steps=given.steps, history=given.history)
    except Exception as error:  # noqa: BLE001 - the parent needs the reason, whatever it was
        result["error"] = f"{type(error).__name__}: {str(error)[:400]}"
        code = 1
        if os.environ.get("COURSE_TRACEBACK"):
            import traceback

            traceback.print_exc()
    rank = os.environ.get("RANK")
    out = given.out.with_suffix(f".rank{rank}.json") if rank is not None and "WORLD_SIZE" in os.environ else given.out
    out.write_text(json.dumps(result))
    return code


if __name__ == "__main__":
    sys.exit(main())
