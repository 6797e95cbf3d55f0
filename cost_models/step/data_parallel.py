"""Communication between data-parallel ranks once per step: within the groups that share parameters, between copies.

What ZeRO moves per micro-batch is in `step`, which also adds everything up.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array, Ints
from ..quantities import gradients
from ..quantities.exchanges import Hop, Op
from ..quantities.groups import Groups, neighbours
from ..quantities.ledger import Ledger
from ..quantities.traffic import StateTraffic
from ..quantities.zeroth_order import ZerothOrder
from ..rates import collectives
from ..rates.collectives import Curve
from ..rates.rates import Rates
from ..specs.stack import StackSpec

SHARDS, REPLICAS = ("shard", "expert_shard"), ("replicate", "expert_replicate")  # kinds of groups (rates.GROUPS)


def group_curve(rates: Rates, group: str, op: Op, size: Ints, stride: Ints) -> Curve:
    return collectives.curve_of_rows(rates.collectives, rates.levels_of(group), op, size, stride)


def hop_curve(ledger: Ledger, rates: Rates, group: str, hop: Hop, groups: Groups) -> Curve:
    """Seconds of a hop over the bytes of the whole state, in the shard groups `groups`, whose kind is `group`."""
    shard, stride = groups.shard, groups.shard_stride
    if hop.among == "all":
        return _scaled(group_curve(rates, group, hop.op, shard, stride), hop.scale)
    if hop.among == "store":
        everyone = np.full_like(shard, ledger.problem.num_gpus)
        return _scaled(group_curve(rates, group, hop.op, everyone, np.ones_like(shard)), hop.scale)
    # Neighbours first divide the state among themselves, so a hop across their sets moves only 1/near of it.
    near = neighbours(hop.reach, shard, stride, ledger.problem.gpus_per_node)
    if hop.among == "neighbours":
        return _scaled(group_curve(rates, group, hop.op, near, stride), hop.scale)
    return _scaled(group_curve(rates, group, hop.op, shard // near, stride * near), hop.scale / near)


def _scaled(curve: Curve, scale: Array | float) -> Curve:
    """The curve over bytes of which `scale` times as many are sent."""
    if isinstance(scale, float) and scale == 1.0:
        return curve
    return Curve(curve.latency_s, curve.s_per_byte * scale, curve.ramp)


def in_pieces(curve: Curve, total_bytes: Array, calls: Array) -> Array:
    """[n] seconds of `total_bytes` in `calls` equal pieces; without calls, as more bytes of others."""
    both = collectives.joined(curve, calls * curve.latency_s, curve.s_per_byte * total_bytes)
    return np.where(total_bytes > 0, both, 0.0)


def exposed_dp_s(ledger: Ledger, rates: Rates, forward: Array, backward: Array, used: Array) -> Array:
    """Once per step: gradients reduced after the last backward, updated weights gathered before the first forward.

    Both hide under the compute of one micro-batch of the stage, in an interleaved pipeline of p(v-1)/v (of all m at
    most), that nothing else hides behind (`used`: [2, n] seconds of forward and backward).
    """
    x = ledger.layouts
    sent = ledger.once(lambda unlike: np.array([once_per_step_s(unlike, rates, part) for part in unlike.traffic]))
    if not sent.any():
        return np.zeros(len(x))
    room = window(ledger) * (np.array([forward, backward]) - used)
    shown = exposed_sums_s(ledger, rates, backward - used[1])
    for traffic, seconds in zip(ledger.traffic, sent, strict=True):
        shown += traffic.share * shown_s(rates.stack, *seconds, *room)
    return shown


def exposed_sums_s(ledger: Ledger, rates: Rates, backward: Array) -> Array:
    """[n] seconds per step of gradients that copies sum up behind every micro-batch but the last
    (StackSpec.sums_every_pass), each beside `backward` seconds of its own pass."""
    again = np.where(ledger.layouts["pp"] == 1, ledger.m - 1.0, 0.0)
    sent = ledger.once(lambda unlike: np.array([early_sum_s(unlike, rates, part) for part in unlike.traffic]))
    shown = [traffic.share * alone_s(rates.stack, seconds, backward)
             for traffic, seconds in zip(ledger.traffic, sent, strict=True)]  # fmt: skip
    return np.asarray(again * sum(shown))


def early_sum_s(ledger: Ledger, rates: Rates, traffic: StateTraffic) -> Array:
    """[n] seconds of the sum over copies behind a micro-batch that is not the last of a step."""
    stack = ledger.problem.stack
    if traffic.is_late or not stack.sums_every_pass or stack.sharded_states == "fsdp2-no-sync":
        return np.zeros(len(ledger.layouts))
    return _between_copies(ledger, rates, traffic)


def alone_s(stack: StackSpec, reduce_s: Array, backward_s: Array) -> Array:
    """[n] exposed seconds of a reduction alone; see `shown_s`."""
    none = np.zeros_like(reduce_s)
    return shown_s(stack, reduce_s, none, none, backward_s)


def window(ledger: Ledger) -> Array:
    """[n] micro-batches whose compute hides what is sent once per step."""
    x = ledger.layouts
    # Only the last backward pass of a chunk completes its gradients, and only its first forward pass needs the weights.
    # With one chunk that leaves one micro-batch to hide behind. With v chunks the reduction of a chunk starts while the
    # device still works on the p micro-batches of its other v - 1 chunks.
    wide = np.where((x["vpp"] > 1) & (x["pp"] > 1), x["pp"] * (x["vpp"] - 1) / x["vpp"], 1.0)
    return np.asarray(np.minimum(wide, ledger.m))


def once_per_step_s(ledger: Ledger, rates: Rates, traffic: StateTraffic) -> tuple[Array, Array]:
    """[n] seconds of reducing the gradients of the fullest stage, and of gathering its weights."""
    reduce_s, gather_s = _within_shards(ledger, rates, traffic)
    if not traffic.is_late:
        reduce_s = reduce_s + _between_copies(ledger, rates, traffic)
    if ledger.zeroth_order is not None:
        reduce_s = reduce_s + _of_slopes_s(ledger, rates, ledger.zeroth_order)
    return reduce_s + of_whole_weights_s(ledger, rates), gather_s


def _of_slopes_s(ledger: Ledger, rates: Rates, step: ZerothOrder) -> Array:
    """[n] seconds in which every rank gets the slopes of all replicas, in one call."""
    ranks = np.full(len(ledger.layouts), ledger.problem.num_gpus)
    world = group_curve(rates, "world", "all_gather", ranks, np.ones_like(ranks))
    return in_pieces(world, step.sent_bytes, np.ones(len(ranks)))


def of_whole_weights_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of summing over tp the gradients of weights that it does not split, part by part. Where gradients are
    in buckets these go in one call, of some megabytes inside a node, which is not counted."""
    tp = ledger.layouts["tp"]
    if ledger.problem.stack.reduces == "buckets" or not (tp > 1).any():
        return np.zeros(len(tp))
    curve = group_curve(rates, "tp", "all_reduce", tp, np.ones_like(tp))
    num_bytes = gradients.trained_whole(ledger) * ledger.states.whole_gradient_bytes
    return in_pieces(curve, num_bytes, gradients.whole_parts(ledger))


