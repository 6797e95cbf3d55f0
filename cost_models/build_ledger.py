"""Builds the ledger of layouts: splits into stages, quantities, and rewrites by techniques."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .arrays import Array, Ints, distinct, group_rows
from .layouts import RECOMPUTE_MODES, Layouts
from .problem import Problem
from .quantities.interleaving_stalls import Stalls
from .quantities.ledger import Ledger, UnlikeRows
from .quantities.stages import Partition, SplitKey, build_splits, custom_splits, mean_splits
from .quantities.tables import Tables
from .quantities.traffic import StateTraffic
from .schedule_kinds import FOLDED
from .techniques import registry

_WORTH = 2  # rows per group from which on groups are worth a ledger of their own


def split_keys(layouts: Layouts) -> tuple[list[SplitKey], Ints]:
    """Distinct split keys of a batch and the index of each row's."""
    vpp = np.where(layouts["pp"] > 1, layouts["vpp"], 1)
    columns = (layouts["pp"], vpp, FOLDED[layouts["schedule"]].astype(np.int64))
    first, index = group_rows(columns)
    pps, vpps, folded = (column[first].tolist() for column in columns)
    return list(zip(pps, vpps, map(bool, folded), strict=True)), index


def build_totals(problem: Problem) -> Array:
    """[kind] layers, embedding, head and MTP projections of the whole model."""
    return np.asarray(build_splits(problem.pattern, problem.num_kinds, problem.edges, [(1, 1, False)]).total[0])


def build(
    problem: Problem, tables: Tables, layouts: Layouts, key: Ints, partition: Partition | None = None, *,
    mean: bool = False, alike: tuple[Ints, Ints] | None = None,
) -> Ledger:  # fmt: skip
    """The ledger of a batch whose rows use the shard keys `key` of `tables`. partition: stages of one's own, all rows
    of one pp, vpp and schedule. mean: equal stages of fractions of layers. alike: groups of rows that differ in
    RECOMPUTE_FIELDS only, as of `group_rows`."""
    first, row = alike if alike is not None and _WORTH * len(alike[0]) <= len(key) else (slice(None), slice(None))
    unlike = layouts if isinstance(first, slice) else layouts.take(first)
    keys, split = split_keys(unlike)
    ends = (problem.pattern, problem.num_kinds, problem.edges)
    if partition is not None:
        splits = custom_splits(*ends, *keys[0], partition)
    else:
        splits = mean_splits(*ends, keys) if mean else build_splits(*ends, keys, problem.stages)

    def rewritten(layouts: Layouts, key: Ints, split: Ints) -> Ledger:
        code = layouts["recompute"] << 8 | layouts["recompute_modules"]
        codes, index = distinct(code, len(RECOMPUTE_MODES) << 8)
        ledger = Ledger(
            problem=problem, tables=tables, layouts=layouts, key=key,
            codes=tuple((int(c >> 8), int(c & 0xFF)) for c in codes), code=index,
            splits=splits, split=split, stalls=None if mean else Stalls(problem, tuple(keys), partition),
            traffic=(),
        )  # fmt: skip
        return registry.rewrite(replace(ledger, traffic=(StateTraffic.of(ledger.states),)))

    whole = rewritten(layouts, key, split[row])
    if isinstance(first, slice) or isinstance(row, slice):
        return whole
    return replace(whole, unlike=UnlikeRows(rewritten(unlike, key[first], split), first, row))


def rows_of(ledger: Ledger, rows: Ints) -> Ledger:
    """The ledger of some rows of one with even stages."""
    alike = None if ledger.unlike is None else group_rows((ledger.unlike.row[rows],))
    return build(ledger.problem, ledger.tables, ledger.layouts.take(rows), ledger.key[rows], alike=alike)
