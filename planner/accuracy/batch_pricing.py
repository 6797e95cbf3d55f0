"""Prices published runs in batches, once or repeatedly under other constants.

Runs of one model, cluster, workload and stack differ in their layouts only and are priced as one batch. A batch builds
its operations once; another calibration only prices them anew (docs/architecture.md, section 4), and costs nothing
where it changes none of the batch's rates.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array
from ...cost_models.layouts import Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities import tables
from ...cost_models.quantities.interleaving_stalls import Stalls
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.stages import Partition, Splits, chunk_devices, custom_splits, is_folded
from ...cost_models.quantities.tables import index_keys
from ...cost_models.rates.rates import STACK_FIELDS, Rates
from ...cost_models.specs.stack import StackSpec
from ...cost_models.step import step
from ...profiles.rates.calibration import Calibration
from ...profiles.stack.load import stack_for
from ...profiles.stack.rates import rates_for
from . import host_tensors
from .row import Case
from .stack_features import NoNotes, with_features


def rates_of(case: Case, fitted: Calibration | None = None, software: StackSpec | None = None) -> Rates:
    """The rates of a run under a calibration, with its stack (or other software) and its switches.

    Raises InputError without such rates.
    """
    stack = with_features(software or stack_for(case.stack_name, fitted)[0], case.features, NoNotes())
    return rates_for(case.cluster, stack, case.workload.precision, fitted)


def ledger_of(cases: Sequence[Case], rates: Rates) -> Ledger:
    """The quantities of runs that differ in their layouts only, with their stages."""
    case, layouts = cases[0], Layouts.of([case.layout for case in cases])
    problem = Problem(
        case.model, case.workload, rates.stack, case.cluster.num_gpus, case.cluster.gpus_per_node,
        any_fp8_layout=case.cluster.gpu.any_fp8_layout,
    )  # fmt: skip
    keys, key = index_keys(layouts)
    ledger = build_ledger.build(problem, tables.build(problem, keys), layouts, key)
    if case.chunks is None:
        return ledger
    split = (case.layout.pp, len(case.chunks) // case.layout.pp, is_folded(case.layout))
    stalls = Stalls(problem, (split,), Partition(tuple(case.chunks)))
    return replace(ledger, splits=_stated_splits(ledger, case), stalls=stalls)


def _stated_splits(ledger: Ledger, case: Case) -> Splits:
    """The profiles of chunks of stated sizes; embedding, head and MTP modules stay where the even split has them."""
    even, problem = ledger.splits, ledger.problem
    layout, sizes = case.layout, case.chunks or ()
    num_kinds, pattern = problem.num_kinds, problem.pattern
    if is_folded(layout):
        ends = (pattern, num_kinds, problem.edges)
        return custom_splits(*ends, layout.pp, 2, True, Partition(tuple(sizes)))
    devices = chunk_devices(layout.pp, len(sizes) // layout.pp, False)
    rows, start = np.zeros((layout.pp, even.counts.shape[2])), 0
    for device, size in zip(devices, sizes, strict=True):
        for kind in pattern[start : start + size]:
            rows[device, kind] += 1
        start += size
    for kind in problem.mtp:
        rows[devices[-1], kind] += 1
    at_first = even.counts[0, np.argmin(even.first[0]), num_kinds:]
    rows[devices[0], num_kinds:] += at_first
    if devices[0] != devices[-1]:
        rows[devices[-1], num_kinds:] += even.total[0, num_kinds:] - at_first
    distinct, first, count = np.unique(rows, axis=0, return_index=True, return_counts=True)
    return Splits(distinct[None], first[None].astype(float), count[None].astype(float), rows.sum(axis=0)[None])


class Batch:
    """Runs that differ in their layouts only.

    index: their places among all runs. Their operations and seconds under a reference calibration are stored, so that
    another calibration costs nothing where it leaves the rates as they are.
    """

    def __init__(self, cases: Sequence[Case], index: Sequence[int], fitted: Calibration) -> None:
        self.cases, self.index = cases, np.array(index)
        self._at(rates_of(cases[0], fitted))

    def _at(self, rates: Rates) -> None:
        self._rates, self._ledger = rates, ledger_of(self.cases, rates)
        self.seconds_at_reference = self._price(self._ledger, rates)

    def _price(self, ledger: Ledger, rates: Rates) -> Array:
        seconds = np.asarray(sum(step.step_terms(ledger, rates)[0].values()))
        if any(case.sends_outputs for case in self.cases):
            sends = np.array([case.sends_outputs for case in self.cases])
            seconds = seconds + np.where(sends, host_tensors.longer_s(ledger, rates), 0.0)
        return seconds

    def seconds(self, fitted: Calibration, *, store: bool) -> Array:
        """[runs of the batch] step seconds. store: make this calibration the reference."""
        rates = rates_of(self.cases[0], fitted)
        if rates == self._rates:
            return self.seconds_at_reference
        same = _same_operations(rates.stack, self._rates.stack)
        ledger = self._ledger if same else ledger_of(self.cases, rates)
        seconds = self._price(ledger, rates)
        if store:
            self._rates, self._ledger = rates, ledger
            self.seconds_at_reference = seconds
        return seconds


def _same_operations(stack: StackSpec, other: StackSpec) -> bool:
    """Whether two stacks differ only in what rates read."""
    names = (name for name in StackSpec.__dataclass_fields__ if name not in STACK_FIELDS)
    return all(getattr(stack, name) == getattr(other, name) for name in names)


class Batches:
    """Step seconds of runs under one calibration after another."""

    def __init__(self, cases: Sequence[Case], fitted: Calibration) -> None:
        parts: dict[str, list[int]] = {}
        for i, case in enumerate(cases):
            parts.setdefault(_signature(case), []).append(i)
        self.cases = cases
        self.batches = [Batch([cases[i] for i in index], index, fitted) for index in parts.values()]

    def seconds(self, fitted: Calibration, *, store: bool = True, only: Collection[int] | None = None) -> Array:
        """[runs] step seconds.

        store: make this calibration the reference; only: the batches whose rates may differ from the reference.
        """
        out = np.empty(len(self.cases))
        for i, batch in enumerate(self.batches):
            moved = only is None or i in only
            out[batch.index] = batch.seconds(fitted, store=store) if moved else batch.seconds_at_reference
        return out


def _signature(case: Case) -> str:
    """Equal for runs that can be priced together."""
    parts = (case.model, case.workload, case.cluster, case.stack_name, sorted(case.features.items()), case.chunks)
    return repr(parts)
