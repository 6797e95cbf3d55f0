"""Ledger x rates -> step time and memory: the only place that adds terms up.

A term is exposed seconds of a step; their sum is the step time. Memory is the fullest stage's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..arrays import Array, Ints
from ..layouts import SCHEDULES
from ..quantities.ledger import LASTING, Ledger
from ..quantities.lengths import imbalance
from ..quantities.moments import unusable
from ..quantities.stages import EMBEDDING, EMBEDDING_COPY
from ..quantities.stores import ADAM_BYTES
from ..rates import collectives
from ..rates.rates import COMPONENTS, Rates
from .data_parallel import exposed_dp_s, exposed_fragments_s, group_curve, in_pieces
from .per_pass_overhead import beside_s, is_measured
from .pipeline import Messages, bubble_s, exposed_hop_s
from .pipeline_bounds import Pipelines, least_load_s, least_step_s
from .sharded_states import exchange

_NUMBER_BYTES = 8.0  # in double precision
# name -> (words for people, what it may hide behind)
TERMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "matmul": ("matmul", ()),
    "attention": ("attention", ()),
    "memory": ("norms, elementwise", ()),
    "tp": ("tp comm, exposed", ("matmul",)),
    "cp": ("cp comm, exposed", ("attention",)),
    "ep": ("ep comm, exposed", ("matmul", "attention", "memory")),
    "host": ("kernel launches", ("matmul",)),
    "accumulate": ("gradient accumulation", ()),
    "imbalance": ("uneven lengths", ()),
    "fsdp": ("gather and scatter, exposed", ("matmul", "attention", "memory")),
    "resharding": ("resharding between layers", ()),
    "vocabulary": ("vocabulary over stages", ()),
    "bubble": ("pipeline bubble", ()),
    "pp": ("pp comm, exposed", ()),
    "dp": ("dp comm, exposed", ("matmul", "attention", "memory")),
    "optimizer": ("optimizer", ()),
    "offload": ("offload, exposed", ("matmul", "attention")),
    "stragglers": ("waiting for slow GPUs", ()),
}


@dataclass(frozen=True)
class Estimate:
    """[n] step seconds, bytes of the fullest GPU, and bytes that the GPU with most of them keeps in host memory.

    `terms` sum to step_s; `slowest`, `fullest`: profile indices.
    """

    step_s: Array
    device_bytes: Array
    host_bytes: Array
    terms: dict[str, Array]
    slowest: Ints
    fullest: Ints


def price(ledger: Ledger, rates: Rates, *, detail: bool = False) -> Estimate:
    """Step time and memory of every layout of the ledger. `detail` splits compute into COMPONENTS."""
    terms, slowest = step_terms(ledger, rates, detail=detail)
    device_bytes, fullest = device_memory(ledger, rates)
    host_bytes = np.max([ledger.host_bytes(j) for j in range(ledger.num_profiles)], axis=0)
    return Estimate(np.asarray(sum(terms.values())), device_bytes, host_bytes, terms, slowest, fullest)


def step_terms(ledger: Ledger, rates: Rates, *, detail: bool = False) -> tuple[dict[str, Array], Ints]:
    """[n] exposed seconds of every term, whose sum is the step time; and the profile of the slowest stage."""
    x, m = ledger.layouts, ledger.m
    stage = _stages(ledger, rates)
    slowest = np.argmax(stage.cycle, axis=0)
    pick = np.arange(len(x))
    cycle, forward, backward = (a[slowest, pick] for a in (stage.cycle, stage.forward, stage.backward))
    compute = forward + backward
    terms: dict[str, Array] = {"compute": m * compute, "fsdp": m * stage.fsdp[slowest, pick]}
    terms["accumulate"] = m * stage.accumulate[slowest, pick]
    terms["offload"] = m * stage.offload[slowest, pick]
    terms["bubble"], messages_s = _pipeline_s(ledger, rates, stage, cycle)
    terms["imbalance"] = _imbalance(ledger, slowest)
    terms["pp"] = messages_s + messages_once_s(ledger, rates)
    if ledger.vocabulary is not None:
        terms["vocabulary"] = _vocabulary_s(ledger, rates, cycle)
    terms["dp"] = exposed_dp_s(ledger, rates, forward, backward, stage.used[:, slowest, pick])
    terms["optimizer"] = optimizer_s(ledger, rates)
    if ledger.store is not None and ledger.store.during_backward:
        room = rates.stack.offload_overlap * stage.spare[slowest, pick]
        terms["optimizer"] = np.maximum(terms["optimizer"] - room, 0.0)
    alone = (1.0 + straggler_share(ledger)) * np.asarray(sum(terms.values()))
    terms["dp"] = terms["dp"] + exposed_fragments_s(ledger, rates, alone)
    if detail:
        terms = {**_components(ledger, rates, slowest), **{k: v for k, v in terms.items() if k != "compute"}}
    terms["stragglers"] = straggler_share(ledger) * np.asarray(sum(terms.values()))
    return terms, slowest


def straggler_share(ledger: Ledger) -> float:
    """Added to every step of more than a node's worth of GPUs, which waits for the slowest: per doubling above 8."""
    return ledger.problem.stack.straggler_share * max(math.log2(ledger.problem.num_gpus / 8), 0.0)


