"""The smallest honest ZeRO lab: N gloo ranks, a few real steps per stage, every byte counted where it lies.

One set of processes runs all the stages asked for, so a stage costs about a second after the start.
Not here: Trainer runs (the tasks start those), activations (they are gone when the bytes are counted),
communication volume.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.train.ranks import end_with_parent, run_ranks

STATE_BYTES = {"weights": 2, "gradients": 2, "master weights": 4, "optimizer": 8}
"""Bytes per parameter trained with AdamW in bf16, on a rank that shares nothing (ZeRO, arXiv 1910.02054 §3.1)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldBytes:
    """Bytes one rank holds between backward and step of the second step, by part. `total_bytes == sum(parts())`."""

    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    """The fp32 copy of the weights that the optimizer updates."""
    adam_bytes: int
    """Adam's two running averages, fp32."""
    buffer_bytes: int
    """ZeRO's reduce bucket; its size is a setting, not a share of the model."""
    other_bytes: int
    """Every other tensor alive in the process: the batch, the loss, Adam's step counters."""

    @property
    def model_state_bytes(self) -> int:
        return self.weight_bytes + self.gradient_bytes + self.master_bytes + self.adam_bytes

    @property
    def total_bytes(self) -> int:
        return self.model_state_bytes + self.buffer_bytes + self.other_bytes

    def parts(self) -> dict[str, int]:
        """Part name (as learn/plots.py draws it) to bytes, in the order of drawing."""
        states = (self.weight_bytes, self.gradient_bytes, self.master_bytes, self.adam_bytes)
        names = (*STATE_BYTES, "buffers", "other")
        return dict(zip(names, (*states, self.buffer_bytes, self.other_bytes), strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRun:
    """What one rank saw under one ZeRO stage."""

    stage: int
    rank: int
    psi: int
    """Parameters of the whole model, all trainable."""
    losses: tuple[float, ...]
    """Loss of this rank's batch before each step."""
    seconds: float
    held: HeldBytes


@dataclass(frozen=True, kw_only=True, slots=True)
class LabReport:
    """All stages of one lab, measured in the ranks."""

    ranks: int
    psi: int
    seconds: float
    """Wall clock, starting the processes included."""
    runs: tuple[StageRun, ...]

    def run(self, stage: int, rank: int = 0) -> StageRun:
        for run in self.runs:
            if (run.stage, run.rank) == (stage, rank):
                return run
        raise CourseError(f"this lab has no stage {stage} on rank {rank}", fix="Ask for it: zero_lab(stages=(…,))")

    def held(self, stage: int, rank: int = 0) -> HeldBytes:
        return self.run(stage, rank).held


def zero_lab(
    *,
    stages: tuple[int, ...] = (0, 3),
    ranks: int = 2,
    steps: int = 4,
    width: int = 256,
    blocks: int = 4,
    time_limit_seconds: float = 180,
) -> LabReport:
    """Train a small MLP for `steps` steps under each ZeRO stage on `ranks` CPU processes that talk through gloo.

    Args:
        stages: ZeRO stages, each 0 to 3. ranks: N, 1 to 8. steps: at least 2 (bytes are counted in the second).
        width, blocks: the model has about 8·blocks·width² parameters.
        time_limit_seconds: for everything; all ranks are ended when it passes.

    Returns: what every rank measured. Raises CourseError when a rank dies or the time limit passes.
    """
    if not stages or any(stage not in (0, 1, 2, 3) for stage in stages):
        raise CourseError(f"stages must be drawn from 0, 1, 2, 3, got {stages!r}")
    if not 1 <= ranks <= 8 or steps < 2 or width < 1 or blocks < 1:
        raise CourseError(
            f"needs ranks 1 to 8, steps ≥ 2, width and blocks ≥ 1, got {ranks}, {steps}, {width}, {blocks}"
        )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zero_lab_", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        spec = {"stages": list(stages), "steps": steps, "width": width, "blocks": blocks, "folder": name}
        command = [sys.executable, "-m", "course_lib.train.stages", json.dumps(spec)]
        run_ranks(command, ranks=ranks, log_folder=folder, time_limit_seconds=time_limit_seconds)
        records = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    runs = tuple(
        StageRun(**{**record, "losses": tuple(record["losses"]), "held": HeldBytes(**record["held"])})
        for of_rank in records
        for record in of_rank
    )
    return LabReport(ranks=ranks, psi=runs[0].psi, seconds=time.monotonic() - started, runs=runs)


def storages(tensors: Iterator, seen: set[int]) -> int:
    """Bytes of the storages behind `tensors`, each counted once and never when its address is in `seen`."""
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def count_held(engine) -> HeldBytes:
    """Walk what DeepSpeed 0.19.8 really keeps on this rank; call it after backward and before step.

    Names of the fields: stage3.DeepSpeedZeroOptimizer_Stage3, stage_1_and_2.DeepSpeedZeroOptimizer,
    unfused_optimizer.FP16_UnfusedOptimizer (which stage 0 uses for bf16).
    """
    import gc

    import torch

    gc.collect()  # the buckets of the reduction just done may wait in reference cycles
    parameters, zero = list(engine.module.parameters()), engine.optimizer
    weights = [getattr(p, "ds_tensor", p) for p in parameters]
    gradients = [p.grad for p in parameters] + [getattr(zero, "grad_partitions_flat_buffer", None)]
    gradients += [g for group in getattr(zero, "averaged_gradients", {}).values() for g in group or []]
    fields = ("fp32_groups", "single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
    master = [item for name in fields for item in getattr(zero, name, [])]
    master = [t for item in master for t in (item if isinstance(item, list) else [item])]
    states = [s[name] for s in engine.basic_optimizer.state.values() for name in ("exp_avg", "exp_avg_sq") if name in s]
    buckets = [getattr(bucket, "buffer", None) for bucket in getattr(zero, "ipg_buckets", {}).values()]
    seen: set[int] = set()
    counted = [
        storages((t for t in part if isinstance(t, torch.Tensor)), seen)
        for part in (weights, gradients, master, states, buckets)
    ]
    alive = (t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter))
    names = ("weight_bytes", "gradient_bytes", "master_bytes", "adam_bytes", "buffer_bytes")
    return HeldBytes(**dict(zip(names, counted, strict=True)), other_bytes=storages(alive, seen))


SYMBOLS = 64
"""The lab's task: answer symbol x with (3·x + 1) mod 64, which four layers learn in a few hundred steps."""


def lab_model(*, width: int, blocks: int):
    """Embedding, `blocks` × (width → 4·width → width), output layer; torch's default initialisation, seed 0."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    body = [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(blocks)]
    return nn.Sequential(nn.Embedding(SYMBOLS, width), *body, nn.Linear(width, SYMBOLS))


def lab_config(stage: int) -> dict:
    """The whole ds_config of the lab. Threshold 0: no parameter stays unsharded, however small (default: 1e5)."""
    zero = {"stage": stage, "reduce_bucket_size": 500_000}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 500_000}
    return {"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True}, "zero_optimization": zero}


def _run_stage(stage: int, rank: int, *, steps: int, width: int, blocks: int) -> dict:
    import deepspeed
    import torch

    started, held = time.monotonic(), None
    model = lab_model(width=width, blocks=blocks)
    psi = sum(p.numel() for p in model.parameters())
    # torch's AdamW: DeepSpeed's own would compile one more operator first.
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=lab_config(stage))
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(1000 * rank + step)
        x_BT = torch.randint(0, SYMBOLS, (8, 32), generator=generator)
        logits_NV = engine(x_BT).float().flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits_NV, (3 * x_BT + 1).flatten() % SYMBOLS)
        losses.append(round(loss.item(), 4))
        engine.backward(loss)
        del logits_NV, loss
        held = count_held(engine) if step == 1 else held
        engine.step()
    engine.destroy()
    seconds = round(time.monotonic() - started, 2)
    return {"stage": stage, "rank": rank, "psi": psi, "losses": losses, "seconds": seconds, "held": asdict(held)}


def main(spec: dict) -> None:
    """What one rank does: every stage in turn, then its records into `folder`."""
    end_with_parent(int(os.environ["COURSE_PARENT_PID"]))
    import gc
    import logging

    import deepspeed

    from course_lib.files import write_json

    deepspeed.utils.logger.setLevel(logging.ERROR)
    rank = int(os.environ["RANK"])
    deepspeed.init_distributed("gloo", verbose=False)
    records = []
    for stage in spec["stages"]:
        shape = {key: spec[key] for key in ("steps", "width", "blocks")}
        records.append(_run_stage(stage, rank, **shape))
        gc.collect()
    write_json(Path(spec["folder"]) / f"rank{rank}.json", records)
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
