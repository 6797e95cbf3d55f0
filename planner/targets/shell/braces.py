"""Brace expansion of a shell: `{1..3}`, `{a,b}`."""

from __future__ import annotations

import re

_BRACES = re.compile(r"\{([^{},]*(?:,[^{},]*)+|-?\d+\.\.-?\d+(?:\.\.-?\d+)?)\}")
# Quotes and variables, of which this expansion knows nothing, and braces inside braces.
_MORE = re.compile(r"[\\'\"$`]|\{[^}]*\{")
_MOST_ITEMS = 1000  # against endless scripts


def braced(raw: str) -> list[str]:
    """The words that a word becomes; the word itself where it has no braces, or quotes, variables or inner braces."""
    found = None if _MORE.search(raw) else _BRACES.search(raw)
    if found is None:
        return [raw]
    items = found[1].split(",") if "," in found[1] else _sequence(found[1])
    return [raw[: found.start()] + item + rest for item in items for rest in braced(raw[found.end() :])]


def _sequence(text: str) -> list[str]:
    """The numbers of `first..last..step`, with leading zeros where an end has them."""
    first, last, *steps = text.split("..")
    start, end, step = int(first), int(last), max(abs(int(steps[0])) if steps else 1, 1)
    numbers = range(start, end + 1, step) if start <= end else range(start, end - 1, -step)
    padded = any(re.match(r"-?0\d", each) for each in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in numbers[:_MOST_ITEMS]]
