"""Stages 1 and 2: whole weights, partitioned masters and optimizer states (DeepSpeed `zero/stage_1_and_2.py`).

Trainable weights move into one flat buffer; gradients pass through an IPG bucket of reduce_bucket_size elements
(two with overlap_comm) that exists from the first gradient to the end of backward.
"""

from __future__ import annotations

from course_lib.memory.engine.base import FP32, Engine
from course_lib.memory.timeline import Held
from course_lib.units import ceil_div

NCCL_ALIGNMENT = 2


class Zero12Engine(Engine):
    """DeepSpeedZeroOptimizer with one parameter group."""

    def initialize(self) -> None:
        rank, timeline, model_bytes = self.rank, self.timeline, self.rank.model_bytes
        self.cast()
        timeline.allocator.empty_cache()
        trainable = rank.trainable()
        alignment = NCCL_ALIGNMENT * rank.world_size
        flat = ceil_div(sum(p.numel for _, p in trainable), alignment) * alignment
        self.partition = flat // rank.world_size
        part = "adapters" if any(p.part == "adapters" for _, p in trainable) else "weights"
        self._flat = timeline.alloc(flat * model_bytes, part)
        for index, _ in trainable:
            timeline.free(rank.weights.pop(index))
        clone = timeline.alloc(self.partition * model_bytes, "master_weights")
        if self.settings.offload_optimizer:
            self._host_states()
            timeline.free(clone)
            self._largest = timeline.alloc(max(p.numel for _, p in trainable) * model_bytes, "zero_buffers")
        else:
            timeline.alloc(self.partition * FP32, "master_weights")
            timeline.free(clone)
            timeline.scratch(self.partition * FP32, "gradients")
        self._buckets: list[Held | None] = []
        self._bucket: list[tuple[int, Held | None]] = []
        self._elements = 0
        self._kept: list[tuple[int, Held]] = []
        self._partitioned: Held | None = None
        self._stepped = False

    def _host_states(self) -> None:
        """CPU side of offload_optimizer: fp32 master, fp32 gradient, a 16-bit copy, Adam states."""
        pinned = self.settings.pin_memory
        self.rank.on_host("master_weights", self.partition * FP32, pinned=pinned)
        self.rank.on_host("weights", self.partition * self.rank.model_bytes, pinned=pinned)
        self.rank.on_host("gradients", self.partition * FP32, pinned=pinned)
        self.rank.on_host("optimizer_states", 2 * self.partition * FP32)

    def gradient(self, index: int, held: Held) -> None:
        held = self.timeline.relabel(held, "gradients")
        settings = self.settings
        if settings.contiguous_gradients and not self._buckets:
            size = settings.reduce_bucket_size * self.rank.model_bytes
            self._buckets = [self.timeline.alloc(size, "zero_buffers") for _ in range(1 + settings.overlap_comm)]
        if settings.stage == 1 and not settings.overlap_comm:
            # Stage 1 reduces after backward: gradients stay where autograd made them.
            self._kept.append((index, held))
        else:
            self._into_bucket(index, held)

    def _into_bucket(self, index: int, held: Held) -> None:
        numel = self.rank.parameters[index].numel
        if self._elements + numel > self.settings.reduce_bucket_size:
            self._reduce()
        if self.settings.contiguous_gradients and numel <= self.settings.reduce_bucket_size:
            # Copied into the bucket; autograd's block goes back.
            self.timeline.free(held)
            held = None
        self._bucket.append((index, held))
        self._elements += numel

    def _reduce(self) -> None:
        """`reduce_ipg_grads`: several slices are flattened for one all-reduce, then owned gradients are copied out."""
        if not self._bucket:
            return
        several = self.rank.world_size > 1 or not self.settings.contiguous_gradients
        if several and len(self._bucket) > 1:
            self.timeline.scratch(self._elements * self.rank.model_bytes, "zero_buffers")
        for index, held in self._bucket:
            self._take(index, held)
        self._bucket = []
        self._elements = 0

    def _take(self, index: int, held: Held | None) -> None:
        timeline = self.timeline
        numel = self.rank.parameters[index].numel
        if self.settings.offload_optimizer:
            self.norm_scratch(numel)
            timeline.scratch(numel * FP32, "optimizer_scratch")
        elif self.settings.contiguous_gradients:
            if self._partitioned is None:
                self._partitioned = timeline.alloc(self._owned() * self.rank.model_bytes, "gradients")
        else:
            self._kept.append((index, held))
            return
        timeline.free(held)

    def _owned(self) -> int:
        """Elements of the parameters that lie in this rank's partition, whole ones where it cuts through them."""
        numels = [p.numel for _, p in self.rank.trainable()]
        if self.rank.world_size == 1:
            return sum(numels)
        return min(sum(numels), self.partition + max(numels))

    def backward_ends(self) -> None:
        pending, self._kept = self._kept, []
        for index, held in pending:
            self._into_bucket(index, held)
        self._reduce()
        for bucket in self._buckets:
            self.timeline.free(bucket)
        self._buckets = []

    def step(self) -> None:
        timeline = self.timeline
        if self.settings.offload_optimizer:
            return
        for _, p in self.rank.trainable():
            self.norm_scratch(min(p.numel, self.partition))
        flat = timeline.alloc(self.partition * self.rank.model_bytes, "gradients")
        upcast = timeline.alloc(self.partition * FP32, "gradients")
        timeline.free(flat)
        timeline.free(self._partitioned)
        self._partitioned = None
        for _, held in self._kept:
            timeline.free(held)
        self._kept = []
        if not self._stepped:
            self.adam_states(self.partition)
            self._stepped = True
        self.adam_scratch([self.partition])
        timeline.free(upcast)
