"""Stage 0 with bf16: every rank keeps everything (DeepSpeed `runtime/fp16/unfused_optimizer.py`).

An fp32 copy per parameter, Adam states made at initialisation by one step on zero gradients, and in each step fp32
gradients of all parameters at once.
"""

from __future__ import annotations

from course_lib.memory.engine.base import FP32, Engine
from course_lib.memory.timeline import Held

ALLREDUCE_BUCKET = 500_000_000
"""`engine.buffered_allreduce_fallback(elements_per_buffer=500000000)`."""


class PlainEngine(Engine):
    """FP16_UnfusedOptimizer, which DeepSpeed also uses for bf16 without ZeRO."""

    def initialize(self) -> None:
        timeline, model_bytes = self.timeline, self.rank.model_bytes
        self.cast()
        trainable = self.rank.trainable()
        for _, p in trainable:
            copy = timeline.alloc(p.numel * model_bytes, "master_weights")
            if model_bytes != FP32:
                timeline.alloc(p.numel * FP32, "master_weights")
                timeline.free(copy)
        zeros = [timeline.alloc(p.numel * model_bytes, "gradients") for _, p in trainable]
        zeros += [timeline.alloc(p.numel * FP32, "gradients") for _, p in trainable]
        for _, p in trainable:
            self.adam_states(p.numel)
        self.adam_scratch([p.numel for _, p in trainable])
        for block in zeros:
            timeline.free(block)
        self._gradients: list[tuple[int, Held]] = []

    def gradient(self, index: int, held: Held) -> None:
        self._gradients.append((index, self.timeline.relabel(held, "gradients")))

    def backward_ends(self) -> None:
        """Gradients are flattened for the all-reduce in buckets of 5e8 elements, on one rank too."""
        bucket = 0
        for index in sorted(index for index, _ in self._gradients):
            bucket += self.rank.parameters[index].numel
            if bucket > ALLREDUCE_BUCKET:
                self._reduce(bucket)
                bucket = 0
        if bucket:
            self._reduce(bucket)

    def _reduce(self, numel: int) -> None:
        # One tensor is reduced where it is; several are flattened into one.
        if len(self._gradients) > 1:
            self.timeline.scratch(numel * self.rank.model_bytes, "gradients")

    def step(self) -> None:
        timeline = self.timeline
        numels = [self.rank.parameters[i].numel for i, _ in self._gradients]
        for numel in numels:
            timeline.scratch(numel * FP32, "optimizer_scratch")
        upcast = [timeline.alloc(n * FP32, "gradients") for n in numels]
        self.adam_scratch(numels)
        for block in upcast:
            timeline.free(block)
        for _, held in self._gradients:
            timeline.free(held)
        self._gradients = []
