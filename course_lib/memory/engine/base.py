"""What every engine shares: the state of one rank, loading the model, casting it, and Adam's blocks.

Not here: the three ways of partitioning (plain.py, zero12.py, zero3.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from course_lib.memory.settings import ZeroSettings
from course_lib.memory.timeline import Held, Timeline
from course_lib.shapes.parameters import Parameter

FP32 = 4
FP64 = 8
QUANTIZED_BYTES = {"nf4": lambda n: n // 2 + 4 * (n // 64), "int8": lambda n: n + 4 * (n // 4096)}


@dataclass(kw_only=True, slots=True)
class Rank:
    """One rank's device, host and model."""

    timeline: Timeline
    parameters: tuple[Parameter, ...]
    settings: ZeroSettings
    world_size: int
    model_bytes: int
    """Bytes per element of the compute dtype."""
    optimizer: str
    quantization: str | None = None
    partitioned: bool = False
    """Whether zero.Init already partitioned the base model while it was built."""
    weights: dict[int, Held | None] = field(default_factory=dict)
    """Index of a parameter → the block its weight (or its shard) lies in."""
    host: dict[str, int] = field(default_factory=dict)
    """Bytes of host memory by part, as they stay during training."""
    pinned: list[int] = field(default_factory=list)
    """Sizes of single pinned allocations, before torch rounds them."""

    def trainable(self) -> list[tuple[int, Parameter]]:
        """Trainable parameters with their index, in the order the optimizer gets them."""
        return [(i, p) for i, p in enumerate(self.parameters) if p.trainable]

    def weight_bytes(self, parameter: Parameter) -> int:
        """Bytes of a weight as it is loaded: quantized when it is a linear's and the case says so.

        nf4: half a byte and an fp32 scale per 64 elements; int8: one byte and an fp32 scale per row (bitsandbytes).
        """
        if self.quantization and parameter.linear:
            return QUANTIZED_BYTES[self.quantization](parameter.numel)
        return parameter.numel * parameter.dtype_bytes

    def on_host(self, part: str, nbytes: int, *, pinned: bool = False) -> None:
        """Count host memory that stays; pinned allocations are also noted one by one."""
        self.host[part] = self.host.get(part, 0) + nbytes
        if pinned:
            self.pinned.append(nbytes)


class Engine:
    """The life of model states on one rank. Subclasses say how they are partitioned."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.timeline = rank.timeline
        self.settings = rank.settings
        self._adam: list[Held | None] = []

    def load(self, *, tied_bytes: int, gathered: bool) -> None:
        """The model is built on the device, then the adapters; `gathered` is False when zero.Init partitions it.

        tied_bytes: weights that a constructor allocates before they are tied to another (lm_head), then dropped.
        peft makes adapters in the base layer's dtype and casts them all to fp32 afterwards
        (`_move_adapter_to_device_of_base_layer`, `cast_adapter_dtype`).
        """
        rank, timeline = self.rank, self.timeline
        base = [(i, p) for i, p in enumerate(rank.parameters) if p.part != "adapters"]
        adapters = [(i, p) for i, p in enumerate(rank.parameters) if p.part == "adapters"]
        for i, p in base:
            rank.weights[i] = self._new_weight(p) if gathered else self.partition_new(p)
        timeline.scratch(tied_bytes, "weights")
        first = {i: timeline.alloc(p.numel * rank.model_bytes, "adapters") for i, p in adapters}
        for i, p in adapters:
            rank.weights[i] = timeline.alloc(p.numel * FP32, "adapters")
            timeline.free(first[i])

    def _new_weight(self, parameter: Parameter) -> Held | None:
        """A weight on the device; a quantized one is whole for a moment (it is quantized where it is loaded)."""
        if not (self.rank.quantization and parameter.linear):
            return self.timeline.alloc(self.rank.weight_bytes(parameter), "weights")
        whole = self.timeline.alloc(parameter.numel * parameter.dtype_bytes, "weights")
        small = self.timeline.alloc(self.rank.weight_bytes(parameter), "weights")
        self.timeline.free(whole)
        return small

    def cast(self) -> None:
        """`engine._cast_module_mixed_precision`: parameters of another dtype become the compute dtype, one by one."""
        rank, timeline = self.rank, self.timeline
        for i, p in enumerate(rank.parameters):
            if p.part == "adapters" and rank.model_bytes != FP32:
                cast = timeline.alloc(p.numel * rank.model_bytes, "adapters")
                timeline.free(rank.weights[i])
                rank.weights[i] = cast

    def partition_new(self, parameter: Parameter) -> Held | None:
        """A parameter made under zero.Init: whole for a moment, then this rank's shard. Only stage 3 partitions."""
        return self.timeline.alloc(parameter.numel * self.rank.model_bytes, "weights")

    def initialize(self) -> None:
        """Everything deepspeed.initialize leaves and takes on the device."""
        raise NotImplementedError

    def gradient(self, index: int, held: Held) -> None:
        """A parameter's gradient is complete."""
        raise NotImplementedError

    def backward_ends(self) -> None:
        """The backward epilogue: what is left in buckets is reduced."""
        raise NotImplementedError

    def step(self) -> None:
        """The optimizer step."""
        raise NotImplementedError

    def adam_states(self, numel: int) -> None:
        """First step of a tensor of `numel` elements: exp_avg and exp_avg_sq in fp32 (torch.optim.adam)."""
        for _ in range(0 if self.rank.optimizer == "SGD" else 2):
            self._adam.append(self.timeline.alloc(numel * FP32, "optimizer_states"))

    def adam_scratch(self, numels: list[int]) -> None:
        """torch's foreach AdamW takes √exp_avg_sq of all tensors at once; the fused kernels take nothing."""
        if self.rank.optimizer == "AdamW (torch)":
            held = [self.timeline.alloc(n * FP32, "optimizer_scratch") for n in numels]
            for block in held:
                self.timeline.free(block)

    def norm_scratch(self, numel: int) -> None:
        """The gradient norm is taken in fp64, one tensor at a time (`zero/utils.get_norm_dtype`)."""
        self.timeline.scratch(numel * FP64, "optimizer_scratch")
