"""Host memory of one rank: offloaded states, and what pinning makes of them.

Not here: the process itself (3 to 5 GiB), page cache, data loader workers.
"""

from __future__ import annotations


def pinned_bytes(nbytes: int) -> int:
    """What one pinned allocation takes: torch's host allocator rounds up to a power of two.

    Source: torch `CachingHostAllocator` (`PowerOf2Ceil`); 33 GiB become 64.
    """
    return 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0


def host_parts(states: dict[str, int], pinned: tuple[int, ...]) -> dict[str, int]:
    """Bytes by part; `pinned_rounding` is what the power-of-two rounding adds."""
    rounding = sum(pinned_bytes(n) - n for n in pinned)
    parts = {part: nbytes for part, nbytes in states.items() if nbytes}
    if rounding:
        parts["pinned_rounding"] = rounding
    return parts
