"""Communication of sharded states per micro-batch, and its exposed part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Ints, group_rows
from ..degrees import shard_sizes
from ..quantities.exchanges import Hop
from ..quantities.groups import Groups
from ..quantities.ledger import Ledger
from ..rates.collectives import Curve
from ..rates.rates import Rates
from ..specs.stack import StackSpec
from .data_parallel import SHARDS, hop_curve, in_pieces

Hops = tuple[Hop, ...]
Curves = dict[Hops, list[Curve]]

WAYS = ("forward", "backward", "gradients")  # gathers for each pass, and the scatter of gradients
BACKWARD = WAYS.index("backward")

_PARTS = (("dense_gathered_bytes", "trained_dense"), ("experts_gathered_bytes", "trained_experts"))  # columns of Tables


def exchange(
    ledger: Ledger, rates: Rates, rows: Ints, compute: Array, *, states: bool, shards_known: bool,
    least_shard: Ints | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """[2, J, r] seconds per micro-batch that show, and seconds of `compute` ([2, J, r]) that they hide behind, forward
    and backward, of the layouts at `rows`. The other arguments are those of `stage_seconds`.

    ZeRO-3 gathers weights for forward and backward, ZeRO-2 and 3 scatter gradients, layer by layer; FSDP2 gathers for
    the forward pass in stage 2 too.

    What does not hide: all but `fsdp_overlap` of it, and the first layer's gather; and copies of its buffers. Mean
    stages (Splits.is_bound) count only what is convex in the layers, so that the mean over the stages of a split is no
    less: no first gather, which a split pays less often if it leaves stages without layers.
    """
    exposed, used = np.zeros_like(compute), np.zeros_like(compute)
    # NCCL kernels run on multiprocessors. NICs that reduce and copy by themselves leave those to compute.
    contention = 0.0 if ledger.exchanges.by_nic else rates.stack.contention
    unlike, needed, number = ledger.at(rows)
    if least_shard is not None and ledger.unlike is not None:
        least_shard = least_shard[ledger.unlike.first]
    curves = curves_of(unlike, rates, needed) if shards_known else _least_curves(unlike, rates, needed, least_shard)
    sent = _sent(unlike, rates, needed, curves, states=states)[..., number]
    for j in range(ledger.num_profiles):
        calls = [np.inf, np.inf] if ledger.splits.is_bound else calls_of_ways(ledger, rows, j)
        for way, (seconds, copied) in enumerate(zip(sent[0, :, j], sent[1, :, j], strict=True)):
            hidden = hidden_s(rates.stack, seconds, compute[way, j], calls[way])
            exposed[way, j] = seconds - (1.0 - contention) * hidden + copied
            used[way, j] = hidden
    return exposed, used


def _sent(ledger: Ledger, rates: Rates, rows: Ints, curves: list[Curves], *, states: bool) -> Array:
    """[2, 2, J, r] seconds per micro-batch: of messages, and of copies of their buffers; forward and backward."""
    plan, sent = ledger.exchanges, np.zeros((2, 2, ledger.num_profiles, len(rows)))
    times = when(ledger, rows, (ledger.layouts["zero"][rows] == 3) & states)
    for j in range(ledger.num_profiles):
        seconds, moved = moved_by(ledger, rows, j, curves)
        forward, back, scatter = times * seconds
        # Gathers and scatters of the backward pass share one communicator and follow each other, unless NICs do both:
        # their two directions are independent.
        sent[0, :, j] = forward, np.maximum(back, scatter) if plan.by_nic else back + scatter
        copies = times * copied_s(ledger, rates, ledger.dense_groups.shard[rows] > 1, moved)
        sent[1, :, j] = copies[0], copies[1] + copies[2]
    return sent


def when(ledger: Ledger, rows: Ints, gathers: NDArray[np.bool_]) -> Array:
    """[3, r] times that a micro-batch has each of WAYS."""
    again, workload = gathers.astype(np.float64), ledger.problem.workload
    first = np.ones(len(rows)) if ledger.problem.stack.is_fsdp2 else again
    if workload.reference:  # weights that are still whole need no gather: those of the base beside adapters
        first = first + (first if workload.has_second_weights else again)
    return np.array([first, again, (~ledger.states.reduces_once[rows]).astype(np.float64)])


def moved_by(ledger: Ledger, rows: Ints, j: int, curves: list[Curves]) -> tuple[Array, Array]:
    """[3, r] seconds of each of WAYS on profile j, in a call per layer that has it; and what it moves: bytes of
    weights, parameters with a gradient."""
    plan = ledger.exchanges
    seconds, moved = np.zeros((2, len(WAYS), len(rows)))
    for part, (weights, trained) in zip(curves, _PARTS, strict=False):
        gathered, of_trained = (ledger.per_kind(ledger.tables.parameters[name]) for name in (weights, trained))
        again = {kind: of * ledger.tables.gathered_again[kind] for kind, of in gathered.items()}
        gradients = {kind: parameters * ledger.states.whole_gradient_bytes for kind, parameters in of_trained.items()}
        ways = ((plan.forward, gathered, gathered), (plan.backward, again, again),
                (plan.gradients, gradients, of_trained))  # fmt: skip
        for way, (hops, sent, of) in enumerate(ways):
            seconds[way] += _seconds(part[hops], ledger, rows, j, sent, _calls_of(ledger, sent, way))
            moved[way] += ledger.on_profile(j, of)[rows]
    return seconds, moved


def _calls_of(ledger: Ledger, sent: dict[int, Array], way: int) -> dict[int, Array]:
    """Kind -> [n] calls of one of WAYS of a layer of that kind. Ends of the model go with layers."""
    layers, again = ledger.problem.num_kinds, ledger.tables.gathered_again
    return {kind: (of > 0) * (kind < layers) * (again[kind] if way == BACKWARD else 1.0) for kind, of in sent.items()}


def calls_of_ways(ledger: Ledger, rows: Ints, j: int) -> list[Array]:
    """[r] layers of profile j whose weights a forward pass needs, and a backward pass; at least 1."""
    layers, again = range(ledger.problem.num_kinds), ledger.tables.gathered_again
    passed = sum((count[rows] * again[kind] for kind, count in ledger.counts[j].items() if kind in layers),
                 np.zeros(len(rows)))  # fmt: skip
    return [np.maximum(calls, 1.0) for calls in (ledger.layers[j][rows], passed)]


def copied_s(ledger: Ledger, rates: Rates, shards: NDArray[np.bool_], moved: Array) -> Array:
    """[3, ...] seconds of copying weights out of their buffer, or gradients into theirs, for what `moved_by` gives."""
    plan, stack, weight = ledger.exchanges, rates.stack, ledger.problem.state_bytes.weight
    per_s = np.where(shards, 1.0 / rates.memory_bw_bytes_per_s, 0.0)
    coded = [sum(hop.moved for hop in hops) for hops in (plan.forward, plan.backward, plan.gradients)]
    per_unit = [(stack.gather_copy_bytes + coded[0]) / weight, (stack.gather_copy_bytes + coded[1]) / weight,
                stack.scatter_copy_bytes + coded[2]]  # fmt: skip
    return np.array([of * way * per_s for of, way in zip(moved, per_unit, strict=True)])


def hidden_s(stack: StackSpec, seconds: Array, compute: Array, calls: Array | float) -> Array:
    """[n] the hidden part of `seconds` of such traffic in `calls` calls: `fsdp_overlap`, at most what is computed
    beside it, and not the first layer's."""
    # The next layer is gathered while this one is computed. Nothing runs before the first layer is there, so one of the
    # `calls` equal calls always shows.
    hidden = np.minimum(stack.fsdp_overlap * seconds, compute)
    return np.asarray(np.minimum(hidden, seconds - seconds / calls))


