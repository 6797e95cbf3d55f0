"""Fits of links: every operation on each kind of link inside nodes, and rings over the network between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities import exchanges
from ...cost_models.rates import collectives
from ...cost_models.specs.cluster import NetworkLevel
from .least_squares import solve
from .reference_devices import DEVICES, V100
from .tables import columns, table

OP_NAMES = ("base_s", "hop_s", "efficiency", "pair_excess", "ramp")
# Bounds keep the fit in the range of physical values; the start is a usual network.
OP_BOUNDS = ((1e-7, 1e-4), (0.0, 2e-5), (0.01, 1.2), (-0.6, 2.0), (0.0, 6.0))
OP_START = (5e-6, 1e-6, 0.7, 0.2, 1.0)
MEASURED_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# SimuMax A100-PCIe: achieved share of 30 GB/s by 8 GPUs; 4 GPUs reach about .69 (configs/system/a100_pcie.json).
SIMUMAX_PCIE4 = {"all_reduce": 0.418, "all_gather": 0.450, "reduce_scatter": 0.369, "all_to_all": 0.275}


def fit_fabric(base_s: float, hop_s: float) -> tuple[dict[str, float], dict[str, float]]:
    """Efficiency and ramp of rings over NICs from SimAI's table for 2-16 nodes of 8 GPUs with 400 Gb/s each.

    The start and the seconds per node are given: training runs show them better than a table of bandwidths.
    """
    rows = [r for r in table("busbw_over_nodes") if r["table"] == "ring_over_nics" and 2 <= int(r["nodes"]) <= 16]
    nodes, num_bytes, ratio = columns(rows, "nodes", "bytes", "ratio")
    line = 48.5e9  # per GPU: ConnectX-7 as SimAI counts it
    wire = num_bytes * (8.0 * nodes - 1.0) / (8.0 * nodes) / (8.0 * line)  # one pass of a ring, all NICs of a node
    latency = base_s + hop_s * (nodes - 1.0)

    def predict(p: Array) -> Array:
        transfer = wire / p[0]
        return np.asarray(latency + transfer + p[1] * np.sqrt(latency * transfer))

    value, error = solve(predict, wire / ratio, (0.9, 1.0), ((0.3, 1.0), (0.0, 6.0)), soft=0.1)
    return {"efficiency": float(value[0]), "ramp": float(value[1])}, error


def link_rows(kind: str) -> list[dict[str, str]]:
    """The measurements on one kind of in-node link: rows of op, ranks, bytes, time_us."""
    names = [name for name, device in DEVICES.items() if device.link == kind]
    rows = [row for row in table("collectives_in_node") if row["device"] in names]
    if kind == "nvlink2":  # pairs of the cube mesh that rings of 3, 5, 6 or 7 use differ: powers of two only
        sweep = [r for r in table("all_reduce_mib_sweep") if r["device"].startswith("v100") and r["ranks"] in "248"]
        sizes = {str(2**exponent) for exponent in range(20, 31)}
        rows = [{**row, "op": op} for row in sweep if row["bytes"] in sizes for op in ("all_reduce",)]
    if kind == "pcie4":  # the L40S host has no peer access beyond a pair: its 4 and 8 GPUs serve for latency only
        rows = [row for row in rows if row["ranks"] == "2" or int(row["bytes"]) <= 2**14]
        for op, share in SIMUMAX_PCIE4.items():
            factor = 2.0 if op == "all_reduce" else 1.0
            for ranks, achieved in ((8, share), (4, 0.69 / 0.418 * share)):
                for num_bytes in (2**28, 2**29, 2**30):
                    micro = factor * (ranks - 1) / ranks * num_bytes / (30e9 * achieved) * 1e6
                    row = {"op": op, "ranks": str(ranks), "bytes": str(num_bytes), "time_us": repr(micro)}
                    rows.extend([row] * 7)  # as many points as a sweep of one group size
    return rows


def fit_link(kind: str) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Constants of each operation on one kind of in-node link; `switch_efficiency` comes from its all-reduce."""
    bandwidth = next(d for d in (*DEVICES.values(), V100) if d.link == kind).link_bw_bytes_per_s
    level = NetworkLevel(
        name="node", size=8, bw_bytes_per_s=bandwidth, latency_s=0.0, kind=kind,
        topology="mesh" if kind == "nvlink2" else "switch",
    )  # fmt: skip
    measured = link_rows(kind)
    errors: dict[str, dict[str, float]] = {}
    ops: dict[str, dict[str, float]] = {}
    fitted: dict[str, Any] = {"ops": ops, "switch_efficiency": 0.0}
    for op in exchanges.OPS:
        rows = [row for row in measured if row["op"] == op]
        if not rows:
            continue
        ranks, num_bytes, micro = columns(rows, "ranks", "bytes", "time_us")
        reduces_in_switch = op == "all_reduce" and kind in ("nvlink4", "nvlink5")
        value, errors[op] = solve(
            lambda p, op=op, n=ranks, size=num_bytes: _link_seconds(level, op, p, n, size),  # type: ignore[misc]
            micro * 1e-6,
            (*OP_START, 0.65) if reduces_in_switch else OP_START,
            (*OP_BOUNDS, (0.3, 1.0)) if reduces_in_switch else OP_BOUNDS,
            weight=_weight(kind, ranks, num_bytes),
            soft=0.1,
        )
        ops[op] = dict(zip(OP_NAMES, value[:5].tolist(), strict=True))
        if reduces_in_switch:
            fitted["switch_efficiency"] = float(value[5])
    return fitted, errors


def _weight(kind: str, ranks: Array, num_bytes: Array) -> Array:
    """Training moves megabytes; and the V100's cube mesh is no full mesh: its whole node is what must be right."""
    whole = 3.0 if kind == "nvlink2" else 1.0
    return np.asarray(np.where(num_bytes >= 2**20, 1.5, 1.0) * np.where(ranks == 8, whole, 1.0))


def _link_seconds(level: NetworkLevel, op: exchanges.Op, values: Array, ranks: Array, num_bytes: Array) -> Array:
    constants = collectives.OpRates(**dict(zip(OP_NAMES, values[:5].tolist(), strict=True)))
    switch_efficiency = float(values[5]) if len(values) > 5 else 0.0
    level_rates = collectives.LevelRates(ops={op: constants}, switch_efficiency=switch_efficiency)
    rates = collectives.CollectiveRates(kinds={}, inner=level_rates, outer=level_rates)
    return collectives.seconds(collectives.curve(rates, (level,), op, ranks, 1), num_bytes)
