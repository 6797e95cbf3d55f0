"""Sets of names as bit masks: bit i stands for the i-th name of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import InputError


def names_of(mask: int, known: Sequence[str]) -> tuple[str, ...]:
    """The names in a mask, in the order of `known`."""
    return tuple(name for bit, name in enumerate(known) if mask >> bit & 1)


def mask_of(names: Iterable[str], known: Sequence[str], kind: str) -> int:
    """The mask of names, `none` for none of them. Raises InputError, which calls them `kind`, for an unknown one."""
    given = set(names) - {"none"}
    if unknown := sorted(given.difference(known)):
        raise InputError(f"unknown {kind} module `{unknown[0]}`", hint=f"known: {', '.join(known)}")
    return sum(1 << known.index(name) for name in given)