def _seconds(
    curves: list[Curve], ledger: Ledger, rows: Ints, j: int, bytes_by_kind: dict[int, Array],
    calls_by_kind: dict[int, Array],
) -> Array:  # fmt: skip
    """[r] seconds of `bytes_by_kind` of the layers on profile j, in `calls_by_kind`, one hop after another."""
    total, calls = (ledger.on_profile(j, of)[rows] for of in (bytes_by_kind, calls_by_kind))
    if ledger.splits.is_bound:
        return _least_seconds(curves, ledger, rows, j, (bytes_by_kind, calls_by_kind), (total, calls))
    return np.asarray(sum(in_pieces(curve, total, np.maximum(calls, 1.0)) for curve in curves))


def _least_seconds(
    curves: list[Curve], ledger: Ledger, rows: Ints, j: int, by_kind: tuple[dict[int, Array], dict[int, Array]],
    together: tuple[Array, Array],
) -> Array:  # fmt: skip
    """The same of mean stages, no more than the mean over the stages of any split; of bytes and calls, by kind and of
    all. Where a ramp adds to a call (it is concave), layers and ends together take no less than each alone; where it
    takes from it (convex), no split takes less than the mean. Layers without such bytes need no call: a split may keep
    them apart from those that do."""
    counts = {kind: number[rows] for kind, number in ledger.counts[j].items()}
    num_bytes, calls = ({kind: of[rows] for kind, of in part.items()} for part in by_kind)
    seconds = np.zeros(len(rows))
    for curve in curves:
        alone = sum(counts[kind] * in_pieces(curve, of, calls[kind]) for kind, of in num_bytes.items())
        seconds += np.minimum(alone, in_pieces(curve, *together))
    return seconds


