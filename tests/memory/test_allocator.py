"""The caching allocator on paper against logs of the real one (one NVIDIA H200, torch 2.11)."""

import gzip
import json
from pathlib import Path

import pytest

from course_lib.memory.allocator import CachingAllocator
from course_lib.units import MIB

DATA = Path(__file__).parents[1] / "data/memory"


def replay(name: str) -> tuple[int, int, int]:
    """Peak reserved of the model, peak reserved of the log, and bytes still allocated at the end by both."""
    events = json.loads(gzip.decompress((DATA / f"allocator_{name}.json.gz").read_bytes()))
    allocator, live, reserved = CachingAllocator(), {}, 0
    most_model = most_real = 0
    for code, address, size, stream in events:
        if code == "a":
            live[address] = allocator.alloc(size, stream)
        elif code == "f" and address in live:
            allocator.release(live.pop(address))
        elif code == "S":
            reserved += size
        elif code == "s":
            reserved -= size
            allocator.empty_cache()
        most_model, most_real = max(most_model, allocator.reserved), max(most_real, reserved)
    return most_model, most_real, allocator.allocated


@pytest.mark.parametrize("name", ["full_z3", "z2_overlap"])
def test_reserved_equals_the_real_allocators_to_the_byte(name):
    model, real, _ = replay(name)
    assert model == real


def test_requests_are_rounded_to_512_bytes():
    allocator = CachingAllocator()
    allocator.alloc(1)
    assert allocator.allocated == 512


def test_a_large_block_keeps_a_rest_of_up_to_1_mib():
    allocator = CachingAllocator()
    first = allocator.alloc(12 * MIB)
    allocator.release(first)
    allocator.alloc(11 * MIB)
    # 12 - 11 = 1 MiB is not more than 1 MiB: the block is handed out whole and counted whole.
    assert allocator.allocated == 12 * MIB


@pytest.mark.parametrize(
    ("request_bytes", "segment"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)],
)
def test_segments_come_in_the_sizes_of_their_class(request_bytes, segment):
    allocator = CachingAllocator()
    allocator.alloc(request_bytes)
    assert allocator.reserved == segment


def test_neighbours_merge_and_serve_a_larger_request():
    allocator = CachingAllocator()
    blocks = [allocator.alloc(5 * MIB) for _ in range(4)]
    for block in (blocks[1], blocks[0], blocks[3], blocks[2]):
        allocator.release(block)
    before = allocator.reserved
    allocator.alloc(19 * MIB)
    assert allocator.reserved == before


def test_a_stream_does_not_use_another_streams_blocks():
    allocator = CachingAllocator()
    allocator.release(allocator.alloc(30 * MIB, stream=1))
    allocator.alloc(30 * MIB, stream=0)
    assert allocator.reserved == 60 * MIB


def test_empty_cache_returns_whole_segments_only():
    allocator = CachingAllocator()
    kept = allocator.alloc(4 * MIB)
    allocator.release(allocator.alloc(40 * MIB))
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB
    allocator.release(kept)
    allocator.empty_cache()
    assert allocator.reserved == 0
