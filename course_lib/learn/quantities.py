"""How numbers are said to a learner: with their unit, in a size one can read, and as a plain ratio."""

from course_lib.units import GB, GIB, MIB, human_bytes


def say(value: object, unit: str = "") -> str:
    """A value with its unit: say(2**31, 'bytes') == '2.00 GiB (2,147,483,648 bytes)'."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value!r} {unit}".strip()
    if unit == "bytes" and abs(value) >= MIB:
        return f"{human_bytes(value)} ({value:,.0f} bytes)"
    one = abs(value) == 1 and unit.endswith("s")
    return f"{number(value)} {unit[:-1] if one else unit}".strip()


def short(value: object, unit: str = "") -> str:
    """A value with its unit in one short form: short(48.9 * 2**30, 'bytes') == '48.9 GiB (52.5 GB)'."""
    if unit == "bytes" and _is_number(value) and abs(value) >= GB:
        return f"{value / GIB:.1f} GiB ({value / GB:.1f} GB)"
    if unit == "bytes" and _is_number(value) and abs(value) >= MIB:
        return human_bytes(value)
    return say(value, unit)


def number(value: float) -> str:
    """Thousands separated; four significant digits for what is not whole."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def argument(value: object) -> str:
    """An argument as a person would type it: 7500000000 is 7.5e9."""
    if _is_number(value) and abs(value) >= 1e6:
        mantissa, _, exponent = f"{value:e}".partition("e")
        text = f"{float(mantissa):g}e{int(exponent)}"
        if float(text) == value:
            return text
    return repr(value)


def ratio(yours: float, truth: float) -> str:
    """How far a guess was, in words: ratio(4, 16) == 'It is 4 times what you said.'"""
    if yours == truth:
        return "You said exactly that."
    if yours == 0 or truth == 0 or (yours < 0) != (truth < 0):
        return f"You said {number(yours)}; it is {number(truth)}."
    factor = truth / yours
    if not 1e-6 < factor < 1e6:
        return f"You said {number(yours)}; it is {number(truth)}."
    off = abs(yours - truth) / abs(truth)
    if off <= 0.02:
        return "You were within 2 %."
    if off <= 0.5:
        return f"You were {off * 100:.0f} % too {'low' if truth > yours else 'high'}."
    if factor > 1:
        return f"It is {factor:.3g} times what you said."
    return f"You said {1 / factor:.3g} times as much as it is."


def agreement(computed: float, seen: float, seen_name: str) -> str:
    """How far a computed value is from a seen one: 'Computed and measured differ by 0.2 %.'"""
    if computed == seen:
        return f"Computed and {seen_name} are equal."
    if seen == 0:
        return f"Computed is {number(computed)}, {seen_name} is 0."
    percent = abs(computed - seen) / abs(seen) * 100
    said = f"{percent:.2g}" if percent < 10 else f"{percent:,.0f}"
    return f"Computed and {seen_name} differ by {said} % of the {seen_name} value."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