def _all_hops(ledger: Ledger) -> set[Hops]:
    return {ledger.exchanges.forward, ledger.exchanges.backward, ledger.exchanges.gradients}


def curves_of(ledger: Ledger, rates: Rates, rows: Ints) -> list[Curves]:
    """Curves of every hop in the shard groups of `rows`: of dense parameters, and of experts if there are any."""
    parts = (ledger.dense_groups, ledger.expert_groups)[: 1 + ledger.problem.model.is_moe]
    of_rows = [(name, groups.of_rows(rows)) for name, groups in zip(SHARDS, parts, strict=False)]
    return [{hops: [hop_curve(ledger, rates, name, hop, groups) for hop in hops] for hops in _all_hops(ledger)}
            for name, groups in of_rows]  # fmt: skip


def _least_curves(ledger: Ledger, rates: Rates, rows: Ints, least_shard: Ints | None) -> list[Curves]:
    """Curves that lie below those of `curves_of` for every size of the shard group that the rows allow; least_shard:
    [n] of those, only sizes from this one on."""
    x = ledger.layouts
    from_size = np.zeros(len(rows), np.int64) if least_shard is None else np.minimum(least_shard, x["dp"])[rows]
    columns = [*(x[name][rows] for name in ("dp", "cp", "tp")), x["ep"][rows] * x["etp"][rows], from_size]
    first, inverse = group_rows(columns)
    dp, cp, tp, folded, smallest = (column[first] for column in columns)
    shards = [[size for size in shard_sizes(d, c) if size >= s]
              for d, c, s in zip(dp.tolist(), cp.tolist(), smallest.tolist(), strict=True)]  # fmt: skip
    lengths = [len(sizes) for sizes in shards]
    starts = np.cumsum([0, *lengths])[:-1]
    ranks_of = dict(zip(("dp", "cp", "tp", "ep"), (dp, cp, tp, folded), strict=True))
    options = {name: np.repeat(column, lengths) for name, column in ranks_of.items()}
    ones = np.ones(sum(lengths), dtype=np.int64)
    options |= {"shard": np.concatenate(shards), "etp": ones, "zero": ones}
    parts = (Groups.dense(options), Groups.experts(options))[: 1 + ledger.problem.model.is_moe]

    def least(name: str, hop: Hop, groups: Groups) -> Curve:
        of_sizes = hop_curve(ledger, rates, name, hop, groups)
        columns = (of_sizes.latency_s, of_sizes.s_per_byte, of_sizes.ramp)
        return Curve(*(np.minimum.reduceat(column, starts)[inverse] for column in columns))

    return [{hops: [least(name, hop, groups) for hop in hops] for hops in _all_hops(ledger)}
            for name, groups in zip(SHARDS, parts, strict=False)]  # fmt: skip
