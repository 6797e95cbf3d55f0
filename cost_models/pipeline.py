"""Closed forms of pipeline schedules: what a step costs beyond m x the slowest stage.

c = F + B of one micro-batch on one device (B = I + W: input and weight gradients), p stages, v chunks per device, m
micro-batches. Sums and maxima run over devices, so uneven stages, the embedding and the head are in. Exact where the
literature's forms are (FORMULAS 6, 6.1, 6.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .layouts import SCHEDULES

Array = NDArray[np.float64]
_CODE = {name: code for code, name in enumerate(SCHEDULES)}


def bubble_s(
    schedule: NDArray[np.int64], vpp: Array, pp: Array, m: Array, mean_c: Array,
    others_c: Array, others_f: Array, others_b: Array, others_w: Array, hidden_f: Array | float = 0.0,
) -> Array:  # fmt: skip
    """Seconds a step spends filling and draining the pipeline, beyond m x the slowest device.

    mean_c: c of the mean device; others_*: sums of c, F, B and W over all devices but one, seconds, W without what
    traffic hides behind; hidden_f: what it hides behind of F; I = B - W. 1f1b and gpipe: c (the published (p-1)(F+B));
    interleaved: c/v (Narayanan et al., SC21); zb-h1: c - 2W (Qi et al., arXiv 2401.10241); zb-v: `_zb_v_s`; dualpipe-v:
    (F + I)/2 (DualPipe README, two half chunks per device). The last two were checked against simulation
    (concepts/schedules.md): mean error 1 %, 2-5 % where stages are uneven.
    """
    bubble = np.where(schedule == _CODE["interleaved"], others_c / vpp, others_c)
    split = schedule >= _CODE["zb-h1"]
    if split.any():
        inputs = others_b - others_w
        zero = np.maximum(others_c - 2 * others_w, 0.0)
        of_v = _zb_v_s(pp, m, mean_c, (others_c, others_f, others_b, others_w), hidden_f)
        zero = np.where(schedule == _CODE["zb-v"], of_v, zero)
        zero = np.where(schedule == _CODE["dualpipe-v"], (others_f + inputs) / 2, zero)
        bubble = np.where(split, zero, bubble)
    return np.asarray(bubble)


def _zb_v_s(pp: Array, m: Array, mean_c: Array, others: Sequence[Array], hidden_f: Array | float) -> Array:
    """Of many micro-batches (F + max(I - W, 0))/2, which arXiv 2405.15362 hides under the next step when F = I = W, and
    a step that ends with its optimizer does not.

    Fewer than 2p do not fill the V: I wait for their turn with W in between, (p-1)(I - W/2), less W/2 for each
    micro-batch beyond p, and more by F for each that p lacks; under p/2 of them, not all of those W are there. Read off
    the simulator, where it is exact for equal stages with F <= I and m = p/2 or m >= p. A slower slowest stage has to
    wait less. F and W come off c as far as no traffic hides behind them: what that takes more of, c has less of.
    """
    others_c, others_f, others_b, others_w = others
    many = (others_f + np.maximum(others_b - 2 * others_w, 0.0)) / 2
    all_c, number = (pp - 1) * mean_c, np.maximum(pp - 1, 1.0)
    there = np.minimum((m - 0.5) / number, 0.5) + np.maximum(m - pp, 0.0) / (2 * number)
    few = np.maximum(pp - m, 0.0) * others_f / number + (all_c - (others_f - hidden_f) - others_w) - others_w * there
    return np.asarray(np.maximum(many, few - m * (all_c - others_c)))


def exposed_hop_s(
    schedule: NDArray[np.int64], pp: Array, vpp: Array, m: Array, hop_s: Array, sum_c: Array, slowest_c: Array
) -> Array:
    """Seconds of stage-to-stage messages that nothing hides; hop_s of one message, sum_c over devices.

    1f1b, zb-h1 and dualpipe-v pay a round trip every p micro-batches (FORMULAS 6.1, Pipette's hidden critical path), as
    far as the slack of faster stages does not hide it: E = max(0, sum_c + 2(p-1)t - min(m, p) slowest_c) of it shows
    each time; 2(p-1)t + max(m/p - 1, 0)E + min(E, 2 max(min(m, p) - 2, 0)t), with equal stages [2(p-1)m/p + 2(p-2)]t.
    A slower slowest stage takes at most min(m, p) - 1 times its delay from E, and m times that is added: no step gets
    shorter. interleaved hides them: 2(p v - 1)t; gpipe pays once: 2(p-1)t; zb-v 5(p-1)t, as simulated for m >= 2p, but
    4(p-1)t for two micro-batches or one: each goes there and back twice.
    """
    once = 2 * (pp - 1) * hop_s
    shown = np.maximum(sum_c + once - np.minimum(m, pp) * slowest_c, 0.0)
    warm_up = 2 * np.maximum(np.minimum(m, pp) - 2, 0) * hop_s
    repeated = np.maximum(m / pp - 1, 0.0) * shown + np.minimum(shown, warm_up)
    round_trips = np.isin(schedule, [_CODE[name] for name in ("1f1b", "zb-h1", "dualpipe-v")])
    seconds = np.where(round_trips, once + repeated, once)
    seconds = np.where(schedule == _CODE["zb-v"], np.where(m > 2, 5, 4) * (pp - 1) * hop_s, seconds)
    seconds = np.where(schedule == _CODE["interleaved"], 2 * (pp * vpp - 1) * hop_s, seconds)
    return np.asarray(np.where(pp > 1, seconds, 0.0))


def even_step_s(
    schedule: str, p: int, m: int, v: int, forward_s: float, backward_s: float, weight_s: float, hop_s: float = 0.0
) -> float:
    """Step seconds of p equal stages (forward_s, backward_s with its weight part weight_s, per micro-batch)."""
    code = np.array([_CODE[schedule]])
    c, pp, vpp, mm, hop = (np.array([float(x)]) for x in (forward_s + backward_s, p, v, m, hop_s))
    others = (np.array([(p - 1) * x]) for x in (float(c[0]), forward_s, backward_s, weight_s))
    bubble = bubble_s(code, vpp, pp, mm, c, *others)
    return float((mm * c + bubble + exposed_hop_s(code, pp, vpp, mm, hop, p * c, c))[0])
