"""Merges the branches of a script if only a run decides between them."""

from __future__ import annotations

from collections.abc import Sequence

from .values import UNKNOWN, UNSET, Value, Variables, mark


def agreed(results: Sequence[Variables], reason: str, choices: dict[str, set[str]]) -> Variables:
    """The variables after the branches. A differing variable keeps its common part and a mark that names the reason.

    choices: text of a mark -> its possible values; filled by this function.
    """
    out = results[0]
    for name in {name for result in results for name in result.values}:
        values = [result.values.get(name, mark(UNSET, f"${name}")) for result in results]
        if any(value != values[0] for value in values):
            text = f"${name} by {reason}" if f"${name}" != reason else reason
            out.values[name], rests = _shared(values, text)
            choices.setdefault(text, set()).update(rests)
    return out


def _shared(values: Sequence[Value], text: str) -> tuple[Value, list[str]]:
    """Returns (the common beginning with a mark behind it, the rest of each value)."""
    if all(isinstance(value, list) for value in values):
        count = _same([list(value) for value in values])
        return [*values[0][:count], mark(UNKNOWN, text)], [" ".join(value[count:]) for value in values]
    texts = [value if isinstance(value, str) else " ".join(value) for value in values]
    start = texts[0][: _same([list(value) for value in texts])]
    start = start[: max(start.rfind(space) for space in " \n\t") + 1]
    return start + mark(UNKNOWN, text), [value[len(start) :] for value in texts]


def _same(values: Sequence[Sequence[str]]) -> int:
    """The number of common first elements of all values."""
    count = 0
    for items in zip(*values, strict=False):
        if len(set(items)) > 1:
            break
        count += 1
    return count
