"""Numbers and names as people read them. Every number on a screen goes through here."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

from ..errors import listed as listed

_NARROWEST, _WIDEST = 40, 80
GIB = 2**30
MIB = 2**20


def decimals(values: Iterable[float], digits: int = 3) -> int:
    """Decimal places at which the smallest positive value still shows `digits` digits, at most 6; 0 for large ones."""
    smallest = min((value for value in values if value > 0), default=1.0)
    return min(6, max(0, digits - 1 - math.floor(math.log10(smallest))))


def fixed(value: float | None, places: int) -> str:
    """`33.4`; `-` for what is not known."""
    return "-" if value is None or not math.isfinite(value) else f"{value:,.{places}f}"


def is_visible(value: float, places: int) -> bool:
    """Whether something of the value shows at that many decimal places."""
    return any(digit in "123456789" for digit in fixed(value, places))


def significant(value: float | None, digits: int = 3) -> str:
    """`989`, `3.35`, `0.0312`: that many digits, thousands with commas."""
    if value is None or not math.isfinite(value):
        return "-"
    return fixed(value, decimals([abs(value)], digits))


def gib(num_bytes: float | None) -> str:
    """Bytes in GiB with one decimal."""
    return fixed(None if num_bytes is None else num_bytes / GIB, 1)


def mib(num_bytes: float) -> str:
    """Bytes in MiB, whole."""
    return fixed(num_bytes / MIB, 0)


def percent(share: float | None, places: int = 1) -> str:
    return fixed(None if share is None else share * 100, places)


def more(share: float) -> str:
    """The excess over the best: `+1.5 %`, `+11 %`; `+0.0 %` for less than is shown, on either side."""
    if abs(share) < 0.0005:
        return "+0.0 %"
    return f"{share * 100:+.1f} %" if abs(share) < 0.0995 else f"{share * 100:+,.0f} %"


def count(number: float) -> str:
    """`4,212`, from 10 million on `123 million`: more digits are not read."""
    for scale, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= 10 * scale:
            return f"{number / scale:,.3g} {word}" if number < 999.5 * scale else f"{number / scale:,.0f} {word}"
    return f"{number:,.0f}"


def words(name: str) -> str:
    """`optimizer_states_bytes` -> `optimizer states`."""
    return name.removesuffix("_bytes").replace("_", " ")


def runs(numbers: Iterable[int]) -> str:
    """`3, 4, 5 x 2`: equal neighbours drawn together, five of 2 here."""
    counted = [(len(list(equal)), number) for number, equal in groupby(numbers)]
    return ", ".join(f"{number}" if count == 1 else f"{count} x {number}" for count, number in counted)


def ranges(numbers: Sequence[int]) -> str:
    """`0`, `1-6`, `1-3,7`: consecutive numbers drawn together."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def columns() -> int:
    """Columns of prose: those of the terminal, or COLUMNS, from 40 to 80."""
    return min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size((_WIDEST, 24)).columns))


def is_narrow() -> bool:
    """Whether there is less room than screens are made for."""
    return columns() < _WIDEST


def wrapped(line: str, hanging: str = "") -> str:
    """Prose as wide as `columns`; ids and paths are never broken."""
    return textwrap.fill(line, columns(), subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


def share(value: float) -> str:
    """`77 %`, `under 1 %`."""
    return f"{value * 100:.0f} %" if value >= 0.005 else "under 1 %"


def duration(seconds: float) -> str:
    """`0 s`, `67 us`, `33.4 s`, `5.2 h`, `12.3 days`."""
    if not seconds:
        return "0 s"
    per_second, unit = time_unit(seconds)
    return f"{significant(seconds * per_second)} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """How many of the unit that people write so long a time in are a second, and its name."""
    for scale, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * scale:
            return 1 / scale, unit
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "us")


def latencies(name: str, seconds: Sequence[float]) -> tuple[str, list[str]]:
    """(`TTFT ms`, numbers): of a column or a row, in the unit of the smallest one, ms at least."""
    per_second, unit = time_unit(max(min(seconds), 1e-3))
    return f"{name} {unit}", [significant(each * per_second) for each in seconds]


_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: object, dimension: str | None, *, bits: bool = False) -> str:
    """A number in the unit that people write: `800 Gb/s` (bits, for networks), `4.8 TB/s`, `80 GiB`, `14 us`.

    Words, factors and numbers without a unit come back as they are.
    """
    if value is None:
        return "-"
    if isinstance(value, str) or not isinstance(value, int | float):
        return str(value)
    if dimension == "B":
        return f"{plain(value / GIB)} GiB"
    if dimension == "s":
        scale, unit = (1e6, "us") if value < 1e-3 else (1e3, "ms") if value < 1 else (1.0, "s")
        return f"{plain(value * scale)} {unit}"
    if dimension == "USD/h":
        return f"{value:,.2f} USD/h"
    if dimension in ("B/s", "FLOP/s", "W"):
        unit = "b/s" if bits and dimension == "B/s" else dimension
        return _prefixed(value * 8 if unit == "b/s" else value, unit)
    return count(value) if value >= 1e7 else f"{value:.6g}"


def _prefixed(value: float, unit: str) -> str:
    scales = _SCALES if unit != "W" else ()
    scale, prefix = next(((s, p) for s, p in scales if value >= s * (1 - 1e-9)), (1.0, ""))
    return f"{plain(value / scale)} {prefix}{unit}"


def plain(value: float) -> str:
    """Four significant digits without trailing zeros: `989.5`, `3.2`, `400`."""
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:,.0f}"


def value_at(path: str, value: object, dimension: str | None) -> str:
    """The value at a path of a request; networks are in bits, as on the cable."""
    return quantity(value, dimension, bits="inter_node" in path or ".wan." in path)


def change(before: float | None, after: float | None) -> str:
    """`-4.2 %`; `x3.1` where it more than doubles, `=` where nothing of it shows, `-` where one of them is unknown."""
    if before is None or after is None or not math.isfinite(before) or not math.isfinite(after):
        return "-"
    if before == after:
        return "="
    if not before:
        return "new"
    ratio = after / before
    if ratio >= 2:
        return f"x{significant(ratio, 2)}"
    return more(ratio - 1) if abs(ratio - 1) >= 0.0005 else "="
