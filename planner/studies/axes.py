"""The axes of a study: a path and its values, out of `path=a..b` or `path=a,b,c` as a user writes them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...cost_models import units
from ...errors import InputError
from .paths import WHOLE, Value, dimension_of
from .values import checked_value, factor_of, split_assignment

MOST_POINTS = 10_000
_POINTS_PER_OCTAVE, _LINEAR_POINTS = 4, 11


@dataclass(frozen=True)
class Axis:
    """A path that a study varies."""

    path: str
    values: tuple[Value, ...]  # in order
    log: bool  # whether they are evenly spaced in their logarithm


def parse_vary(text: str) -> Axis:
    """`path=a..b`, `path=a..b:9`, `path=a..b:linear:9` or `path=a,b,c`.

    A range is spaced by a constant factor (whole numbers: doubled) unless it says `linear`.
    Raises InputError for an unknown path, a missing unit, ends in the wrong order, and more than MOST_POINTS points.
    """
    path, value = split_assignment(text, "--vary", "cluster.links.inter_node.bandwidth=100Gb/s..3.2Tb/s")
    if ".." not in value:
        values = [checked_value(path, part.strip(), "--vary") for part in value.split(",") if part.strip()]
        if len(values) > MOST_POINTS:
            raise InputError(f"--vary {path}: {len(values):,} points", hint=f"at most {MOST_POINTS:,}")
        return Axis(path, tuple(dict.fromkeys(values)), log=False)
    ends, *options = value.split(":")
    numbers = [_end(path, end) for end in ends.split("..")]
    if len(numbers) != 2:
        raise InputError(f"--vary {path}: `{ends}` is not `a..b`", hint="write `1..8`")
    low, high = numbers
    if not 0 < low < high:
        hint = "begin above 0" if low < high else "write the smaller one first"
        raise InputError(f"--vary {path}: `{ends}` does not run from a smaller to a larger number above 0", hint=hint)
    linear, count = _spacing(path, options)
    if path in WHOLE:
        return _whole_range(path, round(low), round(high), linear, count)
    factor = isinstance(checked_value(path, ends.split("..")[0], "--vary"), str)
    points = _spaced(low, high, linear, count or _usual_count(low, high, linear))
    return Axis(path, tuple(f"x{point:.9g}" if factor else point for point in points), log=not linear)


def _end(path: str, text: str) -> float:
    """One end of a range, in base units or as a factor. Raises InputError for words."""
    if path in WHOLE:
        try:
            return units.parse(text, "count")
        except InputError as error:
            raise InputError(f"--vary {path}: {error.message}", hint="write `8..256`") from None
    if dimension_of(path) is None:
        raise InputError(f"--vary {path}: `{text}` is no number, so it has no range", hint="list them: `a,b,c`")
    value = checked_value(path, text, "--vary")
    return factor_of(value) if isinstance(value, str) else value


def _spacing(path: str, options: Sequence[str]) -> tuple[bool, int]:
    """(whether points are evenly spaced, how many; 0: as usual) out of the options after a range."""
    linear, count = False, 0
    for option in options:
        if option in ("log", "linear"):
            linear = option == "linear"
        elif re.fullmatch(r"[0-9][0-9_,]*", option):
            count = int(option.replace(",", "").replace("_", ""))
        else:
            hint = "after the range comes `log` or `linear`, and how many points: `1..8:linear:9`"
            raise InputError(f"--vary {path}: `{option}` is no spacing", hint=hint)
    if count > MOST_POINTS:
        raise InputError(f"--vary {path}: {count:,} points", hint=f"at most {MOST_POINTS:,}; a curve needs some 20")
    if options and count == 1:
        raise InputError(f"--vary {path}: a range has 2 points or more", hint="`--set` changes one value")
    return linear, count


def _usual_count(low: float, high: float, linear: bool) -> int:
    return _LINEAR_POINTS if linear else min(max(round(_POINTS_PER_OCTAVE * math.log2(high / low)) + 1, 5), 65)


def _spaced(low: float, high: float, linear: bool, count: int) -> list[float]:
    """`count` points from low to high, both exactly."""
    share = [i / (count - 1) for i in range(count)]
    inner = [low + (high - low) * s if linear else low * (high / low) ** s for s in share[1:-1]]
    return [low, *inner, high]


def _whole_range(path: str, low: int, high: int, linear: bool, count: int) -> Axis:
    """Whole numbers: all of them (`linear`), so many, or each twice the last."""
    if count:
        points = [round(point) for point in _spaced(low, high, linear, count)]
    elif linear:
        if high - low >= MOST_POINTS:
            raise InputError(f"--vary {path}: {high - low + 1:,} points", hint=f"at most {MOST_POINTS:,}")
        points = list(range(low, high + 1))
    else:
        points = [low * 2**i for i in range(int(math.log2(high / low) + 1e-9) + 1)]
        points += [] if points[-1] == high else [high]
    return Axis(path, tuple(str(point) for point in dict.fromkeys(points)), log=not linear)