@dataclass(frozen=True)
class _Stages:
    """[J, n] seconds per micro-batch and profile: forward, backward (with recomputation), gradient accumulation,
    exposed FSDP and offload traffic, and their sum (cycle). used [2, J, n]: of forward and backward, what their traffic
    hides behind. spare: of the backward pass, with what shows of its traffic, what a store has nothing else to do."""

    forward: Array
    backward: Array
    accumulate: Array
    fsdp: Array
    offload: Array
    cycle: Array
    used: Array
    spare: Array


def _stages(ledger: Ledger, rates: Rates, *, shards_known: bool = True, states: bool = True) -> _Stages:
    """`shards_known`: the size of the shard group is the row's; else scattered states move as over the group that
    moves them fastest. `states`: ZeRO stage and offload are the row's; else the stage that costs least, no offload."""
    tables, profiles = ledger.tables, range(ledger.num_profiles)
    forward_rows, backward_rows = ledger.per_kind(tables.forward_s), ledger.per_kind(tables.backward_s)
    redo_tables = np.array([tables.redo(mode, modules).sum(axis=1) for mode, modules in ledger.codes])
    redo_rows = ledger.per_code(redo_tables)
    forward = np.array([ledger.on_profile(j, forward_rows) for j in profiles])
    backward = np.array([
        ledger.on_profile(j, backward_rows) + ledger.redone(j, redo_rows) for j in profiles
    ])  # fmt: skip
    if is_measured(rates):
        more = beside_s(ledger, rates)
        forward, backward = forward + more[0], backward + more[1]
    zero = ledger.layouts["zero"]
    accumulate = np.array([ledger.accumulated_bytes(j) for j in profiles]) / rates.bandwidth("accumulation")[0]
    compute = np.array([forward, backward])
    exposed, used, offload = np.zeros_like(compute), np.zeros_like(compute), np.zeros_like(compute)
    sharded = np.flatnonzero((zero >= 2) & ~ledger.whole_in_pipeline)
    if len(sharded):
        gathers = (zero[sharded] == 3) & states
        exchange(ledger, rates, sharded, compute, exposed, used, gathers=gathers, shards_known=shards_known)
    fsdp = exposed.sum(axis=0)
    if not states:  # ZeRO-2 moves less than 3; 0 and 1 move nothing, and add whole gradients up
        whole = np.array([ledger.accumulated_bytes(j, scattered=False) for j in profiles])
        fsdp, used = np.minimum(fsdp, whole / rates.bandwidth("accumulation")[0] - accumulate), np.zeros_like(compute)
    one_ways = _offloaded_s(ledger, rates) if states else np.zeros_like(compute)
    moved = np.flatnonzero(one_ways.any(axis=(0, 1)))
    for j in profiles if len(moved) else ():
        one_way = one_ways[:, j, moved]
        hidden = np.minimum(one_way, rates.stack.offload_overlap * compute[:, j, moved])
        # Over links of its own, beside the traffic of sharded states: the longer of the two shows.
        offload[:, j, moved] = np.maximum(one_way - hidden - exposed[:, j, moved], 0.0)
        used[:, j, moved] = np.maximum(used[:, j, moved], hidden)
    away = offload.sum(axis=0)
    busy = one_ways[1] if ledger.store is not None and not ledger.store.duplex else 0.0
    spare = np.maximum(backward + exposed[1] + offload[1] - busy, 0.0)
    cycle = forward + backward + accumulate + fsdp + away
    return _Stages(forward, backward, accumulate, fsdp, away, cycle, used, spare)


