"""Constants of the kinds of links: fitted inside a node, assumed between nodes, or measured on the user's cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ...cost_models.quantities.exchanges import OPS
from ...cost_models.rates.collectives import CollectiveRates, LevelRates, OpRates
from . import calibration
from .calibration import Calibration, entry_of
from .tables import TABLES_SOURCE, fits


def collective_rates(fitted: Calibration | None = None, nics_per_ring: float = math.inf) -> CollectiveRates:
    """Constants of every kind of link: fitted inside a node, assumed (but for the ramp) between nodes."""
    return _collective_rates((fitted or calibration.shipped()).part("links", "fabrics", "trees"), nics_per_ring)


@lru_cache(maxsize=64)
def _collective_rates(fitted: str, nics_per_ring: float) -> CollectiveRates:
    assumed = calibration.assumptions(fitted)
    links, fabrics = assumed["links"], assumed["fabrics"]
    copies = links["copy_efficiency"]
    kinds = {kind: _fitted_link(entry, entry_of(copies, kind)) for kind, entry in fits()["links"].items()}
    kinds.update({kind: _assumed_link(entry) for kind, entry in links.items() if "base_s" in entry})
    newest = {"nvlink": kinds["nvlink5"], "pcie": kinds["pcie5"]}  # families, for a generation that is not listed
    ramp = float(fits()["fabric"]["ramp"])
    outside = {kind: _fabric(entry, ramp, fabrics["source"]) for kind, entry in fabrics.items() if kind != "source"}
    outer = outside.pop("default")
    sources = {kind: level.source for kind, level in {**kinds, **outside}.items()}
    return CollectiveRates(
        kinds={**kinds, **newest, **outside}, inner=kinds["nvlink4"], outer=outer, sources=sources,
        tree_efficiency=float(assumed["trees"]["efficiency"]), nics_per_ring=nics_per_ring,
    )  # fmt: skip


def with_measured(rates: CollectiveRates, measured: Mapping[str, Mapping[str, Mapping[str, float]]]) -> CollectiveRates:
    """`rates` with the constants of the kinds of link that were measured on this very cluster."""
    if not measured:
        return rates
    kinds = {kind: LevelRates(ops={op: OpRates(**ops[op]) for op in OPS}, source="measured")
             for kind, ops in measured.items()}  # fmt: skip
    return replace(rates, kinds={**rates.kinds, **kinds})


def _fitted_link(entry: Mapping[str, Any], copy_efficiency: float) -> LevelRates:
    """Fitted operations; an all-reduce alone (V100) also stands for the rest, at half its steps."""
    ops = {op: OpRates(**values) for op, values in entry["ops"].items()}
    all_reduce = ops["all_reduce"]
    gather = ops.get("all_gather", replace(all_reduce, hop_s=all_reduce.hop_s / 2))
    for op in OPS:
        ops.setdefault(op, replace(gather, efficiency=copy_efficiency) if op == "p2p" else gather)
    return LevelRates(ops=ops, switch_efficiency=float(entry["switch_efficiency"]), source=f"fitted, {TABLES_SOURCE}")


def _assumed_link(entry: Mapping[str, Any]) -> LevelRates:
    ring = OpRates(**{key: float(entry[key]) for key in ("base_s", "hop_s", "efficiency", "ramp")})
    copy = replace(ring, efficiency=float(entry["copy"]))
    return LevelRates(ops={op: copy if op == "p2p" else ring for op in OPS}, source=f"assumed: {entry['source']}")


def _fabric(entry: Mapping[str, Any], ramp: float, source: str) -> LevelRates:
    ring = OpRates(**{key: float(entry[key]) for key in ("base_s", "hop_s", "efficiency")}, ramp=ramp)
    # Messages have no ring to fill: their ramp is that of a plain copy. A single one starts once.
    direct = replace(ring, efficiency=float(entry["all_to_all"]), ramp=1.0)
    message = replace(ring, base_s=ring.base_s / 2, ramp=1.0)
    special = {"all_to_all": direct, "p2p": message}
    return LevelRates(ops={op: special.get(op, ring) for op in OPS}, source=f"assumed: {source}")
