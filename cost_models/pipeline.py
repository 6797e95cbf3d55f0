"""Closed forms of pipeline schedules: what a step costs beyond m x the slowest stage.

c = F + B of one micro-batch on one device (B = I + W: input and weight gradients), p stages, v chunks per device, m
micro-batches. Sums and maxima run over devices, so uneven stages, the embedding and the head are in. Exact where the
literature's forms are (FORMULAS 6, 6.1, 6.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .layouts import SCHEDULES

Array = NDArray[np.float64]
_CODE = {name: code for code, name in enumerate(SCHEDULES)}


def bubble_s(
    schedule: NDArray[np.int64], vpp: Array, others_c: Array, others_f: Array, others_b: Array, others_w: Array
) -> Array:
    """Seconds a step spends filling and draining the pipeline, beyond m x the slowest device.

    others_*: sums of c, F, B and W over all devices but one, seconds; I = B - W. 1f1b and gpipe: c (the published
    (p-1)(F+B)); interleaved: c/v (Narayanan et al., SC21); zb-h1: c - 2W (Qi et al., arXiv 2401.10241); zb-v:
    (F + max(I - W, 0))/2, which the paper (2405.15362) hides under the next step when F = I = W, and a step that ends
    with its optimizer does not; dualpipe-v: (F + I)/2 (DualPipe README, two half chunks per device). The last two were
    checked against simulation (concepts/schedules.md): mean error below 1 %, 2-5 % where stages are uneven.
    """
    bubble = np.where(schedule == _CODE["interleaved"], others_c / vpp, others_c)
    split = schedule >= _CODE["zb-h1"]
    if split.any():
        inputs = others_b - others_w
        zero = np.maximum(others_c - 2 * others_w, 0.0)
        zero = np.where(schedule == _CODE["zb-v"], (others_f + np.maximum(inputs - others_w, 0.0)) / 2, zero)
        zero = np.where(schedule == _CODE["dualpipe-v"], (others_f + inputs) / 2, zero)
        bubble = np.where(split, zero, bubble)
    return np.asarray(bubble)


def exposed_hop_s(
    schedule: NDArray[np.int64], pp: Array, vpp: Array, m: Array, hop_s: Array, sum_c: Array, slowest_c: Array
) -> Array:
    """Seconds of stage-to-stage messages that nothing hides; hop_s of one message, sum_c over devices.

    1f1b and zb-h1 pay a round trip every p micro-batches (FORMULAS 6.1, Pipette's hidden critical path), as far as the
    slack of faster stages does not hide it: E = max(0, sum_c + 2(p-1)t - min(m, p) slowest_c) of it shows each time;
    2(p-1)t + max(m/p - 1, 0)E + min(E, 2 max(min(m, p) - 2, 0)t), with equal stages [2(p-1)m/p + 2(p-2)]t. A slower
    slowest stage takes at most min(m, p) - 1 times its delay from E, and m times that is added: no step gets shorter.
    interleaved hides them: 2(p v - 1)t; gpipe and the V schedules pay once: 2(p-1)t.
    """
    once = 2 * (pp - 1) * hop_s
    shown = np.maximum(sum_c + once - np.minimum(m, pp) * slowest_c, 0.0)
    warm_up = 2 * np.maximum(np.minimum(m, pp) - 2, 0) * hop_s
    repeated = np.maximum(m / pp - 1, 0.0) * shown + np.minimum(shown, warm_up)
    round_trips = (schedule == _CODE["1f1b"]) | (schedule == _CODE["zb-h1"])
    seconds = np.where(round_trips, once + repeated, once)
    seconds = np.where(schedule == _CODE["interleaved"], 2 * (pp * vpp - 1) * hop_s, seconds)
    return np.asarray(np.where(pp > 1, seconds, 0.0))


def least_load_s(pp: Array, layers: Array, layer_s: Array, first_s: Array, last_s: Array) -> Array:
    """Seconds of the fullest stage, at least, of pp >= 2 that share `layers` whole layers of layer_s or more each.

    first_s, last_s: what two of the stages do beside their layers. The least X for which every stage's floor((X - own)
    / layer_s) layers add up to all; X is one of k layers beside nothing, first_s or last_s, for k near the mean.
    """
    mean = (layers * layer_s + first_s + last_s) / pp
    best = np.full(mean.shape, np.inf)
    for own in (np.zeros_like(mean), first_s, last_s):
        fitting = np.floor(np.maximum(mean - own, 0.0) / layer_s)
        for more in range(_STEPS):
            load = np.maximum(own + (fitting + more) * layer_s, np.maximum(first_s, last_s))
            room = [np.floor((load - held) / layer_s + 1e-9) for held in (first_s, last_s)]
            enough = (pp - 2) * np.floor(load / layer_s + 1e-9) + room[0] + room[1] >= layers
            best = np.where(enough & (load < best), load, best)
    return np.where(np.isfinite(best), np.maximum(best, mean), mean)


_STEPS = 4


def least_step_s(
    schedule: NDArray[np.int64], pp: Array, m: Array, sum_c: Array, sum_w: Array, load_s: Array, hop_s: Array
) -> Array:
    """Seconds of a step that no split of the layers over the stages beats.

    sum_c, sum_w: F + B and W of one micro-batch on all devices; load_s: on the fullest device at least. Each form is
    a path through the schedule, or a mean of paths whose weights make all stages count alike:
    all           m load_s, and one micro-batch through all stages, sum_c - sum_w
    gpipe         all F of one stage and all B of another, once through the others: sum_c + (m-1) load_s
    1f1b, m > p   stage s runs p-s-1 others before its first B and after its last F, while a micro-batch passes all
                  stages behind it: sum_c + (m-1) c_s - sum_(i>s) (c_s - c_i), no less than 2 sum_c + (m-1-p) load_s of
                  the fullest and than sum_c + (m-1) sum_c/p, the mean with weights prod_(i<s) (1 - 1/(m-p+i)) / (m-p+s)
    1f1b, m <= p  only the last m-1 stages do: sum_c (1 + (m-1)/(2p-m+1))
    Chunks that an interleaved or V schedule runs first may be short, so no fill is counted for these. Messages: 2(p-1)
    of 1f1b and gpipe, p-1 of interleaved, whose last device they must reach.
    """
    step_s = np.maximum(m * load_s, sum_c - sum_w)
    gpipe, one_f_one_b = schedule == _CODE["gpipe"], schedule == _CODE["1f1b"]
    step_s = np.where(gpipe, sum_c + (m - 1) * load_s, step_s)
    many = np.maximum(2 * sum_c + (m - 1 - pp) * load_s, sum_c + (m - 1) * sum_c / pp)
    few = sum_c * (1.0 + (m - 1) / (2 * pp - np.minimum(m, pp) + 1))
    step_s = np.where(one_f_one_b, np.maximum(step_s, np.where(m > pp, many, few)), step_s)
    hops = np.where(gpipe | one_f_one_b, 2.0, np.where(schedule == _CODE["interleaved"], 1.0, 0.0)) * (pp - 1)
    return np.asarray(step_s + hops * hop_s)


def even_step_s(
    schedule: str, p: int, m: int, v: int, forward_s: float, backward_s: float, weight_s: float, hop_s: float = 0.0
) -> float:
    """Step seconds of p equal stages (forward_s, backward_s with its weight part weight_s, per micro-batch)."""
    code = np.array([_CODE[schedule]])
    c, pp, vpp, mm, hop = (np.array([float(x)]) for x in (forward_s + backward_s, p, v, m, hop_s))
    others = (np.array([(p - 1) * x]) for x in (float(c[0]), forward_s, backward_s, weight_s))
    bubble = bubble_s(code, vpp, *others)
    return float((mm * c + bubble + exposed_hop_s(code, pp, vpp, mm, hop, p * c, c))[0])
