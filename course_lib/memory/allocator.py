"""PyTorch's CUDA caching allocator, on paper: what a sequence of requests makes allocated and reserved.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (torch 2.11 to 2.14, default settings): requests are rounded
to 512 B; up to 1 MiB they come from 2 MiB segments, below 10 MiB from 20 MiB segments, above that from a segment of
their own rounded to 2 MiB; the best fitting free block is taken and split when enough remains; a freed block merges
with free neighbours; segments are returned only by empty_cache; each stream has free lists of its own. "Allocated"
counts whole blocks, so it is above what was asked for where a block was not worth splitting.
"""

from bisect import bisect_left, insort

from course_lib.units import MIB

MIN_BLOCK = 512
SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE_REQUEST = 10 * MIB
SEGMENT_ROUNDING = 2 * MIB


class Block:
    """A piece of a segment, free or in use."""

    __slots__ = ("address", "after", "before", "free", "pool", "size", "small")

    def __init__(self, address: int, size: int, small: bool, pool: list) -> None:
        self.address, self.size, self.small, self.pool = address, size, small, pool
        self.before: Block | None = None
        self.after: Block | None = None
        self.free = False


class CachingAllocator:
    """Allocated and reserved bytes of one device."""

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved = 0
        self._pools: dict[tuple[int, bool], list[tuple[int, int, Block]]] = {}
        self._next_address = 0

    def alloc(self, nbytes: int, stream: int = 0) -> Block:
        """A block for `nbytes` (≥ 1) on a stream."""
        size = -(-nbytes // MIN_BLOCK) * MIN_BLOCK
        small = size <= SMALL_REQUEST
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[(stream, small)] = []
        at = bisect_left(pool, (size, -1))
        block = pool.pop(at)[2] if at < len(pool) else self._segment(size, small, pool)
        remaining = block.size - size
        if remaining >= MIN_BLOCK if small else remaining > SMALL_REQUEST:
            rest = Block(block.address + size, remaining, small, pool)
            rest.before, rest.after = block, block.after
            if rest.after is not None:
                rest.after.before = rest
            block.after = rest
            block.size = size
            rest.free = True
            insort(pool, (rest.size, rest.address, rest))
        block.free = False
        self.allocated += block.size
        return block

    def release(self, block: Block) -> None:
        """Give a block back; it merges with free neighbours of its segment."""
        self.allocated -= block.size
        pool = block.pool
        before, after = block.before, block.after
        if before is not None and before.free:
            del pool[bisect_left(pool, (before.size, before.address))]
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and after.free:
            del pool[bisect_left(pool, (after.size, after.address))]
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        block.free = True
        insort(pool, (block.size, block.address, block))

    def empty_cache(self) -> None:
        """Return every wholly free segment to the driver (torch.cuda.empty_cache)."""
        for pool in self._pools.values():
            kept = []
            for entry in pool:
                block = entry[2]
                if block.before is None and block.after is None:
                    self.reserved -= block.size
                else:
                    kept.append(entry)
            pool[:] = kept

    def _segment(self, size: int, small: bool, pool: list) -> Block:
        if small:
            segment = SMALL_SEGMENT
        elif size < MIN_LARGE_REQUEST:
            segment = LARGE_SEGMENT
        else:
            segment = -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
        self.reserved += segment
        block = Block(self._next_address, segment, small, pool)
        # A gap keeps segments from looking adjacent; blocks never merge across segments.
        self._next_address += segment + SEGMENT_ROUNDING
        return block