def shown_s(stack: StackSpec, reduce_s: Array, gather_s: Array, forward_s: Array, backward_s: Array) -> Array:
    """[n] exposed seconds of both. forward_s, backward_s: compute that hides no other messages."""
    # A collective takes multiprocessors and memory bandwidth from the kernels beside it: `contention` of the hidden
    # seconds comes back as slower compute.
    hidden = np.minimum(stack.dp_overlap * reduce_s, backward_s)
    hidden = hidden + np.minimum(stack.dp_gather_overlap * gather_s, forward_s)
    return np.asarray(reduce_s + gather_s - (1.0 - stack.contention) * hidden)


def _largest_parts(ledger: Ledger) -> list[tuple[int, Array, Groups]]:
    """Trained parameters of the fullest stage and the groups that have them: 0 dense, 1 experts if there are any."""
    parts = (ledger.dense_groups, ledger.expert_groups)[: 1 + ledger.problem.model.is_moe]
    return [(i, np.max([trained[i] for trained in ledger.trained], axis=0), groups) for i, groups in enumerate(parts)]


def _within_shards(ledger: Ledger, rates: Rates, traffic: StateTraffic) -> tuple[Array, Array]:
    """[n] seconds per step of gradients scattered over the shard groups, and of weights gathered there."""
    broadcasts = ledger.problem.stack.dp_gather == "broadcasts"
    reduce_s, gather_s = np.zeros(len(ledger.layouts)), np.zeros(len(ledger.layouts))
    gathers: Op = "broadcast" if broadcasts else "all_gather"
    plan, per_pass, calls_of = ledger.exchanges, ledger.layouts["zero"] == 3, gradients.reductions(ledger)
    for part, largest, groups in _largest_parts(ledger):
        scattered = largest * traffic.scattered
        buckets = calls_of[part]
        for hop in (Hop("all_reduce"),) if ledger.states.sums_gradients else plan.gradients:
            scatter = hop_curve(ledger, rates, SHARDS[part], hop, groups)
            reduce_s += np.where(ledger.states.reduces_once, in_pieces(scatter, scattered, buckets), 0.0)
        # ZeRO-3 scatters gradients per micro-batch. Once per step they go on to the ranks that update them, where these
        # are others (three-level sharding), and the weights come back.
        for hop in plan.to_optimizer:
            there = hop_curve(ledger, rates, SHARDS[part], hop, groups)
            reduce_s += per_pass * in_pieces(there, scattered, buckets)
        for hop in plan.from_optimizer:
            back = hop_curve(ledger, rates, SHARDS[part], hop, groups)
            gather_s += per_pass * in_pieces(back, largest * ledger.problem.state_bytes.weight, buckets)
        gather = group_curve(rates, SHARDS[part], gathers, groups.shard, groups.shard_stride)
        # InternEvo gathers nothing: every rank broadcasts the parameters that it updated.
        calls = groups.shard.astype(np.float64) if broadcasts else buckets
        gather_s += np.where(ledger.states.gathers_once, in_pieces(gather, _largest_new(ledger, part), calls), 0.0)
    return reduce_s, gather_s


