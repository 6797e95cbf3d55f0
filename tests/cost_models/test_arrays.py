"""Groups of equal codes and rows against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.arrays import distinct, group_rows

_values = st.lists(st.integers(0, 300), max_size=60)


@given(_values, st.integers(1, 5), st.booleans())
def test_codes_are_grouped_as_numpy_groups_them(values: list[int], repeats: int, known: bool) -> None:
    codes = np.repeat(np.array(values, dtype=np.int64), repeats)
    found, index = distinct(codes, 301 if known else None)
    expected, inverse = np.unique(codes, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert index.tolist() == inverse.tolist()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1 << 20), st.integers(0, 70)), min_size=1, max_size=60))
def test_rows_are_grouped_as_numpy_groups_them(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, dtype=np.int64)
    first, index = group_rows(table.T)
    expected, at, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    assert table[first].tolist() == expected.tolist()
    assert first.tolist() == at.tolist()
    assert index.tolist() == inverse.ravel().tolist()


def test_rows_of_wide_columns_do_not_collide() -> None:
    """Twelve columns of up to 16,384: a number per combination of values would need 168 bits."""
    wide = np.array([[0] * 12, [16384] * 12, [1, *[16384] * 11], [16384] * 12], dtype=np.int64)
    first, index = group_rows(wide.T)
    assert first.tolist() == [0, 2, 1]
    assert index.tolist() == [0, 2, 1, 2]


def test_more_combinations_than_numbers_are_an_error() -> None:
    many = np.array([np.arange(1000)] * 7, dtype=np.int64)
    with pytest.raises(OverflowError):
        group_rows(many)
