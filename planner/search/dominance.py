"""Dominated sets of recomputed modules, which searches skip."""

from __future__ import annotations

from itertools import product

import numpy as np

from ...cost_models.layouts import RECOMPUTE_MODES, Layout, Layouts, field_codes
from ...cost_models.quantities.tables import build
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.rates.rates import Rates
from ..space.tree import Space

_SELECTIVE = RECOMPUTE_MODES.index("selective")


def dominated_recomputes(space: Space, rates: Rates) -> frozenset[tuple[int, int]]:
    """(mode, modules) of dominated sets: another set recomputes no more operations and keeps no more bytes.

    Sets are compared by quantities of every layer kind: recomputed operations and dropped tensors. No price is needed,
    and the result holds for every mesh.
    Ties in time are broken by id (docs/architecture.md, 8), so the other set must also precede by id. Dropping the
    dominated set then never changes an answer.
    """
    tables = build(space.problem, Layouts.of([Layout()]))
    layers = list(zip(tables.operations, kernel_seconds(tables, rates).layers, strict=True))[: space.problem.num_kinds]
    masks = [int(m) for m in np.unique(space.recomputes(1)["recompute_modules"]) if m]
    better = [mask for mask in masks if _always_allowed(space, mask)]
    recomputed, dropped = {}, {}
    for mask in masks:
        recomputed[mask] = {
            (i, tag) for i, (_, seconds) in enumerate(layers) for tag in seconds.recompute_by_tag if tag & mask
        }
        dropped[mask] = {
            (i, saved.tag)
            for i, (ops, _) in enumerate(layers)
            for saved in ops.saved
            if saved.tag & mask and float(saved.num_bytes[0]) > 0
        }
    ids = {mask: str(Layout(recompute=_SELECTIVE, recompute_modules=mask)) for mask in masks}
    return frozenset(
        (_SELECTIVE, mask)
        for mask in masks
        for other in better
        if ids[other] < ids[mask] and recomputed[other] <= recomputed[mask] and dropped[other] >= dropped[mask]
    )


def _always_allowed(space: Space, mask: int) -> bool:
    """Whether every rule that allows any set also allows this set. Only such a set may dominate.

    A rule that also reads switches is checked for all their values. A rule that reads a degree counts as excluding.
    """
    option = {"recompute": (_SELECTIVE,), "recompute_modules": (mask,), "recompute_layers": (0,),
              "offload_layers": (0,)}  # fmt: skip
    for rule in space.rules:
        if "recompute_modules" not in rule.fields:
            continue  # it reads at most the mode, which is equal for all sets
        values = [option.get(name) or field_codes(name) for name in rule.fields]
        if not all(values):
            return False
        columns = dict(zip(rule.fields, np.array(list(product(*values))).T, strict=True))
        if not rule.allows(columns, space.problem).all():
            return False
    return True

