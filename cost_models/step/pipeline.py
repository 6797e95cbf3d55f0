"""Closed forms of pipeline schedules: the seconds of a step beyond m x the slowest stage.

c = F + B of one micro-batch on one device (B = I + W: input and weight gradients), p stages, v chunks per device, m
micro-batches. Sums and maxima run over devices, so uneven stages, the embedding and the head are in. Exact where the
literature's forms are (FORMULAS 6, 6.1, 6.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array, Ints
from ..degrees import interleaving_group
from ..schedule_kinds import by_code, rows_by_schedule


@dataclass(frozen=True, eq=False)
class Fill:
    """[n] pipelines that are filled and drained; seconds of one micro-batch. "Others" are all devices but one."""

    pp: Array  # stages
    vpp: Array  # chunks per stage
    m: Array  # micro-batches
    mean_c: Array  # c of the mean device
    hidden_f: Array  # the part of the others' F that traffic hides behind
    others_c: Array  # c of the others
    others_f: Array  # F of the others
    others_b: Array  # B of the others
    others_w: Array  # W of the others, without the part that traffic hides behind

    @property
    def others_i(self) -> Array:
        return np.asarray(self.others_b - self.others_w)

    def of(self, rows: Ints | slice) -> Fill:
        return Fill(**{name: column[rows] for name, column in vars(self).items()})


def bubble_s(schedule: Ints, x: Fill) -> Array:
    """[n] seconds a step spends filling and draining the pipeline, beyond m x the slowest device (`_BUBBLES`)."""
    seconds = np.empty(len(schedule))
    for code, rows in rows_by_schedule(schedule):
        seconds[rows] = _BUBBLES[code](x.of(rows))
    return seconds


def _whole_s(x: Fill) -> Array:
    """c of the others: the published (p-1)(F+B)."""
    return x.others_c


def _interleaved_s(x: Fill) -> Array:
    """c/v: the pipeline fills by chunks (Narayanan et al., SC21). Fewer than p micro-batches come back to the first
    device later than it could go on, (p-m)c/p there and as long back, for every further chunk."""
    again = np.maximum(x.pp - x.m, 0.0) * (x.vpp - 1) / np.maximum(x.pp - 1, 1.0)
    return np.asarray(x.others_c * (1 + again) / x.vpp)


def _zb_h1_s(x: Fill) -> Array:
    """c - 2W: each W that is put off fills a gap (Qi et al., arXiv 2401.10241)."""
    return np.maximum(x.others_c - 2 * x.others_w, 0.0)


def _dualpipe_v_s(x: Fill) -> Array:
    """F + max(I - W, 0)/2, and what I takes longer than F: (I - F)/2 less half an F of one device. (F + I)/2 of two
    half chunks if F = I = W (DualPipe README). Exact for equal stages and m >= 2p."""
    longer = (x.others_i - x.others_f - x.others_f / np.maximum(x.pp - 1, 1.0)) / 2
    return np.asarray(x.others_f + np.maximum(x.others_i - x.others_w, 0.0) / 2 + np.maximum(longer, 0.0))


def _zb_v_s(x: Fill) -> Array:
    """The stall of 2p micro-batches and more: half the longest of F, I, W, 2(F - W) and 2(I - W): F/2 if F = I = W,
    which arXiv 2405.15362 hides under the next step, and a step that ends with its optimizer does not. (F - I/2, where
    F is the longest, is not there: what is computed again would shorten a step.)

    Fewer do not fill the V: I wait for their turn with W in between, (p-1)(I - W/2), less W/2 for each micro-batch
    beyond p up to 2p - 1, and more by F for each that p lacks; under p/2 of them, not all of those W are there. Exact
    for equal stages with I no shorter than F and W and m = p/2 or m >= p. A slower slowest stage has to wait less. F
    and W come off c as far as no traffic hides behind them: what that takes more of, c has less of.
    """
    f, i, w = x.others_f, x.others_i, x.others_w
    pair = np.maximum(f, i) - w  # of two that pass each other, the longer, and a W in between
    many = np.maximum.reduce([f, i, w, 2 * pair]) / 2
    all_c, number = (x.pp - 1) * x.mean_c, np.maximum(x.pp - 1, 1.0)
    w_there = np.minimum((x.m - 0.5) / number, 0.5) + np.clip(x.m - x.pp, 0.0, x.pp - 1) / (2 * number)
    few = np.maximum(x.pp - x.m, 0.0) * f / number + (all_c - (f - x.hidden_f) - w) - w * w_there
    return np.asarray(np.maximum(many, few - x.m * (all_c - x.others_c)))


# The forms of the V schedules are exact for equal stages as they say, 2-5 % of the step off where stages are uneven.
_BUBBLES = by_code("pipeline bubble", {
    "1f1b": _whole_s, "gpipe": _whole_s, "interleaved": _interleaved_s, "zb-h1": _zb_h1_s, "zb-v": _zb_v_s,
    "dualpipe-v": _dualpipe_v_s,
})  # fmt: skip


@dataclass(frozen=True, eq=False)
class Messages:
    """[n] stage-to-stage messages of a step, and the work that may hide them."""

    pp: Array  # stages
    vpp: Array  # chunks per stage
    m: Array  # micro-batches per step
    hop_s: Array  # seconds of one message
    link_s: Array  # seconds that one keeps its link busy: more than hop_s where other replicas take turns on the link
    sum_c: Array  # seconds of c over all devices
    slowest_c: Array  # seconds of c of the slowest device
    mean_f: Array  # seconds of F of the mean device
    mean_b: Array  # seconds of B of the mean device
    mean_w: Array  # seconds of W of the mean device

    def of(self, rows: Ints | slice) -> Messages:
        return Messages(**{name: column[rows] for name, column in vars(self).items()})


def exposed_hop_s(schedule: Ints, x: Messages) -> Array:
    """[n] seconds of messages that nothing hides, t = hop_s, l = link_s. A stage sends one message after the other.
    Read off the simulator (concepts/schedules.md): exact for equal stages, where no other number is given.

    Each form: no slower slowest stage makes a step shorter.
    """
    seconds = np.empty(len(schedule))
    for code, rows in rows_by_schedule(schedule):
        seconds[rows] = _HOPS[code](x.of(rows))
    return np.where(x.pp > 1, seconds, 0.0)


def one_f_one_b_hop_s(pp: Array, m: Array, hop_s: Array, link_s: Array, sum_c: Array, slowest_c: Array) -> Array:
    """1F1B pays a round trip every p micro-batches (FORMULAS 6.1, Pipette's hidden critical path), as far as the slack
    of faster stages does not hide it: E = max(0, sum_c + 2(p-1)t - min(m, p) slowest_c) of it shows each time;
    2(p-1)t + max(m/p - 1, 0)E + min(E, 2 max(min(m, p) - 2, 0) max(t, l)), with equal stages and l <= t
    [2(p-1)m/p + 2(p-2)]t. A stage between others sends two messages for each micro-batch, so E is 2 min(m, p) l -
    min(m, p) slowest_c at least; of two stages the second micro-batch waits for the first one's message: max(0, l -
    slowest_c). Exact up to l = F, within 10 % beyond, as messages of both ways meet.

    A slower slowest stage takes at most min(m, p) - 1 times its delay from E, and m times that is added.
    """
    once, few = 2 * (pp - 1) * hop_s, np.minimum(m, pp)
    shown = np.maximum(np.maximum(sum_c + once, few * _sent(pp) * link_s) - few * slowest_c, 0.0)
    warm_up = 2 * np.maximum(few - 2, 0) * np.maximum(hop_s, link_s)
    second = np.where((pp == 2) & (m > 1), np.maximum(link_s - slowest_c, 0.0), 0.0)
    return np.asarray(once + np.maximum(m / pp - 1, 0.0) * shown + np.minimum(shown, warm_up) + second)


def _one_f_one_b_hop_s(x: Messages) -> Array:
    return one_f_one_b_hop_s(x.pp, x.m, x.hop_s, x.link_s, x.sum_c, x.slowest_c)


def _sent(pp: Array) -> Array:
    """Messages of a micro-batch that a stage sends: forward and back, of which an end has one."""
    return np.where(pp > 2, 2.0, 1.0)


def _gpipe_hop_s(x: Messages) -> Array:
    """Once there and back, and all messages one after another where they take longer than what sends them:
    2(p-1)t + (m-1)[max(0, l - F) + max(0, l - B)]."""
    queue = np.maximum(x.link_s - x.mean_f, 0.0) + np.maximum(x.link_s - x.mean_b, 0.0)
    return np.asarray(2 * (x.pp - 1) * x.hop_s + (x.m - 1) * queue)


def _zb_h1_hop_s(x: Messages) -> Array:
    """1F1B's, in which the W of the others, (p-1)W, hide the round trips of more than p micro-batches, but are missing
    at its end: 2(p-1)t + min(2(p-1)t, (p-1)W) + (m/p - 1)E' + min(E', 2(p-2) max(0, max(t, l) - W/2)),
    E' = E - (p-1)W."""
    once, others_w, few = 2 * (x.pp - 1) * x.hop_s, (x.pp - 1) * x.mean_w, np.minimum(x.m, x.pp)
    least = np.maximum(x.sum_c - others_w + once, few * _sent(x.pp) * x.link_s)
    shown = np.maximum(least - few * x.slowest_c, 0.0)
    warm_up = 2 * (x.pp - 2) * np.maximum(np.maximum(x.hop_s, x.link_s) - x.mean_w / 2, 0.0)
    many = once + np.minimum(once, others_w) + (x.m / x.pp - 1) * shown + np.minimum(shown, warm_up)
    return np.where(x.m > x.pp, many, _one_f_one_b_hop_s(x))


