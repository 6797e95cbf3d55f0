"""The table of schedules: what is derived from it, and that no table by schedule may lack one."""

from __future__ import annotations

import numpy as np
import pytest
from meshwright.cost_models.layouts import SCHEDULES, Layout, parse
from meshwright.cost_models.quantities import resident
from meshwright.cost_models.schedule_kinds import CODE, FOLDED, KINDS, SPLITS_BACKWARD, by_code, rows_by_schedule
from meshwright.cost_models.schedules import simulator
from meshwright.cost_models.step import pipeline, pipeline_bounds


def test_codes_names_and_tokens_are_those_of_the_rows() -> None:
    assert tuple(CODE) == SCHEDULES == tuple(kind.name for kind in KINDS)
    assert len({kind.token for kind in KINDS}) == len(KINDS)
    for code, kind in enumerate(KINDS):
        layout = Layout(pp=4, schedule=code, vpp=kind.chunks or 3, dp=2, shard=2)
        assert parse(str(layout)) == layout
        assert FOLDED[code] == kind.folded
        assert SPLITS_BACKWARD[code] == kind.splits_backward


def test_a_table_without_a_schedule_is_an_error_that_names_both() -> None:
    table = dict.fromkeys(SCHEDULES, 1.0)
    assert by_code("hops", table) == dict.fromkeys(range(len(KINDS)), 1.0)
    del table["zb-v"]
    with pytest.raises(RuntimeError, match="hops: no entry for schedule zb-v"):
        by_code("hops", table)
    assert CODE["zb-v"] not in by_code("hops", table, among=tuple(kind for kind in KINDS if not kind.folded))


def test_every_schedule_has_its_forms() -> None:
    for table in (pipeline._BUBBLES, pipeline._HOPS, pipeline_bounds._LEAST, resident._IN_FLIGHT):
        assert sorted(table) == list(range(len(KINDS)))
    assert sorted(resident._MOMENTS) == np.flatnonzero(SPLITS_BACKWARD).tolist()
    assert set(SCHEDULES) <= set(simulator.ORDERS)


def test_rows_by_schedule() -> None:
    codes = np.array([2, 0, 2, 1])
    rows = {code: np.arange(4)[part].tolist() for code, part in rows_by_schedule(codes)}
    assert rows == {0: [1], 1: [3], 2: [0, 2]}
    assert list(rows_by_schedule(np.array([3, 3]))) == [(3, slice(None))]
    assert not list(rows_by_schedule(np.zeros(0, dtype=np.int64)))
