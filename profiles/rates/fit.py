"""Refits every efficiency from the tables in `profiles/catalogue/measured/`: `python -m meshwright.profiles.rates.fit`.

Least squares on log time with a soft loss, from fixed starts: the same tables give the same `fits.yaml`. What no
table measures is in `assumptions.yaml`, by hand, each value with its source.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import yaml

from ...cost_models.arrays import Array
from ...cost_models.quantities import exchanges
from ...cost_models.rates import collectives
from ...cost_models.rates.surfaces import AttentionSurface, GemmSurface, attention_seconds, gemm_seconds
from ...cost_models.specs.cluster import NetworkLevel
from ..io.folders import MEASURED
from .fit_base import DEVICES, V100, columns, pin, solve, table

GEMM_NAMES = ("efficiency", "ramp_k", "fixed_s", "small_tile_factor", "wave_quantisation", "memory_efficiency")
GEMM_BOUNDS = ((0.2, 1.2), (1.0, 3000.0), (1e-7, 3e-5), (0.3, 1.0), (0.01, 1.0), (0.3, 1.2))
# The loss has a valley per kind of wave (small tiles that split evenly, or large ones that do not): a start in each.
GEMM_STARTS = ((0.8, 200.0, 3e-6, 0.9, 0.3, 0.8), (0.7, 80.0, 3e-6, 0.6, 0.1, 0.8), (0.75, 100.0, 3e-6, 0.95, 0.1, 0.9))
ATTENTION_NAMES = ("forward_efficiency", "half_context", "narrow_head_factor", "fixed_s", "longest_block")
ATTENTION_BOUNDS = ((0.05, 1.2), (1.0, 5000.0), (0.2, 1.2), (1e-7, 2e-4), (1e-3, 5.0))
ATTENTION_START = (0.6, 500.0, 0.8, 1e-5, 0.5)
OP_NAMES = ("base_s", "hop_s", "efficiency", "pair_excess", "ramp")
OP_BOUNDS = ((1e-7, 1e-4), (0.0, 2e-5), (0.01, 1.2), (-0.6, 2.0), (0.0, 6.0))
OP_START = (5e-6, 1e-6, 0.7, 0.2, 1.0)
MEASURED_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Numbers of products that a device's rows do not tell. A100-PCIe: large training products alone; those of A100-SXM.
# MI250X: none of its rows waits for memory; a copy of 512 MiB runs at 1.257 of 1.6 TB/s (huizhg/gpu-perf-mi250x).
PINNED = {
    "a100-pcie-80gb": {"fixed_s": 4.9e-6, "memory_efficiency": 0.69},
    "mi250x-gcd": {"memory_efficiency": 0.785},
}
# SimuMax A100-PCIe: achieved share of 30 GB/s by 8 GPUs; 4 GPUs reach about .69 (configs/system/a100_pcie.json).
SIMUMAX_PCIE4 = {"all_reduce": 0.418, "all_gather": 0.450, "reduce_scatter": 0.369, "all_to_all": 0.275}


def fit_gemm(
    name: str, rows: Sequence[dict[str, str]], pinned: dict[str, float] | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """The six numbers of one device; rows with a dimension below 128 are skinny decoding shapes, not training's.

    pinned: numbers that these rows do not tell.
    """
    m, n, k, micro = columns(rows, "m", "n", "k", "median_us")
    keep = (m >= 128) & (n >= 128) & (k >= 128)
    m, n, k, seconds = m[keep], n[keep], k[keep], micro[keep] * 1e-6
    pinned = pinned or {}
    bounds = [pin(pinned[n]) if n in pinned else b for n, b in zip(GEMM_NAMES, GEMM_BOUNDS, strict=True)]
    starts = [[pinned.get(n, s) for n, s in zip(GEMM_NAMES, start, strict=True)] for start in GEMM_STARTS]
    tried = [solve(lambda p: gemm_seconds(_gemm(name, p), m, n, k), seconds, start, bounds) for start in starts]
    value, error = min(tried, key=lambda result: result[1]["cost"])
    return dict(zip(GEMM_NAMES, value.tolist(), strict=True)), error


def _gemm(name: str, values: Array) -> GemmSurface:
    device = DEVICES[name]
    return GemmSurface(
        peak_flops_per_s=device.peak_flops_per_s,
        memory_bw_bytes_per_s=device.memory_bw_bytes_per_s,
        num_sms=device.num_sms,
        **dict(zip(GEMM_NAMES, values.tolist(), strict=True)),
    )


def training_gemms(name: str) -> list[dict[str, str]]:
    """SimuMax's products as rows of a GEMM table: m, n, k and microseconds from the share of the peak reached."""
    rows = []
    for row in table("training_ops"):
        dims = {key: float(value) for key, value in re.findall(r"\b([bmnk])=(\d+)", row["shape"])}
        if row["device"] == name and row["op"] == "matmul":
            flops = 2.0 * dims["b"] * dims["m"] * dims["n"] * dims["k"]
            micro = flops / (DEVICES[name].peak_flops_per_s * float(row["efficiency"])) * 1e6
            rows.append({**{d: str(dims[d]) for d in "mnk"}, "median_us": repr(micro)})
    return rows


