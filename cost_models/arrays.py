"""Types of the arrays over a batch of layouts, and how they are grouped."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_WORTH_RUNS = 2  # a mean run at least so long makes the sort of run heads and its way back faster than one sort
_SPARSE = 4  # a table of at most so many values per code is faster than a sort
_SMALL = 2  # values below this are their own ranks, or nearly


def distinct(codes: Ints, size: int | None = None) -> tuple[Ints, Ints]:
    """The distinct values of [n] codes in order, and [n] the index of each code's: np.unique with its inverse.

    size: codes are in [0, size), if that is known. The rows of a batch come as products of choices, so equal codes
    stand in runs: only the head of each run is sorted.
    """
    if size is not None and size <= _SPARSE * len(codes):
        seen = np.zeros(size, dtype=bool)
        seen[codes] = True
        return np.flatnonzero(seen), (np.cumsum(seen) - 1)[codes]
    changes = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    if (len(changes) + 1) * _WORTH_RUNS > len(codes):
        values, inverse = np.unique(codes, return_inverse=True)
        return values, inverse.astype(np.int64, copy=False)
    heads = np.concatenate(([0], changes))
    values, inverse = np.unique(codes[heads], return_inverse=True)
    return values, np.repeat(inverse, np.diff(heads, append=len(codes))).astype(np.int64, copy=False)


def group_rows(columns: Iterable[Ints]) -> tuple[Ints, Ints]:
    """Distinct rows of non-negative columns [n]: the first index of each, in ascending order of the rows, and for
    every row [n] the number of its distinct row."""
    values, index = distinct(*_row_codes(columns))
    first = np.empty(len(values), dtype=np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]  # what is assigned last stays: the first row
    return first, index


def _row_codes(columns: Iterable[Ints]) -> tuple[Ints, int]:
    """[n] a number per row, equal where the rows are and in their order, and a number that all are below.

    Mixed radix: a digit is the value, or its rank among the values of its column where the values would need more
    numbers than a table of them may have. Raises OverflowError where int64 has no room.
    """
    columns = list(columns)
    radices = [int(column.max(initial=0)) + 1 for column in columns]
    sparse = math.prod(radices) > _SPARSE * max((len(column) for column in columns), default=0)
    codes, size = np.zeros(1, dtype=np.int64), 1
    for column, radix in zip(columns, radices, strict=True):
        digits, number = column, radix
        if sparse and radix > _SMALL:
            values, digits = distinct(column, radix)
            number = max(len(values), 1)
        size *= number
        if size > np.iinfo(np.int64).max:
            raise OverflowError("rows of more combinations than int64 numbers")
        codes = codes * number + digits
    return codes, size
