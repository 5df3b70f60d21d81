"""Stage 3: everything partitioned (DeepSpeed `zero/stage3.py`, `zero/partition_parameters.py`).

Not here: fetching and releasing parameters during a step (fetch.py); on one rank with its parameters on the device
nothing is fetched, the shard is the parameter.
"""

from __future__ import annotations

from course_lib.memory.engine.base import FP32, Engine
from course_lib.memory.timeline import Held
from course_lib.shapes.parameters import Parameter
from course_lib.units import ceil_div


class Zero3Engine(Engine):
    """DeepSpeedZeroOptimizer_Stage3 with one parameter group."""

    def shard(self, parameter: Parameter) -> int:
        """Elements of a parameter on each rank, the last one padded."""
        return ceil_div(parameter.numel, self.rank.world_size)

    def partition_new(self, parameter: Parameter) -> Held | None:
        timeline = self.timeline
        whole = timeline.alloc(parameter.numel * self.rank.model_bytes, "weights")
        shard = self._shard_block(parameter)
        timeline.free(whole)
        return shard

    def initialize(self) -> None:
        rank, timeline = self.rank, self.timeline
        self.cast()
        self.persistent = persistent_parameters(rank.parameters, self.settings)
        for i, p in enumerate(rank.parameters):
            if rank.partitioned and p.part != "adapters":
                continue
            shard = self._shard_block(p, i)
            timeline.free(rank.weights.pop(i))
            rank.weights[i] = shard
        trainable = rank.trainable()
        owned = sum(self.shard(p) for _, p in trainable)
        if not self.settings.offload_param:
            # defragment: shards go to the host and come back as one flat buffer.
            for i, _ in trainable:
                timeline.free(rank.weights.pop(i))
            timeline.allocator.empty_cache()
            part = "adapters" if any(p.part == "adapters" for _, p in trainable) else "weights"
            self._flat = timeline.alloc(owned * rank.model_bytes, part)
        self.groups = sub_groups([self.shard(p) for _, p in trainable], self.settings.sub_group_size)
        self._masters()
        if self.settings.contiguous_gradients:
            timeline.alloc(self.settings.reduce_bucket_size * rank.model_bytes, "zero_buffers")
        if self.settings.offload_optimizer:
            rank.on_host("gradients", owned * self.settings.gradient_bytes, pinned=self.settings.pin_memory)
        else:
            timeline.alloc(owned * self.settings.gradient_bytes, "gradients")
        for i, p in trainable:
            self._gather_once(i, p)
        self._bucket: list[tuple[int, Held | None]] = []
        self._elements = 0
        self._stepped = False

    def _gather_once(self, index: int, parameter: Parameter) -> None:
        """create_reduce_and_remove_grad_hooks gathers each trainable parameter; a host shard is copied up first."""
        shard = self.shard(parameter) * self.rank.model_bytes
        whole = self.timeline.alloc(shard * self.rank.world_size, "gathered_parameters")
        if self.settings.offload_param and index not in self.persistent:
            self.timeline.scratch(shard, "gathered_parameters")
        self.timeline.free(whole)

    def _masters(self) -> None:
        timeline, rank = self.timeline, self.rank
        if self.settings.offload_optimizer:
            pinned = self.settings.pin_memory
            for numel in self.groups:
                rank.on_host("master_weights", numel * FP32)
                rank.on_host("gradients", numel * FP32, pinned=pinned)
                rank.on_host("optimizer_states", 2 * numel * FP32)
            return
        converted = None
        for numel in self.groups:
            fresh = timeline.alloc(numel * FP32, "master_weights")
            timeline.free(converted)
            converted = fresh
            timeline.alloc(numel * FP32, "master_weights")
        timeline.free(converted)
        timeline.scratch(max(self.groups) * FP32, "gradients")

    def _shard_block(self, parameter: Parameter, index: int | None = None) -> Held | None:
        nbytes = self.shard(parameter) * self.rank.model_bytes
        part = "adapters" if parameter.part == "adapters" else "weights"
        kept = index is not None and index in self.persistent
        if self.settings.offload_param and not kept:
            self.rank.on_host(part, nbytes, pinned=self.settings.offload_param_pin_memory)
            return None
        return self.timeline.alloc(nbytes, part)

    def gradient(self, index: int, held: Held) -> None:
        held = self.timeline.relabel(held, "gradients")
        numel = self.rank.parameters[index].numel
        limit = self.settings.reduce_bucket_size
        if self._elements + numel > limit and self._elements:
            self._reduce()
        if self.settings.contiguous_gradients and self._elements + numel <= limit:
            self.timeline.free(held)
            held = None
        self._bucket.append((index, held))
        self._elements += numel

    def _reduce(self) -> None:
        """`__avg_scatter_grads`: several gradients are interleaved into one buffer, reduced and copied out."""
        world = self.rank.world_size
        if not self._bucket:
            return
        numels = [self.rank.parameters[i].numel for i, _ in self._bucket]
        buffer = None
        if len(numels) > 1 or numels[0] % world:
            padded = sum(ceil_div(n, world) * world for n in numels)
            buffer = self.timeline.alloc(padded * self.rank.model_bytes, "zero_buffers")
        for (_, held), numel in zip(self._bucket, numels, strict=True):
            if self.settings.offload_optimizer:
                self._to_host(ceil_div(numel, world))
            self.timeline.free(held)
        self.timeline.free(buffer)
        self._bucket = []
        self._elements = 0

    def _to_host(self, numel: int) -> None:
        """`_offload_grad_partition_at_boundary`: norm in fp64 and an fp32 copy on the device, then to the host."""
        copy = self.timeline.alloc(numel * self.settings.gradient_bytes, "optimizer_scratch")
        self.norm_scratch(min(numel, 250_000_000))
        self.timeline.scratch(numel * FP32, "optimizer_scratch")
        self.timeline.free(copy)

    def backward_ends(self) -> None:
        self._reduce()

    def step(self) -> None:
        if self.settings.offload_optimizer:
            return
        timeline = self.timeline
        for _, p in self.rank.trainable():
            self.norm_scratch(self.shard(p))
        for numel in self.groups:
            flat = timeline.alloc(numel * self.settings.gradient_bytes, "gradients")
            upcast = timeline.alloc(numel * FP32, "gradients")
            timeline.free(flat)
            if not self._stepped:
                self.adam_states(numel)
            self.adam_scratch([numel])
            timeline.free(upcast)
        self._stepped = True


def sub_groups(shards: list[int], limit: int) -> list[int]:
    """Elements of each optimizer sub-group: parameters are added until the limit is reached (stage3)."""
    if limit >= sum(shards):
        return [sum(shards)]
    groups, current = [], 0
    for position, numel in enumerate(shards):
        current += numel
        if current >= limit or position == len(shards) - 1:
            groups.append(current)
            current = 0
    return groups


def persistent_parameters(parameters: tuple[Parameter, ...], settings) -> frozenset[int]:
    """Indices of parameters that stay gathered: at most the threshold, while their sum is below the model's."""
    kept, total = [], 0
    for index, p in enumerate(parameters):
        if p.numel <= settings.param_persistence_threshold and total + p.numel <= settings.model_persistence_threshold:
            kept.append(index)
            total += p.numel
    return frozenset(kept)
