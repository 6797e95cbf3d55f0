"""Places in a request: the fields of its nested mappings and lists, as `--set` spells them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ...errors import InputError
from ...profiles.io.document import FieldPath, dotted
from ...profiles.io.reader import read_document

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def parse_set(text: str) -> tuple[FieldPath, Any]:
    """`groups[0].count=4` -> (("groups", 0, "count"), 4). Raises InputError."""
    name, equals, value = text.partition("=")
    place = tuple(int(number) if number else key.strip() for number, key in _PART.findall(name.strip()))
    if not equals or not place or not value.strip():
        raise InputError(f"--set `{text}` is not `field=value`", hint="write `--set workload.seq_len=4096`")
    return place, read_document("--set", text=value).data


def item_at(holder: dict[Any, Any] | list[Any], place: FieldPath, origin: str) -> Any:
    """The value at the end of `place` in the mapping or list that holds it; None: a mapping without it.

    Raises InputError, which names `origin`, for an item that a list does not have.
    """
    key = place[-1]
    if isinstance(holder, dict):
        return holder.get(key)
    if isinstance(key, int) and key < len(holder):
        return holder[key]
    numbers = f"its items are [0] to [{len(holder) - 1}]" if holder else "it is empty"
    raise InputError(f"{origin}: `{dotted(place[:-1])}` is a list without `{key}`: {numbers}",
                     hint="write the number of an item in brackets: `--set cluster.groups[0].count=4`")  # fmt: skip


def parts_of(data: Any, place: FieldPath = ()) -> Iterator[FieldPath]:
    """The places of all fields in `data`, items of lists too, each after the one that holds it."""
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in below:
        yield (*place, key)
        yield from parts_of(value, (*place, key))


def leaves_of(data: Any, place: FieldPath = ()) -> list[FieldPath]:
    """The places of the values in nested mappings; a list or an empty mapping is one value."""
    if isinstance(data, dict) and data:
        return [leaf for key, value in data.items() for leaf in leaves_of(value, (*place, str(key)))]
    return [place] if place else []
