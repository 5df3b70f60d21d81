"""A run, replayed: load, initialise, three steps, each request in the order a real run makes it.

Not here: what the numbers are called outside (report.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.memory.case import MemoryCase
from course_lib.memory.engine.base import Engine, Rank
from course_lib.memory.engine.fetch import Coordinator
from course_lib.memory.engine.plain import PlainEngine
from course_lib.memory.engine.zero3 import Zero3Engine
from course_lib.memory.engine.zero12 import Zero12Engine
from course_lib.memory.settings import DTYPE_BYTES, ZeroSettings
from course_lib.memory.timeline import Held, Phase, Timeline
from course_lib.memory.trace.expand import ALLOCATE, RELEASE, expand
from course_lib.memory.trace.recorder import FIRST_MATMUL
from course_lib.memory.trace.step import (
    BACKWARD_ENDS,
    FORWARD_ENDS,
    LOSS_BEGINS,
    GradientReady,
    ModuleEdge,
    StepTrace,
    trace_evaluation,
    trace_step,
)
from course_lib.shapes.parameters import ModelShape
from course_lib.units import KIB, MIB

STEPS = 2
"""The second step has every state and a complete trace; in all measured cases the third equals it to the byte."""
WORKSPACE_HOPPER = 32 * MIB
WORKSPACE_OTHER = 8320 * KIB
"""cuBLAS workspace per handle: 32 MiB from compute capability 9.0, else 2×4096 + 8×16 KiB (`CUDABlas.cpp`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """What a replayed run reached."""

    load: Phase
    init: Phase
    steps: tuple[tuple[Phase, ...], ...]
    """For each step its phases forward, loss, backward, step."""
    after: tuple[Phase, ...]
    """Evaluation on a batch of the same size, then saving."""
    host: dict[str, int]
    pinned: tuple[int, ...]

    def peak(self, step: int) -> int:
        return max(phase.peak_bytes for phase in self.steps[step])


def simulate(
    shape: ModelShape, case: MemoryCase, settings: ZeroSettings, *, capability: int = 9, steps: int = STEPS
) -> Simulated:
    """Replay `case` on one rank.

    Args:
        capability: major compute capability of the GPU (9 Hopper, 10 Blackwell), for cuBLAS's workspace.
    """
    timeline = Timeline()
    rank = Rank(
        timeline=timeline,
        parameters=shape.parameters,
        settings=settings,
        world_size=case.world_size,
        model_bytes=DTYPE_BYTES[case.dtype],
        optimizer=case.optimizer,
        quantization=case.quantization,
        partitioned=case.load == "zero_init" and settings.stage == 3,
    )
    engine = make_engine(rank)
    load = timeline.begin("load")
    engine.load(tied_bytes=_tied_bytes(shape), gathered=not rank.partitioned)
    init = timeline.begin("init")
    engine.initialize()
    # One rank with its parameters on the device has nothing to fetch: the shard is the parameter.
    fetches = settings.stage == 3 and (case.world_size > 1 or settings.offload_param is not None)
    trace = trace_step(shape, case, memory_efficient_linear=settings.keeps_linear_inputs, edges=fetches)
    events = list(expand(trace, shape.stacks, checkpointing=case.gradient_checkpointing))
    workspace = WORKSPACE_HOPPER if capability >= 9 else WORKSPACE_OTHER
    coordinator = Coordinator(rank, engine.persistent) if fetches else None
    replay = _Replay(timeline, engine, shape, trace, workspace, coordinator)
    done = tuple(replay.step(events) for _ in range(steps))
    evaluation = trace_evaluation(shape, case)
    after = (replay.evaluate(list(expand(evaluation, shape.stacks, checkpointing=False))), replay.save())
    timeline.end()
    return Simulated(load=load, init=init, steps=done, after=after, host=rank.host, pinned=tuple(rank.pinned))


def make_engine(rank: Rank) -> Engine:
    """The engine that DeepSpeed would choose for the stage."""
    kind = {0: PlainEngine, 1: Zero12Engine, 2: Zero12Engine, 3: Zero3Engine}[rank.settings.stage]
    return kind(rank)


def _tied_bytes(shape: ModelShape) -> int:
    """Weights that constructors allocate before they are tied: an lm_head as large as the embedding."""
    embeddings = [p for p in shape.parameters if p.part == "embeddings"]
    if not embeddings or not any("lm_head" in name for name in shape.tied):
        return 0
    return max(p.numel * p.dtype_bytes for p in embeddings)


class _Replay:
    """Steps of one run on a timeline; cuBLAS workspaces come with the first step and stay."""

    def __init__(
        self,
        timeline: Timeline,
        engine: Engine,
        shape: ModelShape,
        trace: StepTrace,
        workspace: int,
        coordinator: Coordinator | None,
    ) -> None:
        self._coordinator = coordinator
        self._timeline, self._engine, self._workspace = timeline, engine, workspace
        self._workspaces = 0
        self._left: list[Held] = []
        self._index = {(p.template, p.layer): i for i, p in enumerate(shape.parameters)}
        self._stacked = {p.template for p in shape.parameters if p.layer is not None}
        self._batch = trace.batch_bytes

    def step(self, events: list[tuple]) -> tuple[Phase, ...]:
        timeline = self._timeline
        if self._batch:
            timeline.end()
            timeline.alloc(self._batch, "batch")
            self._batch = 0
        for held in self._left:
            timeline.free(held)
        phases = [timeline.begin("forward")]
        live: dict[Any, Held] = {}
        passes = 0
        if self._coordinator:
            self._coordinator.begin_step()
        for event in events:
            kind = event[0]
            if kind == ALLOCATE:
                held = timeline.alloc(event[2], event[3])
                if held is not None:
                    live[event[1]] = held
            elif kind == RELEASE:
                timeline.free(live.pop(event[1], None))
            else:
                mark = event[1]
                if isinstance(mark, GradientReady):
                    held = live.pop(event[3], None)
                    if held is not None:
                        self._engine.gradient(self._parameter(mark.template, event[2]), held)
                elif isinstance(mark, ModuleEdge):
                    self._edge(mark, event[2])
                elif mark == FIRST_MATMUL:
                    if self._workspaces == passes:
                        timeline.alloc(self._workspace, "workspace")
                        self._workspaces += 1
                    passes += 1
                elif mark == LOSS_BEGINS:
                    phases.append(timeline.begin("loss"))
                elif mark == FORWARD_ENDS:
                    phases.append(timeline.begin("backward"))
                elif mark == BACKWARD_ENDS:
                    self._backward_ends()
        phases.append(timeline.begin("step"))
        if self._coordinator:
            self._coordinator.begin_optimizer_step()
        self._engine.step()
        if self._coordinator:
            self._coordinator.end_optimizer_step()
        # The phase ends here, with the step's output still alive.
        timeline.end()
        self._left = list(live.values())
        return tuple(phases)

    def evaluate(self, events: list[tuple]) -> Phase:
        """A forward without gradients on a batch of the same size; gathers are not replayed."""
        timeline = self._timeline
        for held in self._left:
            timeline.free(held)
        phase = timeline.begin("eval")
        live: dict[Any, Held | None] = {}
        for event in events:
            if event[0] == ALLOCATE:
                live[event[1]] = timeline.alloc(event[2], event[3])
            elif event[0] == RELEASE:
                timeline.free(live.pop(event[1], None))
        for held in live.values():
            timeline.free(held)
        self._left = []
        return phase

    def save(self) -> Phase:
        """Saving gathers the trainable parameters at stage 3 on several ranks; elsewhere it copies to the host."""
        phase = self._timeline.begin("save")
        rank = self._engine.rank
        if rank.settings.stage == 3 and rank.world_size > 1:
            whole = sum(p.numel for _, p in rank.trainable()) * rank.model_bytes
            self._timeline.scratch(whole, "gathered_parameters")
        return phase

    def _backward_ends(self) -> None:
        if self._coordinator:
            self._coordinator.end_backward()
        self._engine.backward_ends()

    def _edge(self, edge: ModuleEdge, layer: int | None) -> None:
        params = tuple(self._parameter(t, layer) for t in edge.templates)
        module = (edge.templates, layer)
        if edge.enter:
            self._coordinator.enter(module, params, forward=edge.forward, recomputing=edge.recomputing)
        else:
            self._coordinator.leave(module, params, forward=edge.forward)

    def _parameter(self, template: int, layer: int | None) -> int:
        return self._index[(template, layer if template in self._stacked else None)]
