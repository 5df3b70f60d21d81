"""Bytes on one device over time: every block has a part, every phase its peak, and the peak its parts.

Not here: which blocks a run asks for (trace/, engine/).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from course_lib.memory.allocator import Block, CachingAllocator

PHASES = ("load", "init", "forward", "loss", "backward", "step", "eval", "save")


@dataclass(slots=True)
class Phase:
    """What one phase reached. `parts` sum to `peak_bytes`, which counts whole allocator blocks."""

    name: str
    peak_bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    reserved_bytes: int = 0
    after_bytes: int = 0
    open: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """A block and the part it is counted under."""

    block: Block
    part: str


class Timeline:
    """A device that blocks are taken from, phase by phase."""

    def __init__(self) -> None:
        self.allocator = CachingAllocator()
        self.phases: list[Phase] = []
        self._live: dict[str, int] = {}

    def begin(self, name: str) -> Phase:
        """Close the running phase and start another; the running peak restarts at what is allocated now."""
        self.end()
        phase = Phase(name, self.allocator.allocated, dict(self._live), self.allocator.reserved)
        self.phases.append(phase)
        return phase

    def end(self) -> None:
        """Note what is left at the end of the running phase."""
        if self.phases and self.phases[-1].open:
            self.phases[-1].after_bytes = self.allocator.allocated
            self.phases[-1].open = False

    def alloc(self, nbytes: int, part: str, stream: int = 0) -> Held | None:
        """Take `nbytes` for `part`; nothing for 0 bytes."""
        if nbytes <= 0:
            return None
        allocator = self.allocator
        block = allocator.alloc(nbytes, stream)
        self._live[part] = self._live.get(part, 0) + block.size
        phase = self.phases[-1]
        if allocator.allocated > phase.peak_bytes:
            phase.peak_bytes = allocator.allocated
            phase.parts = self._live.copy()
        if allocator.reserved > phase.reserved_bytes:
            phase.reserved_bytes = allocator.reserved
        return Held(block, part)

    def free(self, held: Held | None) -> None:
        """Give back what alloc returned."""
        if held is not None:
            self._live[held.part] -= held.block.size
            self.allocator.release(held.block)

    def scratch(self, nbytes: int, part: str) -> None:
        """Take and give back at once."""
        self.free(self.alloc(nbytes, part))

    def relabel(self, held: Held, part: str) -> Held:
        """The same block counted under another part from now on."""
        self._live[held.part] -= held.block.size
        self._live[part] = self._live.get(part, 0) + held.block.size
        return Held(held.block, part)

    @property
    def live(self) -> dict[str, int]:
        """Bytes by part now."""
        return {part: nbytes for part, nbytes in self._live.items() if nbytes}
