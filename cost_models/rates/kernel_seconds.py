"""Seconds of every kind of layer per shard key: the tables of quantities under the rates of one device.

A search prices millions of layouts from thousands of shard keys. The seconds of a table are therefore computed once per
rates and cached with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np

from ..arrays import Array
from ..layouts import RECOMPUTE_MODES
from ..problem import FORWARD_PASSES, Problem
from ..quantities.by_code import ByCode, Code, of_owner, under_no_recompute
from ..quantities.operations import LAST, TOWER
from ..quantities.stages import EMBEDDING
from ..quantities.tables import Tables
from .layer_seconds import COMPONENTS, LayerSeconds, layer_seconds
from .rates import Rates

_REMEMBERED = 8  # rates per table: islands of unlike devices, and the ends of an interval


@dataclass(frozen=True, eq=False)
class KernelSeconds:
    """Seconds of one layer of each kind (variants, then the edges of stages.py), of a micro-batch, per shard key."""

    problem: Problem
    num_keys: int  # shard keys of the table
    layers: tuple[LayerSeconds, ...]  # per kind: [component, key] forward and backward, [key] weight gradients

    @cached_property
    def forward_s(self) -> Array:
        """[kind, key] seconds of the forward pass, all components."""
        return np.array([kind.forward.sum(axis=0) for kind in self.layers])

    @cached_property
    def backward_s(self) -> Array:
        """[kind, key] seconds of the backward pass without recomputation, all components."""
        return np.array([kind.backward.sum(axis=0) for kind in self.layers])

    @cached_property
    def weight_s(self) -> Array:
        """[kind, key] seconds of the products for weight gradients, which a schedule may defer."""
        return np.array([kind.weight for kind in self.layers])

    @cached_property
    def alone_s(self) -> Array:
        """[kind, key] extra seconds of both passes without another micro-batch in parallel."""
        return np.array([kind.alone + np.zeros(self.num_keys) for kind in self.layers])

    def recompute_s(self, mode: int, modules: int) -> Array:
        """[kind, component, key] seconds of recomputation. Edges recompute nothing but the layers of a vision tower."""
        zeros = np.zeros((len(self.layers), len(COMPONENTS), self.num_keys))
        for i, variant in enumerate(self.problem.variants):
            if RECOMPUTE_MODES[mode] == "none" or variant.trains == "frozen":
                continue
            kind = self.layers[i]
            if RECOMPUTE_MODES[mode] == "selective":
                zeros[i] = kind.recompute(modules)
            else:
                last = kind.recompute(LAST) if self.problem.stack.recompute_stops_early else 0.0
                zeros[i] = kind.forward - kind.reference - last
                zeros[i, COMPONENTS.index("host")] += kind.full_recompute_s
                zeros[i, COMPONENTS.index("tp")] += kind.gather_s
        if RECOMPUTE_MODES[mode] == "full":
            zeros[EMBEDDING] = self.layers[EMBEDDING].recompute(TOWER)
        return zeros

    @cached_property
    def recompute_by_code(self) -> ByCode:
        """Seconds of recomputation, all components."""
        return of_owner(self._recompute_under)

    def _recompute_under(self, codes: Sequence[Code]) -> Array:
        """[kind, code, key] seconds of recomputation, all components."""
        out = np.zeros((len(self.layers), len(codes), self.num_keys))
        for i, variant in enumerate(self.problem.variants):
            by_tag = self.layers[i].recompute_by_tag
            if variant.trains != "frozen" and by_tag:
                again = 1.0 - under_no_recompute(list(by_tag), codes)
                out[i] = again @ np.array([seconds.sum(axis=0) for seconds in by_tag.values()])
        for place, (mode, modules) in enumerate(codes):
            if RECOMPUTE_MODES[mode] == "full":
                out[:, place] = self.recompute_s(mode, modules).sum(axis=1)
        return out


def kernel_seconds(tables: Tables, rates: Rates) -> KernelSeconds:
    """The seconds of `tables` under `rates`, computed once per pair."""
    known = _known.setdefault(tables, [])
    for of_rates, seconds in known:
        if of_rates is rates:
            return seconds
    twice = tables.problem.workload.reference
    layers = tuple(layer_seconds(operations, rates, tables.num_keys, reference=twice)
                   for operations in tables.operations)  # fmt: skip
    if not tables.problem.stack.differentiates:
        layers = tuple(replace(kind, forward=FORWARD_PASSES * kind.forward) for kind in layers)
    seconds = KernelSeconds(tables.problem, tables.num_keys, layers)
    known.append((rates, seconds))
    del known[:-_REMEMBERED]
    return seconds


# Rates are compared by identity, and kept here so that no other object takes their place.
_known: WeakKeyDictionary[Tables, list[tuple[Rates, KernelSeconds]]] = WeakKeyDictionary()
