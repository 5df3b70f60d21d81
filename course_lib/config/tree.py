"""A nested configuration by dotted key ("zero_optimization.stage"): get, list, set, delete.

A key that itself contains a dot is found too, where it stands; DeepSpeed has none, but people write them.
"""

import copy
from collections.abc import Iterator
from typing import Any

MISSING = object()
"""What `get` returns for a key that is not there (None is a value that people write)."""


def get(config: Any, dotted: str, default: Any = MISSING) -> Any:
    """The value at `dotted`, or `default` where the path ends early."""
    for key in _steps(config, dotted):
        if not isinstance(config, dict) or key not in config:
            return default
        config = config[key]
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
        parent: Any = result
        *blocks, last = _steps(result, dotted)
        for block in blocks:
            parent = parent.get(block) if isinstance(parent, dict) else None
        if isinstance(parent, dict):
            parent.pop(last, None)
    return result


def put(config: dict, dotted: str, value: Any) -> dict:
    """A deep copy with `dotted` set; blocks on the way are made where missing."""
    result = copy.deepcopy(config)
    parent = result
    *blocks, last = _steps(result, dotted)
    for block in blocks:
        if not isinstance(parent.get(block), dict):
            parent[block] = {}
        parent = parent[block]
    parent[last] = value
    return result


def join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _steps(config: Any, dotted: str) -> list[str]:
    """The keys to walk along: at each level the longest piece of what is left that is a key there."""
    steps, left = [], dotted.split(".")
    while left:
        known = (n for n in range(len(left), 1, -1) if isinstance(config, dict) and ".".join(left[:n]) in config)
        length = next(known, 1)
        key = ".".join(left[:length])
        steps.append(key)
        config = config.get(key) if isinstance(config, dict) else None
        left = left[length:]
    return steps