def fit_attention(name: str, rows: Sequence[dict[str, str]]) -> tuple[dict[str, Any], dict[str, float]]:
    """Forward numbers of the kernel that the table of this device holds; causal, head_dim 64 and 128."""
    batch, context, heads, head_dim, micro = columns(rows, "batch", "context", "heads", "head_dim", "time_us")
    keep = (head_dim < 200) & (context >= 1024) & (batch * heads >= 8)
    flops = (2.0 * batch * heads * context**2 * head_dim)[keep]
    context, head_dim, seconds = context[keep], head_dim[keep], micro[keep] * 1e-6
    base = _attention(name)
    narrow = (head_dim < 100).any()  # else nothing measures the factor: FlashAttention-2's chart on A100 says 0.9
    bounds = [*ATTENTION_BOUNDS]
    start = [*ATTENTION_START]
    if not narrow:
        bounds[2], start[2] = pin(0.9), 0.9
    value, error = solve(
        lambda p: attention_seconds(
            replace(base, **dict(zip(ATTENTION_NAMES, p.tolist(), strict=True))), flops, context, head_dim, False
        ),
        seconds,
        start,
        bounds,
        soft=0.1,
    )
    return dict(zip(ATTENTION_NAMES, value.tolist(), strict=True)), error


def _attention(name: str) -> AttentionSurface:
    device = DEVICES[name]
    return AttentionSurface(
        peak_flops_per_s=device.peak_flops_per_s, memory_bw_bytes_per_s=device.memory_bw_bytes_per_s,
        num_sms=device.num_sms, forward_efficiency=1, backward_efficiency=1, half_context=0, narrow_head_factor=1,
    )  # fmt: skip


def backward_over_forward(name: str) -> float:
    """Median over SimuMax's shapes of the efficiency of the backward kernel over that of the forward one.

    Only where 32 heads x 4096 tokens or more fill the GPU: below, both times are the host's.
    """
    found: dict[str, dict[str, float]] = {"sdp_fwd": {}, "sdp_bwd": {}}
    for row in table("training_ops"):
        if row["device"] == name and row["op"] in found:
            found[row["op"]][row["shape"]] = float(row["efficiency"])
    ratios = []
    for shape, forward in found["sdp_fwd"].items():
        heads, context = (int(re.findall(rf"\b{key}=(\d+)", shape)[0]) for key in ("head_num", "seq_len"))
        if heads * context >= 32 * 4096:
            ratios.append(found["sdp_bwd"][shape] / forward)
    return float(np.median(ratios))


