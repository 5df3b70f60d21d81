"""Fetching and releasing parameters during a step at stage 3 (DeepSpeed `zero/partitioned_param_coordinator.py`).

Needed where a parameter is not whole on the device: several ranks, or parameters on the host. The first step records
the order of modules; from the second on parameters are prefetched, kept for near reuse, and persistent ones stay.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from course_lib.memory.engine.base import Rank
from course_lib.memory.timeline import Held
from course_lib.units import ceil_div

GATHER_STREAM = 1


@dataclass(slots=True)
class _Gathered:
    """One all-gather under way: the flat buffer of several parameters lives until the last of them is waited for."""

    flat: Held | None
    waiting: set[int]
    done: bool = False


@dataclass(slots=True)
class Coordinator:
    """PartitionedParameterCoordinator of one rank."""

    rank: Rank
    persistent: frozenset[int]
    _whole: dict[int, Held | None] = field(default_factory=dict)
    _inflight: dict[int, _Gathered] = field(default_factory=dict)
    _active: dict[int, set[Hashable]] = field(default_factory=lambda: defaultdict(set))
    _in_backward: dict[Hashable, tuple[int, ...]] = field(default_factory=dict)
    _recomputed: dict[Hashable, set[int]] = field(default_factory=lambda: defaultdict(set))
    _order: list[tuple[int, ...]] = field(default_factory=list)
    _trace: list[tuple[int, int]] = field(default_factory=list)
    _queue: deque = field(default_factory=deque)
    _fetched_for: dict[int, int] = field(default_factory=dict)
    _complete: bool = False
    _step: int = 0
    _available: int = 0

    def begin_step(self) -> None:
        """reset_step at the start of forward: a recorded order becomes the trace."""
        if self._order and not self._complete:
            self._trace = [(p, at) for at, params in enumerate(self._order) for p in sorted(set(params))]
            self._complete = True
        self._queue = deque(self._trace)
        self._fetched_for = defaultdict(lambda: -(10**10))
        self._step = 0
        self._available = 0

    def enter(self, module: Hashable, params: tuple[int, ...], *, forward: bool, recomputing: bool) -> None:
        """Before a module runs: fetch what it needs now, then prefetch what comes next."""
        if not self._complete:
            self._order.append(params)
        if not forward:
            self._in_backward[module] = params
        self._gather([p for p in params if p not in self._whole and p not in self._inflight])
        for p in params:
            self._active[p].add(module)
            if forward and recomputing and self._in_backward and not self.rank.parameters[p].trainable:
                owner = next(reversed(self._in_backward))
                self._recomputed[owner].add(p)
                self._active[p].add(owner)
            self._wait(p)
        if self._complete:
            self._prefetch(params)
        self._step += 1

    def leave(self, module: Hashable, params: tuple[int, ...], *, forward: bool) -> None:
        """After a module ran: release what is not needed soon."""
        release = self._releasable(params) if self._complete else set(params)
        members = set(params)
        if not forward:
            again = self._recomputed.pop(module, set())
            release |= {p for p in again if p not in self.persistent}
            members |= again
            self._in_backward.pop(module, None)
        for p in members:
            self._active[p].discard(module)
            if p in release:
                self._release(p)

    def end_backward(self) -> None:
        """release_backward_leftovers: modules whose input needed no gradient get no post-backward hook."""
        for module in list(reversed(self._in_backward)):
            params = set(self._in_backward.pop(module)) | self._recomputed.pop(module, set())
            for p in params:
                self._active[p].discard(module)
                if p not in self.persistent:
                    self._release(p)

    def begin_optimizer_step(self) -> None:
        """_partition_all_parameters: everything is released."""
        for p in list(self._inflight):
            self._wait(p)
        self._active.clear()
        for p in list(self._whole):
            self._release(p)

    def end_optimizer_step(self) -> None:
        """_post_step gathers the persistent parameters, which then stay whole through the next step."""
        waiting = [p for p in sorted(self.persistent) if p not in self._whole]
        for p in waiting:
            self._whole[p] = self._block(p, stream=0)

    def _whole_bytes(self, p: int) -> int:
        """Bytes of a gathered copy; 0 where the shard is the parameter (one rank, on the device)."""
        rank, parameter = self.rank, self.rank.parameters[p]
        if rank.world_size == 1 and (rank.weights.get(p) is not None or not self._on_host(p)):
            return 0
        return ceil_div(parameter.numel, rank.world_size) * rank.world_size * rank.model_bytes

    def _on_host(self, p: int) -> bool:
        return self.rank.settings.offload_param is not None and p not in self.persistent

    def _block(self, p: int, stream: int) -> Held | None:
        return self.rank.timeline.alloc(self._whole_bytes(p), "gathered_parameters", stream)

    def _gather(self, params: list[int]) -> None:
        if not params:
            return
        rank = self.rank
        stream = GATHER_STREAM if rank.settings.overlap_comm else 0
        self._available += sum(rank.parameters[p].numel for p in params)
        gathered = _Gathered(flat=None, waiting=set(params))
        if rank.world_size == 1 or len(params) == 1:
            for p in sorted(params):
                self._whole[p] = self._block(p, stream)
        else:
            total = sum(self._whole_bytes(p) for p in params)
            gathered.flat = rank.timeline.alloc(total, "gathered_parameters", stream)
        for p in params:
            self._inflight[p] = gathered

    def _wait(self, p: int) -> None:
        gathered = self._inflight.pop(p, None)
        if gathered is None:
            return
        if not gathered.done:
            gathered.done = True
            if gathered.flat is not None:
                stream = GATHER_STREAM if self.rank.settings.overlap_comm else 0
                for member in sorted(gathered.waiting):
                    self._whole[member] = self._block(member, stream)
        gathered.waiting.discard(p)
        if not gathered.waiting:
            self.rank.timeline.free(gathered.flat)

    def _release(self, p: int) -> None:
        if p in self._whole and p not in self._inflight and not self._active.get(p):
            self.rank.timeline.free(self._whole.pop(p))
            self._available -= self.rank.parameters[p].numel

    def _releasable(self, params: tuple[int, ...]) -> set[int]:
        release = {p for p in params if p not in self.persistent and self._fetched_for[p] <= self._step}
        traversed, at = 0, self._step
        while release and at < len(self._order) and traversed < self.rank.settings.max_reuse_distance:
            for p in self._order[at]:
                release.discard(p)
                traversed += self.rank.parameters[p].numel
            at += 1
        return release

    def _prefetch(self, params: tuple[int, ...]) -> None:
        settings, parameters = self.rank.settings, self.rank.parameters
        expected = {p for p in params if self._fetched_for[p] < self._step}
        dropped: set[int] = set()
        while self._queue and len(dropped) < len(expected):
            p, last_used = self._queue.popleft()
            self._fetched_for[p] = last_used
            dropped.add(p)
        room = min(settings.max_live_parameters - self._available, settings.prefetch_bucket_size)
        chosen: list[int] = []
        numel = 0
        while self._queue and settings.prefetch_bucket_size > 0 and numel < room:
            p, last_used = self._queue.popleft()
            self._fetched_for[p] = max(self._fetched_for[p], last_used)
            if p not in self._whole and p not in self._inflight and p not in chosen:
                chosen.append(p)
                numel += parameters[p].numel
        self._gather(chosen)
