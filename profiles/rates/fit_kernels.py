"""Fits of kernels: matrix products and attention of each device, and FlashAttention's own charts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.rates.surfaces import AttentionSurface, GemmSurface, attention_seconds, gemm_seconds
from .least_squares import pin, solve
from .reference_devices import DEVICES
from .tables import columns, table

GEMM_NAMES = ("efficiency", "ramp_k", "fixed_s", "small_tile_factor", "wave_quantisation", "memory_efficiency")
GEMM_BOUNDS = ((0.2, 1.2), (1.0, 3000.0), (1e-7, 3e-5), (0.3, 1.0), (0.01, 1.0), (0.3, 1.2))
# The loss has a valley per kind of wave (small tiles that split evenly, or large ones that do not): a start in each.
GEMM_STARTS = ((0.8, 200.0, 3e-6, 0.9, 0.3, 0.8), (0.7, 80.0, 3e-6, 0.6, 0.1, 0.8), (0.75, 100.0, 3e-6, 0.95, 0.1, 0.9))
ATTENTION_NAMES = ("forward_efficiency", "half_context", "narrow_head_factor", "fixed_s", "longest_block")
ATTENTION_BOUNDS = ((0.05, 1.2), (1.0, 5000.0), (0.2, 1.2), (1e-7, 2e-4), (1e-3, 5.0))
ATTENTION_START = (0.6, 500.0, 0.8, 1e-5, 0.5)
# Numbers of products that the rows of a device cannot identify. The A100-PCIe has large training products only: it
# takes those of the A100-SXM.
# MI250X: none of its rows waits for memory; a copy of 512 MiB runs at 1.257 of 1.6 TB/s (huizhg/gpu-perf-mi250x).
PINNED = {
    "a100-pcie-80gb": {"fixed_s": 4.9e-6, "memory_efficiency": 0.69},
    "mi250x-gcd": {"memory_efficiency": 0.785},
}


def fit_gemm(
    name: str, rows: Sequence[dict[str, str]], pinned: dict[str, float] | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """The six numbers of one device; rows with a dimension below 128 are skinny decoding shapes, not training's.

    pinned: numbers that these rows cannot identify.
    """
    m, n, k, micro = columns(rows, "m", "n", "k", "median_us")
    keep = (m >= 128) & (n >= 128) & (k >= 128)
    m, n, k = (column[keep] for column in (m, n, k))
    seconds = micro[keep] * 1e-6
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
    context, head_dim = context[keep], head_dim[keep]
    seconds = micro[keep] * 1e-6
    base = _attention(name)
    narrow = (head_dim < 100).any()  # else nothing measures the factor: FlashAttention-2's chart on A100 has 0.9
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
    efficiency: dict[str, dict[str, float]] = {"sdp_fwd": {}, "sdp_bwd": {}}  # pass -> shape -> share of the peak
    for row in table("training_ops"):
        if row["device"] == name and row["op"] in efficiency:
            efficiency[row["op"]][row["shape"]] = float(row["efficiency"])
    ratios = []
    for shape, forward in efficiency["sdp_fwd"].items():
        heads, context = (int(re.findall(rf"\b{key}=(\d+)", shape)[0]) for key in ("head_num", "seq_len"))
        if heads * context >= 32 * 4096:
            ratios.append(efficiency["sdp_bwd"][shape] / forward)
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