def fit_chart(
    name: str, kernel: str, longest_block: float, backward_ratio: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Forward efficiency, half_context and narrow_head_factor of a kernel from FlashAttention's own charts.

    The charts hold 16k tokens in batches of equal length and a hidden size of 2048; `both` counts 3.5 times forward.
    """
    rows = [r for r in table("flash_attention_charts") if (r["device"], r["kernel"]) == (name, kernel)]
    head_dim, context, tera = columns(rows, "head_dim", "context", "causal_tflops")
    flops = 2.0 * 16384.0 * 2048.0 * context
    both = np.array([row["pass"] == "both" for row in rows])
    base = replace(_attention(name), longest_block=longest_block, fixed_s=1e-5)

    def predict(p: Array) -> Array:
        surface = replace(base, forward_efficiency=p[0], backward_efficiency=p[0] * backward_ratio,
                          half_context=p[1], narrow_head_factor=p[2])  # fmt: skip
        forward = attention_seconds(surface, flops, context, head_dim, False)
        return forward + both * attention_seconds(surface, 2.0 * flops, context, head_dim, True)

    seconds = flops * np.where(both, 3.5, 1.0) / (tera * 1e12)
    value, error = solve(predict, seconds, ATTENTION_START[:3], ATTENTION_BOUNDS[:3], soft=0.1)
    fitted = dict(zip(ATTENTION_NAMES[:3], value.tolist(), strict=True))
    return {**fitted, "backward_over_forward": backward_ratio}, error


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
    """What was measured on one kind of in-node link: rows of op, ranks, bytes, time_us."""
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
    one = collectives.LevelRates(ops={op: constants}, switch_efficiency=float(values[5]) if len(values) > 5 else 0.0)
    rates = collectives.CollectiveRates(kinds={}, inner=one, outer=one)
    return collectives.seconds(collectives.curve(rates, (level,), op, ranks, 1), num_bytes)


def fit_all(only: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Everything that `fits.yaml` holds, or just the named devices and kinds of link, and the errors of each fit."""
    fits: dict[str, Any] = {"gemm": {}, "attention": {}, "links": {}}
    errors: dict[str, dict[str, float]] = {}
    swept = {row["device"] for row in table("collectives_in_node")}
    kinds = sorted({*(device.link for name, device in DEVICES.items() if name in swept), V100.link})
    wanted = set(only) or {*DEVICES, *kinds}
    gemms, attentions = [*table("gemm_bf16"), *table("gemm_fp16")], table("attention_forward_bf16")
    for name in (n for n in DEVICES if n in wanted):
        rows = [row for row in gemms if row["device"] == name]
        fits["gemm"][name], errors[f"gemm {name}"] = fit_gemm(name, rows or training_gemms(name), PINNED.get(name))
        rows = [row for row in attentions if row["device"] == name]
        if rows:
            fits["attention"][name], errors[f"attention {name}"] = fit_attention(name, rows)
    for kind in (k for k in kinds if k in wanted):
        fits["links"][kind], by_op = fit_link(kind)
        errors.update({f"{op} {kind}": error for op, error in by_op.items()})
    if not only:
        _fit_shared(fits, errors)
    return _rounded(fits), errors


def _fit_shared(fits: dict[str, Any], errors: dict[str, dict[str, float]]) -> None:
    """What holds for a generation or a fabric rather than for one device."""
    ratios = {name: backward_over_forward(name) for name in ("a100-pcie-80gb", "b200-sxm-180gb")}
    fits["backward_over_forward"] = ratios
    # FlashAttention-2 on H100 runs the same code as on A100; FlashAttention-3's backward is not in the charts.
    fits["charts"] = {}
    for name, kernel in (("a100-sxm-80gb", "flash2"), ("h100-sxm-80gb", "flash2"), ("h100-sxm-80gb", "flash3")):
        tail = fits["attention"][name]["longest_block"]
        label = f"{kernel} {name}"
        fits["charts"][label], errors[f"chart {label}"] = fit_chart(name, kernel, tail, ratios["a100-pcie-80gb"])
    fits["fabric"], errors["ring over NICs"] = fit_fabric(base_s=10e-6, hop_s=10e-6)


def _rounded(value: Any) -> Any:
    """Six significant digits: beyond that the optimiser's last step shows, which differs between CPUs."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return float(f"{value:.5e}") if isinstance(value, float) else value


def main() -> int:
    """Fits, prints the table of errors and writes `profiles/catalogue/measured/fits.yaml`."""
    fits, errors = fit_all()
    for label, error in errors.items():
        print(f"{label:34s} {error['rows']:6.0f} rows   median {error['median']:6.1%}   p90 {error['p90']:6.1%}")
    fits["errors"] = {
        label: {"median": round(e["median"], 4), "p90": round(e["p90"], 4), "rows": int(e["rows"])}
        for label, e in errors.items()
    }
    text = io.StringIO()
    text.write("# Written by `python -m meshwright.profiles.rates.fit` from the tables beside it; do not edit.\n")
    yaml.safe_dump(fits, text, sort_keys=True, width=120, default_flow_style=None)
    (MEASURED / "fits.yaml").write_text(text.getvalue(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
