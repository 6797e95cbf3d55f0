"""Lower bounds of a step that no split of the layers over the stages of a pipeline beats.

The order of a schedule is fixed, so a step is at least as long as any path through its operations, and as any mean of
paths. Each bound below is a mean whose weights make all chunks count alike, wherever the layers sit: m/p times the work
of all devices, and what filling and draining the pipeline takes in any split. p stages, v chunks per device, m
micro-batches; c = F + B, B = I + W of one micro-batch; L(s) is the weight of the paths along the operations of s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array, Ints
from ..degrees import interleaving_group
from ..schedule_kinds import by_code, rows_by_schedule


@dataclass(frozen=True, eq=False)
class Pipelines:
    """[n] pipelines whose layers may sit on any stage; seconds of one micro-batch."""

    schedule: Ints  # codes
    pp: Array  # stages
    vpp: Array  # chunks per stage
    m: Array  # micro-batches per step
    total_s: Array  # c of all devices together
    weight_s: Array  # W of all devices together
    layers_s: Array  # c of all devices without the exposed traffic of sharded states
    load_s: Array  # c of the fullest device, at least
    hop_s: Array  # of one message
    forward_share: Array  # F/c of a layer, at least
    weight_share: Array  # W/c of a layer, or of the parts that the last stage adds, at most

    def of(self, rows: Ints | slice) -> Pipelines:
        return Pipelines(**{name: column[rows] for name, column in vars(self).items()})


def least_step_s(x: Pipelines) -> Array:
    """[n] seconds of a step, at least: m load_s; one micro-batch through all stages and back; and by schedule
    (`_LEAST`)."""
    step_s = np.maximum(x.m * x.load_s, x.total_s - x.weight_s + 2 * (x.pp - 1) * x.hop_s)
    for code, rows in rows_by_schedule(x.schedule):
        step_s[rows] = np.maximum(step_s[rows], _LEAST[code](x.of(rows)))
    return step_s


def _gpipe_s(x: Pipelines) -> Array:
    """All F of one stage and all B of another, once through the others: c + (m-1) load_s."""
    return np.asarray(x.total_s + (x.m - 1) * x.load_s + 2 * (x.pp - 1) * x.hop_s)


def _one_f_one_b_s(x: Pipelines) -> Array:
    return _one_f_one_b_of(x, x.total_s, x.load_s)


def _one_f_one_b_of(x: Pipelines, total_s: Array, load_s: Array) -> Array:
    """1F1B. Stage s runs p-s-1 others before its first B and after its last F, while a micro-batch passes all stages
    behind it: c + (m-1) c_s - sum_(i>s) (c_s - c_i).

    m > p: no less than 2 c + (m-1-p) load_s of the fullest, and than c + (m-1) c/p, the mean with weights
    prod_(i<s) (1 - 1/(m-p+i)) / (m-p+s). m <= p: only the last m-1 stages do: c (1 + (m-1)/(2p-m+1)).
    """
    m, pp = x.m, x.pp
    many = np.maximum(2 * total_s + (m - 1 - pp) * load_s, total_s + (m - 1) * total_s / pp)
    few = total_s * (1.0 + (m - 1) / (2 * pp - np.minimum(m, pp) + 1))
    return np.asarray(np.where(m > pp, many, few) + 2 * (pp - 1) * x.hop_s)


def _zb_h1_s(x: Pipelines) -> Array:
    """ZB-H1. Without its W, which take no less than no time, it is 1F1B of c - W.

    m > p: the path of 1F1B along stage s skips s+1 of its W when it leaves after the last I, and ends with a W of the
    first stage. With L(s) = y(s) / (M+s) and y(s+1) = y(s) (1 - 1/(M+s)), M = (m-p)/(1-w), a layer whose W is a share w
    of it counts m/p + (p-1)(1-w)/p - w on every stage, and one with a lesser share more by what it lacks: together
    c (m/p + (p-1)(1-w)/p) - W for the largest share w.
    """
    without_s = x.total_s - x.weight_s
    least_s = _one_f_one_b_of(x, without_s, without_s / x.pp)
    fill = (x.pp - 1) * (1.0 - x.weight_share) / x.pp
    all_s = x.total_s * (x.m / x.pp + fill) - x.weight_s + 2 * (x.pp - 1) * x.hop_s
    return np.where(x.m > x.pp, np.maximum(least_s, all_s), least_s)


def _interleaved_s(x: Pipelines) -> Array:
    """Interleaved, in groups of g = p: c (m/p + (p-1)/(2 p v)).

    Path (s, r): the first micro-batch through all chunks before chunk r of device s, then all that s has to run yet: g
    forwards of each of its chunks 0 to r-1 are over. It ends in the same way, backwards. Weights: u = 1/(p v) of each
    r >= 1, L(s) - (v-1) u of r = 0, L(s) = 1/p + (s - (p-1)/2) u/m. What the paths of s miss of one of its chunks, g-1
    times their weight, those of the p-1 other devices make up, but for (g-p)(v-1) u at most. So chunk r >= 1 of s
    counts m L(s) + (p-1-s) u = m/p + (p-1) u/2 less that, chunk 0 no less. Messages: p-1 + p^2 v (v-1) u in the mean,
    or more. All of it holds for smaller u, which where 2 m < p-1 keep weights from below 0, and for u = 0, which larger
    groups may need. No step is shorter than one micro-batch through all chunks and back.
    """
    u = np.minimum(1.0, x.vpp / (x.vpp - 1 + (x.pp - 1) / (2 * x.m))) / (x.pp * x.vpp)
    missed = np.maximum(interleaving_group(x.pp, x.m) - x.pp, 0) * (x.vpp - 1)
    trips_s = x.pp**2 * x.vpp * (x.vpp - 1) * x.hop_s
    fill_s = np.maximum(u * (x.total_s * ((x.pp - 1) / 2 - missed) + trips_s), 0.0)
    once_s = x.total_s + 2 * (x.pp * x.vpp - 1) * x.hop_s
    return np.maximum(once_s, x.total_s * x.m / x.pp + fill_s + (x.pp - 1) * x.hop_s)


def _v_shaped_s(x: Pipelines) -> Array:
    """ZB-V and DualPipeV, of two chunks per device, there and back: c (m/p + f u (p-1)/2), u = 1/(2p + f p (p-1)/(2m)).

    Path (s, 0): the first micro-batch to the first chunk of device s, then all of s. Path (s, 1): to its second chunk,
    and all of s but the 2(p-1-s) further forwards of its first chunk that it has run by then. Weights: u of (s, 1),
    L(s) - u of (s, 0), L(s) = (m/p + f u ((p-1)/2 - s))/m. A chunk of s whose F is a share f of it, or more, counts
    m L(s) + f u s = m/p + f u (p-1)/2. What the ends of the model add sits on s = 0, where F does not matter; traffic
    that is exposed counts m L(s), no less than on s = p-1.
    """
    fill = x.forward_share * (x.pp - 1) / 2
    weight = 1.0 / (2 * x.pp + fill * x.pp / x.m)
    layers_s = x.layers_s * (x.m / x.pp + fill * weight)
    exposed_s = (x.total_s - x.layers_s) * (x.m / x.pp - fill * weight)
    return np.asarray(layers_s + exposed_s + weight * x.pp * (x.pp - 1) * x.hop_s)


_LEAST = by_code("lower bound of a pipeline", {
    "1f1b": _one_f_one_b_s, "gpipe": _gpipe_s, "interleaved": _interleaved_s, "zb-h1": _zb_h1_s, "zb-v": _v_shaped_s,
    "dualpipe-v": _v_shaped_s,
})  # fmt: skip


def least_load_s(pp: Array, layers: Array, layer_s: Array, first_s: Array, last_s: Array) -> Array:
    """[n] seconds of the fullest stage, at least, of pp >= 2 that share `layers` whole layers of layer_s or more each.

    first_s, last_s: what two of the stages do beside their layers. The least X for which every stage's floor((X - own)
    / layer_s) layers add up to all; X is one of k layers beside nothing, first_s or last_s, for k near the mean.
    """
    mean = (layers * layer_s + first_s + last_s) / pp
    best = np.full(mean.shape, np.inf)
    for own in (np.zeros_like(mean), first_s, last_s):
        fitting = np.floor(np.maximum(mean - own, 0.0) / layer_s)
        for more in range(_STEPS):
            load = np.maximum(own + (fitting + more) * layer_s, np.maximum(first_s, last_s))
            room = [np.floor((load - edge_s) / layer_s + 1e-9) for edge_s in (first_s, last_s)]
            enough = (pp - 2) * np.floor(load / layer_s + 1e-9) + room[0] + room[1] >= layers
            best = np.where(enough & (load < best), load, best)
    return np.where(np.isfinite(best), np.maximum(best, mean), mean)


_STEPS = 4