def _zb_v_hop_s(x: Messages) -> Array:
    """5(p-1)t, but 4(p-1)t for two micro-batches or one: each goes there and back twice. More than p of them take
    (2p-1)/p of what max(t, l) is beyond (F + W)/2 each, or the two messages each way. Within 10 %."""
    once = np.where(x.m > 2, 5, 4) * (x.pp - 1) * x.hop_s
    late = (2 * x.pp - 1) / x.pp * np.maximum(np.maximum(x.hop_s, x.link_s) - (x.mean_f + x.mean_w) / 2, 0.0)
    late_s = np.maximum(late, 2 * _sent(x.pp) * x.link_s - x.slowest_c)
    return _queued(x, once + np.maximum(x.m - x.pp, 0.0) * late_s, 2 * _sent(x.pp))


def _dualpipe_v_hop_s(x: Messages) -> Array:
    """1F1B's with two messages, one behind the other, for one: a pair sends both at its end. Of the warm-up (3p - 7)t.
    Exact up to l = F/2 where I takes longer than W, else within 10 %."""
    hop_s = x.hop_s + x.link_s
    once, few = 2 * (x.pp - 1) * hop_s, np.minimum(x.m, x.pp)
    shown = np.maximum(np.maximum(x.sum_c + once, few * 2 * _sent(x.pp) * x.link_s) - few * x.slowest_c, 0.0)
    warm_up = (3 * x.pp - 7) * hop_s / 2
    return np.asarray(once + np.maximum(x.m / x.pp - 1, 0.0) * shown + np.minimum(shown, warm_up))


