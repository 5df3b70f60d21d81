"""Numbers as people write them in JSON: 5e7, "5e7", 1.5, Infinity."""

import math
from typing import Any


def is_number(value: Any) -> bool:
    """Whether this is a number and not a bool (which Python counts among them)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether this is a finite number without a fraction: 8 and 5e7 are, 1.5 and Infinity are not."""
    return is_number(value) and math.isfinite(value) and value == int(value)


def has_fraction(value: Any) -> bool:
    """Whether this is a finite number between two whole ones."""
    return is_number(value) and math.isfinite(value) and not is_whole(value)


def whole_near(value: Any, otherwise: int) -> int:
    """The whole number below a finite one; `otherwise` for Infinity and NaN."""
    return int(value) if math.isfinite(value) else otherwise


def number_in(value: Any) -> int | float | None:
    """The number that a quoted value means ("5e7" → 50000000), or None."""
    if not isinstance(value, str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if is_whole(number) else number
