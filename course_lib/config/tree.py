"""A nested configuration by dotted key ("zero_optimization.stage"): get, list, set, delete.

Keys that contain a dot themselves are not addressed; DeepSpeed has none.
"""

import copy
from collections.abc import Iterator
from typing import Any

MISSING = object()
"""What `get` returns for a key that is not there (None is a value that people write)."""


def get(config: Any, dotted: str, default: Any = MISSING) -> Any:
    """The value at `dotted`, or `default` where the path ends early."""
    for part in dotted.split("."):
        if not isinstance(config, dict) or part not in config:
            return default
        config = config[part]
    return config


def has(config: Any, dotted: str) -> bool:
    return get(config, dotted) is not MISSING


def paths(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every (dotted key, value), a block before what stands in it."""
    if not isinstance(config, dict):
        return
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        yield dotted, value
        yield from paths(value, f"{dotted}.")


def without(config: dict, *dotted_keys: str) -> dict:
    """A deep copy with these keys left out."""
    result = copy.deepcopy(config)
    for dotted in dotted_keys:
        *blocks, last = dotted.split(".")
        parent = get(result, ".".join(blocks)) if blocks else result
        if isinstance(parent, dict):
            parent.pop(last, None)
    return result


def put(config: dict, dotted: str, value: Any) -> dict:
    """A deep copy with `dotted` set; blocks on the way are made where missing."""
    result = copy.deepcopy(config)
    *blocks, last = dotted.split(".")
    parent = result
    for block in blocks:
        if not isinstance(parent.get(block), dict):
            parent[block] = {}
        parent = parent[block]
    parent[last] = value
    return result


def join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