def _interleaved_hop_s(x: Messages) -> Array:
    """2(p-1)t there and back, and for every further chunk p t each way, less what a device has to do meanwhile in
    groups of more than p: with groups of p 2(p v - 1)t. Neighbours are two forwards apart: past vt = 3c/4 - B/2 every
    further group of p micro-batches takes c/4 + B/2 + v t each, or all messages that a device sends. Within 5 % for
    many micro-batches, 15 % for 2p.

    What the slowest device has to do meanwhile is what the mean of the other pass leaves of c, so that nobody's longer
    pass hides more, and a slower stage hides no more than it costs: p of its c at most.
    """
    sent = np.where(x.pp == 2, 2 * x.vpp - 1, 2 * x.vpp)
    turn_s = np.maximum(x.slowest_c / 4 + x.mean_b / 2 + x.vpp * x.hop_s, sent * x.link_s)
    late_s = np.maximum(turn_s - x.slowest_c, 0.0)
    group = np.maximum(interleaving_group(x.pp, x.m), x.pp)
    last = np.where(x.m < x.pp, x.pp, (x.m - 1) % group + 1)
    share = np.minimum(1 / x.vpp, x.pp / (np.maximum(group + last - 2 * x.pp, 1) * np.maximum(x.vpp - 1, 1)))
    once_s = [np.maximum(x.pp * x.hop_s - (turns - x.pp) * share * (x.slowest_c - others_s), 0.0)
              for turns, others_s in ((group, x.mean_b), (last, x.mean_f))]  # fmt: skip
    trips_s = 2 * (x.pp - 1) * x.hop_s + (x.vpp - 1) * sum(once_s)
    return _queued(x, trips_s + np.maximum(x.m - x.pp, 0.0) * late_s, sent)


def _queued(x: Messages, shown_s: Array, sent: Array) -> Array:
    """`shown_s`, or all messages one behind the other, `sent` for each micro-batch, where their link is busy for longer
    than any of them takes."""
    longer = x.link_s > x.hop_s
    if not longer.any():  # the usual case
        return np.asarray(shown_s)
    queue_s = x.m * (sent * x.link_s - x.slowest_c) + 2 * (x.pp - 1) * x.hop_s
    return np.asarray(np.where(longer, np.maximum(shown_s, queue_s), shown_s))


_HOPS = by_code("exposed messages", {
    "1f1b": _one_f_one_b_hop_s, "gpipe": _gpipe_hop_s, "interleaved": _interleaved_hop_s, "zb-h1": _zb_h1_hop_s,
    "zb-v": _zb_v_hop_s, "dualpipe-v": _dualpipe_v_hop_s,
})  # fmt: skip
