"""Closed forms of pipeline schedules: what a step costs beyond m x the slowest stage.

c = F + B of one micro-batch on one device (B = B_input + W), p stages, v chunks per device, m micro-batches.
Sums and maxima run over devices, so uneven stages, the embedding and the head are in. Exact where the literature's
forms are (FORMULAS 6, 6.1, 6.2); `bubble_s` with equal stages gives the table of docs/architecture.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .layouts import SCHEDULES

Array = NDArray[np.float64]
_CODE = {name: code for code, name in enumerate(SCHEDULES)}


def bubble_s(schedule: NDArray[np.int64], vpp: Array, others_c: Array, others_b: Array, others_w: Array) -> Array:
    """Seconds a step spends filling and draining the pipeline, beyond m x the slowest device.

    others_*: sums of c, B and W over all devices but the slowest, seconds. 1f1b and gpipe: c (the published
    (p-1)(F+B)); interleaved: c/v (Narayanan et al., SC21); zb-h1: c - 2W, zb-v: c - 3W (Qi et al., arXiv 2401.10241,
    2405.15362: zero when F = B_input = W); dualpipe-v: (c + B - 3W)/2 (DualPipe README, two half chunks per device).
    """
    bubble = np.where(schedule == _CODE["interleaved"], others_c / vpp, others_c)
    split = schedule >= _CODE["zb-h1"]
    if split.any():
        zero = np.where(schedule == _CODE["zb-h1"], others_c - 2 * others_w, others_c - 3 * others_w)
        zero = np.where(schedule == _CODE["dualpipe-v"], (others_c + others_b - 3 * others_w) / 2, zero)
        bubble = np.where(split, np.maximum(zero, 0.0), bubble)
    return np.asarray(bubble)


def exposed_hops(schedule: NDArray[np.int64], pp: Array, vpp: Array, m: Array) -> Array:
    """How many stage-to-stage messages of a step nothing hides.

    1f1b and zb-h1 pay a round trip every p micro-batches (FORMULAS 6.1, Pipette's hidden critical path):
    2(p-1) m/p + 2(p-2), for m < p 2(p-1) + 2(m-2); interleaved hides them: 2(p v - 1); gpipe pays once: 2(p-1);
    V schedules are chains of 2p chunks, of which the turn needs no message: 2(2p-2).
    """
    round_trip = 2 * (pp - 1)
    repeated = 2 * np.maximum(np.minimum(m, pp) - 2, 0)
    hops = np.where(m >= pp, round_trip * m / pp, round_trip) + repeated
    hops = np.where(schedule == _CODE["interleaved"], 2 * (pp * vpp - 1), hops)
    hops = np.where(schedule == _CODE["gpipe"], round_trip, hops)
    v_shaped = (schedule == _CODE["zb-v"]) | (schedule == _CODE["dualpipe-v"])
    hops = np.where(v_shaped, 2 * (2 * pp - 2), hops)
    return np.asarray(np.where(pp > 1, hops, 0.0))


def even_step_s(
    schedule: str, p: int, m: int, v: int, forward_s: float, backward_s: float, weight_s: float, hop_s: ArrayLike = 0.0
) -> float:
    """Step seconds of p equal stages (forward_s, backward_s with its weight part weight_s, per micro-batch)."""
    code = np.array([_CODE[schedule]])
    c, pp, vpp, mm = (np.array([float(x)]) for x in (forward_s + backward_s, p, v, m))
    bubble = bubble_s(code, vpp, (p - 1) * c, np.array([(p - 1) * backward_s]), np.array([(p - 1) * weight_s]))
    return float((mm * c + bubble + exposed_hops(code, pp, vpp, mm) * np.asarray(hop_s))[0])