def _offloaded_s(ledger: Ledger, rates: Rates) -> Array:
    """[2, J, n] seconds per micro-batch of what goes to the host or a store and comes back: forward, backward."""
    out = np.zeros((2, ledger.num_profiles, len(ledger.layouts)))
    if ledger.offloads_activations.any():
        out += np.where(ledger.offloads_activations, np.array(ledger.saved) / rates.pcie_bw_bytes_per_s, 0.0)
    return out if ledger.store is None else out + ledger.store.pass_s(ledger, rates)


def _pipeline_s(ledger: Ledger, rates: Rates, stage: _Stages, cycle: Array) -> tuple[Array, Array]:
    """[n] seconds of fill and drain: the work of all devices but the slowest, in the form of each schedule; and of
    stage-to-stage messages that nothing hides."""
    x = ledger.layouts
    if not (x["pp"] > 1).any():
        return np.zeros(len(cycle)), np.zeros(len(cycle))
    pp, vpp = x["pp"].astype(np.float64), x["vpp"].astype(np.float64)
    total_c, passes = ledger.over_profiles(stage.cycle), np.zeros(len(cycle))
    if ledger.vocabulary is not None:
        # Its passes fill no pipeline: micro-batches run them on all stages at once, and messages are on their way.
        passes = sum(ledger.vocabulary.passes_s(ledger), passes)
    rows = ledger.per_kind(ledger.tables.weight_s)
    weight = np.array([ledger.on_profile(j, rows) for j in range(ledger.num_profiles)])
    # What traffic hides behind is not there to fill a bubble: else a slower product would hide more and fill more.
    mean_w = ledger.over_profiles(np.maximum(weight - stage.used[1], 0.0)) / pp
    # F, B, W of "all devices but one" by their mean: then a longer cycle never shortens a step, which bounds rely on.
    mean_f, mean_b = (ledger.over_profiles(seconds) / pp for seconds in (stage.forward, stage.backward))
    hidden_f = ledger.over_profiles(np.minimum(stage.used[0], stage.forward)) * (pp - 1) / pp
    others_c = np.maximum(np.maximum(total_c - cycle, 0.0) - (pp - 1) * passes, 0.0)
    others_f, others_b, others_w = ((pp - 1) * mean for mean in (mean_f, mean_b, mean_w))
    bubble = bubble_s(x["schedule"], vpp, pp, ledger.m, total_c / pp, others_c, others_f, others_b, others_w, hidden_f)
    bubble = np.maximum(bubble + _chunk_waits_s(ledger, pp, cycle), 0.0)
    messages = Messages(pp, vpp, ledger.m, *_message_s(ledger, rates), total_c - pp * passes, cycle, mean_f, mean_b,
                        mean_w)  # fmt: skip
    return np.asarray(np.where(pp > 1, bubble, 0.0)), exposed_hop_s(x["schedule"], messages)


def _chunk_waits_s(ledger: Ledger, pp: Array, cycle: Array) -> Array:
    """[n] seconds that devices wait for longer chunks of others (interleaving_stalls.py)."""
    if ledger.splits.waits is None:
        return np.zeros(len(cycle))
    once, first, further = ledger.splits.waits[ledger.split].T
    of_p = np.where(ledger.m > pp, first + (ledger.m / pp - 1.0) * further, once)
    return np.asarray(np.minimum(ledger.m, pp) * cycle * of_p)


def exposed_s(ledger: Ledger, rates: Rates) -> Array:
    """[J, n] seconds per micro-batch that are not compute: gradient accumulation, exposed FSDP and offload traffic."""
    stage = _stages(ledger, rates)
    return np.asarray(stage.accumulate + stage.fsdp + stage.offload)


def unhidden_s(ledger: Ledger, rates: Rates, *, shards_known: bool) -> Array:
    """[n] seconds per micro-batch of exposed FSDP and offload traffic on the first profile."""
    stage = _stages(ledger, rates, shards_known=shards_known)
    return np.asarray((stage.fsdp + stage.offload)[0])


def cycle_s(ledger: Ledger, rates: Rates, *, states_known: bool, shards_known: bool) -> Array:
    """[n] seconds per micro-batch of the slowest stage, at least: unless `shards_known` whatever the shard size, and
    unless `states_known` whatever the ZeRO stage and the offload."""
    return np.asarray(_stages(ledger, rates, shards_known=shards_known, states=states_known).cycle.max(axis=0))


