"""Quantities with units at the border, base SI inside.

`parse("3.35 TB/s", "B/s")` -> 3.35e12. TB is 1e12, TiB is 2**40; lower-case b is a bit (`400 Gb/s`, as on the cable).
A number without a unit is an error.
"""

from __future__ import annotations

import re
from typing import Literal

from ..errors import InputError

Dimension = Literal["B", "B/s", "s", "FLOP/s", "count", "W", "Hz", "USD/h"]

GIB = 2.0**30
HOUR_S, DAY_S = 3600.0, 86400.0

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": GIB, "Ti": 2.0**40, "Pi": 2.0**50}
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": HOUR_S, "d": DAY_S}
_COUNT = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_NUMBER = re.compile(r"^\s*([-+]?[0-9][0-9_,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)\s*([^\s].*?)?\s*$")
_HINTS: dict[Dimension, str] = {
    "B": "write `80 GB` (1e9 bytes) or `80 GiB` (2^30 bytes)",
    "B/s": "write `400 Gb/s` (bits, as on the cable) or `50 GB/s` (bytes)",
    "s": "write `3 us`, `2 ms`, `10 s` or `30 d`",
    "FLOP/s": "write `989 TFLOP/s`",
    "count": "write a number such as `4M` or `15T`",
    "W": "write `700 W`",
    "Hz": "write `1830 MHz`",
    "USD/h": "write `98.32 USD/h`",
}


def parse(text: object, dimension: Dimension) -> float:
    """The value of `text` in base units of `dimension`.

    Raises InputError (with the two readings as a hint) for a bare number, an unknown unit or a negative value.
    """
    if isinstance(text, int | float) and not isinstance(text, bool) and dimension != "count":
        raise InputError(f"{text:g} has no unit", hint=_HINTS[dimension])
    match = _NUMBER.match(str(text))
    if match is None:
        raise InputError(f"`{text}` is not a quantity", hint=_HINTS[dimension])
    number, unit = float(match[1].replace(",", "").replace("_", "")), (match[2] or "").strip()
    if not unit and dimension != "count":
        raise InputError(f"{match[1]} has no unit", hint=_HINTS[dimension])
    factor = _factor(unit, dimension)
    if factor is None:
        raise InputError(f"`{text}`: unknown unit `{unit}`", hint=_HINTS[dimension])
    if dimension == "B" and not unit.endswith("B"):
        meant = f"{match[1]}{re.sub('b(it)?$', 'B', unit)}"
        raise InputError(f"`{text}` is in bits, where bytes are counted", hint=f"write `{meant}`")
    if number < 0:
        raise InputError(f"`{text}` is negative", hint=_HINTS[dimension])
    return number * factor


def whole_number(value: object) -> int | None:
    """The whole number that a user means by text, an integer or `8.0`, None where it is none."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return None if isinstance(value, bool) or (isinstance(value, float) and number != value) else int(number)


def _factor(unit: str, dimension: Dimension) -> float | None:
    if dimension == "s":
        return _TIME.get(unit)
    if dimension == "count":
        return _COUNT.get(unit)
    if dimension in ("W", "Hz"):
        return _PREFIX.get(unit[: -len(dimension)]) if unit.endswith(dimension) else None
    if dimension == "USD/h":
        return 1.0 if unit in ("USD/h", "$/h") else None
    if dimension == "FLOP/s":
        stem = re.sub(r"(FLOP/s|FLOPS|FLOPs)$", "", unit)
        return _PREFIX.get(stem) if stem != unit else None
    if dimension == "B/s":
        if not unit.endswith(("/s", "ps")):
            return None
        unit = unit[:-2]
    return _bytes_factor(unit)


def _bytes_factor(unit: str) -> float | None:
    if unit.endswith("bit"):
        unit = unit[:-3] + "b"
    if not unit or unit[-1] not in "Bb":
        return None
    stem, scale = unit[:-1], (1.0 if unit[-1] == "B" else 0.125)
    prefix = _PREFIX.get(stem, _BINARY.get(stem))
    return None if prefix is None else prefix * scale


def gib(num_bytes: float) -> str:
    """Bytes for people: GiB with one digit (`61.3`), two below 10."""
    value = num_bytes / GIB
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def count(number: float) -> str:
    """A large count for people: `8.03B`, `405B`, `1.2M`."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:.3g}{suffix}"
    return f"{number:.0f}"