def _largest_new(ledger: Ledger, part: int) -> Array:
    """[n] bytes of new weights that ranks of the fullest stage gather: dense (0), of experts (1)."""
    rows = ledger.new_weights(part)
    of_kind = {kind: rows[kind] for kind in ledger.kinds}
    return np.asarray(np.max([ledger.on_profile(j, of_kind) for j in range(ledger.num_profiles)], axis=0))


def _between_copies(ledger: Ledger, rates: Rates, traffic: StateTraffic, pieces: float = 1.0) -> Array:
    """[n] seconds of one exchange between the copies of a rank's parameters, of 1/`pieces` of them."""
    seconds, calls_of = np.zeros(len(ledger.layouts)), gradients.reductions(ledger)
    for part, largest, groups in _largest_parts(ledger):
        calls = calls_of[part]
        calls = np.where(calls > 0, np.maximum(calls / pieces, 1.0), 0.0)  # a piece is one call at the least
        copies = group_curve(rates, REPLICAS[part], traffic.among_copies, groups.replicate, groups.replicate_stride)
        sent = largest * traffic.replicated / groups.shard
        if traffic.among_copies == "all_gather":  # its curve is over the bytes of all
            sent = sent * groups.replicate
        seconds += in_pieces(copies, sent / pieces, calls)
    return seconds


def exposed_fragments_s(ledger: Ledger, rates: Rates, step_s: Array) -> Array:
    """[n] seconds per step that late exchanges of copies show: of each fragment, what outlasts the steps (of `step_s`
    without it) that it may take."""
    shown = np.zeros(len(step_s))
    for traffic in ledger.traffic:
        if traffic.is_late:
            # `delay` steps pass between the start of an exchange and the use of its result, and hide as much of it.
            waited = _between_copies(ledger, rates, traffic, traffic.fragments) - traffic.delay * step_s
            shown += traffic.share * np.maximum(waited, 0.0) * traffic.fragments / traffic.period
    return shown