def _imbalance(ledger: Ledger, slowest: Ints) -> Array:
    """Documents of different length: what the busiest data-parallel rank's attention takes longer (lengths.py)."""
    workload, dp = ledger.problem.workload, ledger.layouts["dp"]
    if not workload.lengths or not workload.packed:
        return np.zeros(len(dp))
    distinct, inverse = np.unique(dp, return_inverse=True)
    more = np.array([imbalance(workload, int(ranks)) - 1.0 for ranks in distinct])[inverse]
    attention = _component_s(ledger, COMPONENTS.index("attention"))
    return np.asarray(more * ledger.m * attention[slowest, np.arange(len(dp))])


def hop_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of one stage-to-stage message."""
    return _message_s(ledger, rates)[0]


def link_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] how long the link is busy with it and those of other replicas that share the link: their bytes at its
    bandwidth, without what is latency."""
    return _message_s(ledger, rates)[1]


def _message_s(ledger: Ledger, rates: Rates) -> tuple[Array, Array]:
    x, num_bytes = ledger.layouts, ledger.tables.message[ledger.key]
    curve = group_curve(rates, "pp", "p2p", x["pp"], ledger.problem.num_gpus // x["pp"])
    message_s, sending_s = collectives.seconds(curve, num_bytes), curve.s_per_byte * num_bytes
    turns = _others_turns(ledger, rates)
    return message_s if turns is None else message_s - turns * sending_s, sending_s


def _others_turns(ledger: Ledger, rates: Rates) -> Array | None:
    """[n] share of a link's time that belongs to the messages of other replicas: they take turns where they share a
    port, but ranks that keep step need all of theirs at once: those of one replica, and those that share experts. None
    where every rank has a port of its own."""
    shared_by, x = rates.levels_of("pp")[-1].shared_by, ledger.layouts
    if shared_by <= 1.0:
        return None
    in_step = np.maximum(x["tp"] * x["cp"], x["ep"] * x["etp"])
    return np.asarray(1.0 - 1.0 / np.clip(shared_by / in_step, 1.0, x["dp"]))


def messages_once_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of messages once a step: the gradient sum of a tied embedding, and the turns before that of the last
    replica. All of them begin at the same time; from then on their messages are apart."""
    turns, tied_s = _others_turns(ledger, rates), tied_embedding_s(ledger, rates)
    if turns is None:
        return tied_s
    return np.asarray(tied_s + np.where(ledger.layouts["pp"] > 1, turns * link_s(ledger, rates), 0.0))


def _vocabulary_s(ledger: Ledger, rates: Rates, cycle: Array) -> Array:
    """Messages of the vocabulary passes, and waiting for them. No shorter cycle makes a longer step (`bound`)."""
    if ledger.vocabulary is None:
        return np.zeros(len(cycle))
    return ledger.m * ledger.vocabulary.beside_s(ledger, rates) + ledger.vocabulary.waits_s(ledger, rates, cycle)


def tied_embedding_s(ledger: Ledger, rates: Rates) -> Array:
    """The gradient sum of an embedding that the first and the last stage both hold."""
    x, problem = ledger.layouts, ledger.problem
    apart = (x["pp"] > 1) & (x["schedule"] < SCHEDULES.index("zb-v")) & (ledger.vocabulary is None)
    shared = problem.model.tied_embeddings or problem.model.mtp_layers > 0
    if not (shared and problem.trains_everything and apart.any()):
        return np.zeros(len(x))
    distance = (x["pp"] - 1) * (problem.num_gpus // x["pp"])
    table = ledger.tables.parameters["trained_dense"][EMBEDDING_COPY][ledger.key]
    num_bytes = table * problem.state_bytes.gradient
    return collectives.seconds(group_curve(rates, "tied", "all_reduce", np.where(apart, 2, 1), distance), num_bytes)


def optimizer_s(ledger: Ledger, rates: Rates) -> Array:
    """Seconds of the optimizer where it is."""
    if ledger.store is not None and ledger.store.optimizer:
        return ledger.store.update_s(ledger, rates) + _extra_s(ledger, rates) + _reductions_s(ledger, rates)
    on_gpu, on_host = _optimizer_places(ledger, rates)
    return np.asarray(np.where(ledger.offloads_optimizer, on_host, on_gpu))


def _optimizer_places(ledger: Ledger, rates: Rates) -> tuple[Array, Array]:
    """On the GPU: gradient and states read, states and weight written. On the host: over PCIe and back, Adam there."""
    states = ledger.problem.state_bytes
    updated = np.max(ledger.updated, axis=0)
    cast = np.max([ledger.cast_bytes(j) for j in range(ledger.num_profiles)], axis=0) / rates.memory_bw_bytes_per_s
    extra = _extra_s(ledger, rates) + _reductions_s(ledger, rates)
    on_gpu = updated * update_bytes(ledger) / rates.bandwidth("update")[0] + cast + extra
    over_pcie = updated * (states.gradient + states.weight) / rates.pcie_bw_bytes_per_s
    return on_gpu, over_pcie + cast + extra + updated * ADAM_BYTES / rates.host_memory_bw_bytes_per_s


def update_bytes(ledger: Ledger) -> float:
    """Bytes that the optimizer moves per parameter that it updates on the GPU."""
    states = ledger.problem.state_bytes
    return states.gradient + 2 * states.optimizer + states.weight + ledger.problem.stack.optimizer_extra_bytes


def _extra_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of what techniques move in GPU memory beside the optimizer."""
    moved = sum(each.share * each.moved for each in ledger.traffic)
    return np.asarray(moved * np.max(ledger.updated, axis=0) / rates.memory_bw_bytes_per_s)


def _reductions_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of summing single numbers over all ranks (StackSpec.step_reductions)."""
    calls = np.full(len(ledger.layouts), float(ledger.problem.stack.step_reductions))
    if not calls.any():
        return calls
    ranks = np.full(len(calls), ledger.problem.num_gpus)
    world = group_curve(rates, "world", "all_reduce", ranks, np.ones_like(ranks))
    return in_pieces(world, _NUMBER_BYTES * calls, calls)


def bound(
    ledger: Ledger, rates: Rates, *, states_known: bool, shards_known: bool = False, memory: bool = True,
    any_split: bool = False,
) -> tuple[Array, Array]:
    """Step seconds and bytes that no choice of shard size (or, unless `states_known`, of ZeRO stage and offload) beats.

    The rows must carry shard = dp unless `shards_known`, and unless `states_known` the smallest states (ZeRO-3, all
    offloaded). Time: communication of data parallelism hides fully, the optimizer runs where it is faster. Every other
    term is exact, and the step never falls when a stage's cycle grows (`_bubble`); so both are lower bounds. any_split:
    of a ledger of mean stages, what no split of the layers beats (`pipeline_bounds.least_step_s`).
    """
    stage = _stages(ledger, rates, shards_known=shards_known, states=states_known)
    slowest = np.argmax(stage.cycle, axis=0)
    cycle = stage.cycle[slowest, np.arange(len(slowest))]
    if any_split:
        pipeline_s = _least_pipeline_s(ledger, rates, cycle)
    else:
        pipeline_s = ledger.m * cycle + sum(_pipeline_s(ledger, rates, stage, cycle))
    step_s = pipeline_s + messages_once_s(ledger, rates) + _vocabulary_s(ledger, rates, cycle)
    step_s = (step_s + least_optimizer_s(ledger, rates, states_known)) * (1.0 + straggler_share(ledger))
    if not memory:
        return step_s, fixed_bytes(ledger, rates)
    if any_split:
        held = ledger.memory(0)
        states = sum(held[name] for name in LASTING)
        return step_s, states * (1 + rates.overheads.reserve_share) + fixed_bytes(ledger, rates)
    device_bytes, _ = device_memory(ledger, rates, gathered=states_known)
    return step_s, device_bytes


def least_optimizer_s(ledger: Ledger, rates: Rates, states_known: bool) -> Array:
    """[n] seconds of the optimizer, where it is faster unless `states_known`."""
    if ledger.stores_optimizer:
        hidden = ledger.store is not None and ledger.store.during_backward
        return np.zeros(len(ledger.layouts)) if hidden else optimizer_s(ledger, rates)
    on_gpu, on_host = _optimizer_places(ledger, rates)
    return np.where(ledger.offloads_optimizer, on_host, on_gpu) if states_known else np.minimum(on_gpu, on_host)


def each_kind_s(ledger: Ledger, rates: Rates) -> dict[int, Array]:
    """Kind -> [n] seconds per micro-batch of one layer of that kind: forward, backward, what is recomputed and the
    addition of its gradients."""
    tables, accumulated = ledger.tables, ledger.accumulated_per_kind()
    redo = ledger.per_code(np.array([tables.redo(mode, modules).sum(axis=1) for mode, modules in ledger.codes]))
    forward, backward = ledger.per_kind(tables.forward_s), ledger.per_kind(tables.backward_s)
    bandwidth, _ = rates.bandwidth("accumulation")
    return {k: forward[k] + backward[k] + redo[k] + accumulated[k] / bandwidth for k in ledger.kinds}


def _least_pipeline_s(ledger: Ledger, rates: Rates, mean_s: Array) -> Array:
    """[n] seconds of a pipeline of whole layers, split in any way; mean_s: of a micro-batch on the mean stage."""
    x, tables, each = ledger.layouts, ledger.tables, each_kind_s(ledger, rates)
    layers, pp = ledger.problem.num_kinds, x["pp"].astype(np.float64)
    edges = len(ledger.tables.seconds) + EMBEDDING
    layer_s = np.min([each[k] for k in ledger.kinds if k < layers], axis=0)
    first_s, mtp = each[edges], ledger.problem.model.mtp_layers
    last_s = sum(ledger.totals[k] * each[k] for k in ledger.kinds if k > edges) + mtp * each[ledger.problem.pattern[-1]]
    whole = least_load_s(pp, np.full(len(x), float(ledger.problem.model.num_layers)), layer_s, first_s, last_s)
    apart = x["schedule"] < SCHEDULES.index("zb-v")  # in a V, one device holds both ends
    load_s = np.maximum(mean_s, np.where(apart, whole, 0.0))
    weight, forward = ledger.per_kind(tables.weight_s), ledger.per_kind(tables.forward_s)
    ends = [k for k in ledger.kinds if k != edges]
    with np.errstate(invalid="ignore"):  # of what takes no time
        weight_share = np.nanmax([weight[k] / each[k] for k in ends], axis=0)
        forward_share = np.nanmin([forward[k] / each[k] for k in ends if k < layers], axis=0)
    return least_step_s(Pipelines(
        schedule=x["schedule"], pp=pp, vpp=x["vpp"].astype(np.float64), m=ledger.m, total_s=pp * mean_s,
        weight_s=ledger.over_devices(weight), layers_s=ledger.over_devices(each), load_s=load_s,
        hop_s=hop_s(ledger, rates), forward_share=forward_share, weight_share=weight_share,
    ))  # fmt: skip


def _components(ledger: Ledger, rates: Rates, slowest: Ints) -> dict[str, Array]:
    """The slowest stage's compute, by component: m micro-batches of forward, backward and recomputation."""
    pick = np.arange(len(slowest))
    out = {name: ledger.m * _component_s(ledger, index)[slowest, pick] for index, name in enumerate(COMPONENTS)}
    out["host"] = out["host"] + ledger.m * beside_s(ledger, rates).sum(axis=0)[slowest, pick]
    return out


def _component_s(ledger: Ledger, index: int) -> Array:
    """[J, n] seconds of one component per micro-batch and profile: forward, backward and what is computed again."""
    rows = ledger.per_kind(np.array([k.forward[index] + k.backward[index] for k in ledger.tables.seconds]))
    again = ledger.per_code(np.array([ledger.tables.redo(*code)[:, index] for code in ledger.codes]))
    return np.array([ledger.on_profile(j, rows) + ledger.redone(j, again) for j in range(ledger.num_profiles)])


def device_memory(ledger: Ledger, rates: Rates, *, gathered: bool = True) -> tuple[Array, Ints]:
    """[n] bytes of the fullest stage as the driver would show them, and its profile; `gathered`: count that buffer."""
    held = np.array([reserved_bytes(ledger, rates, j, gathered=gathered) for j in range(ledger.num_profiles)])
    fullest = np.argmax(held, axis=0)
    return held[fullest, np.arange(len(ledger.layouts))] + fixed_bytes(ledger, rates), fullest


def least_bytes(ledger: Ledger, rates: Rates) -> Array:
    """[n] bytes that no choice of recomputation beats: weights, gradients and optimizer states of the fullest stage."""
    held = np.max([np.sum(list(ledger.states(j).values()), axis=0) for j in range(ledger.num_profiles)], axis=0)
    return np.asarray(held * (1 + rates.overheads.reserve_share) + fixed_bytes(ledger, rates))


def reserved_bytes(ledger: Ledger, rates: Rates, j: int, *, gathered: bool = True) -> Array:
    """[n] bytes that the allocator holds on the device of profile j at its peak."""
    allocated = np.asarray(sum(ledger.memory(j, gathered=gathered).values()))
    return allocated * (1 + rates.overheads.reserve_share) + unusable(ledger, j)


def fixed_bytes(ledger: Ledger, rates: Rates) -> Array:
    """[n] bytes outside the allocator: context and communicators."""
    over = rates.overheads
    return np.asarray(over.context_bytes + over.communicator_bytes * ledger.communicators)
