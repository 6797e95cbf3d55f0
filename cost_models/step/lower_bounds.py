"""Lower bounds on step seconds and bytes of the descendants of a search node."""

from __future__ import annotations

import numpy as np

from ..arrays import Array, Ints
from ..quantities.device_memory import LASTING, DeviceMemory
from ..quantities.ledger import Ledger
from ..quantities.stages import EMBEDDING
from ..rates.kernel_seconds import kernel_seconds
from ..rates.rates import Rates
from ..schedule_kinds import FOLDED
from .optimizer_seconds import least_optimizer_s
from .pipeline_bounds import Pipelines, least_load_s, least_step_s
from .pipeline_overhead import pipeline_s
from .reserved_memory import fixed_bytes, fullest_stage
from .stage_messages import hop_s
from .stage_seconds import compute_s, kind_seconds, offloaded_s, stage_seconds
from .step import once_terms_s
from .stragglers import waiting_share
from .vocabulary_seconds import exposed_vocabulary_s


def bound(
    ledger: Ledger,
    rates: Rates,
    *,
    states_known: bool,
    shards_known: bool = False,
    scattered: bool = False,
    least_shard: Ints | None = None,
    memory: bool = True,
    any_split: bool = False,
    moves: bool = False,
) -> tuple[Array, Array]:
    """Step seconds and bytes that no choice of shard size (or, unless `states_known`, of ZeRO stage and offload) beats.

    The rows must carry shard = dp unless `shards_known`, and unless `states_known` the smallest states (ZeRO-3, all
    offloaded). scattered: of unknown states only those that scatter the gradients of every micro-batch; the rows carry
    the ZeRO stage that sends least, and no offload. least_shard: [n] shard groups of this size or more. Time: what data
    parallelism sends once per step hides fully, the optimizer runs where it is faster. Every other term is exact, and
    the step never falls when a stage's cycle grows (`pipeline_overhead.pipeline_s`); so both are lower bounds.
    moves: of unknown states only those that send activations to the host, where the rows do.
    any_split: of a ledger of mean stages, what no split of the layers beats (`pipeline_bounds.least_step_s`).
    """
    stage = stage_seconds(ledger, rates, shards_known=shards_known, states=states_known or scattered,
                          least_shard=least_shard, moves=moves)  # fmt: skip
    # A bound uses the same forms as the price with traffic at its least: each form never falls when a cycle grows.
    slowest = np.argmax(stage.cycle, axis=0)
    cycle = stage.cycle[slowest, np.arange(len(slowest))]
    if any_split:
        cycles_s = _least_pipeline_s(ledger, rates, cycle)
    else:
        cycles_s = ledger.m * cycle + sum(pipeline_s(ledger, rates, stage, cycle))
    once_s = once_terms_s(ledger, rates) + ledger.once(lambda unlike: least_optimizer_s(unlike, rates, states_known))
    step_s = (cycles_s + exposed_vocabulary_s(ledger, rates, cycle) + once_s) * (1.0 + waiting_share(ledger))
    if not memory:
        return step_s, fixed_bytes(ledger, rates)
    memory_of_rows = DeviceMemory(ledger)
    if any_split:
        return step_s, _mean_bytes(memory_of_rows, rates)
    device_bytes, _ = fullest_stage(memory_of_rows, rates, gathered=states_known)
    return step_s, device_bytes


def least_cycles_s(ledger: Ledger, rates: Rates, *, states_known: bool, moves: bool = False) -> Array:
    """[n] a cheap bound of step seconds, below `bound`: all micro-batches on the slowest device, without traffic other
    than copies to the host and a store."""
    compute = np.array(compute_s(ledger, rates))
    if states_known or moves or ledger.store is not None:
        one_ways = offloaded_s(ledger, rates, all_kinds=states_known, moves=states_known or moves)
        compute = compute + np.maximum(one_ways - rates.stack.offload_overlap * compute, 0.0)
    return np.asarray(ledger.m * compute.sum(axis=0).max(axis=0) * (1.0 + waiting_share(ledger)))


def _mean_bytes(memory: DeviceMemory, rates: Rates) -> Array:
    """[n] bytes of mean stages that no split of the layers beats."""
    # Only what is linear in the layers has the mean over stages as a bound; buffers of the moment do not.
    buffers = memory.buffers(0)
    states = sum(buffers[name] for name in LASTING)
    return np.asarray(states * (1 + rates.overheads.reserve_share) + fixed_bytes(memory.ledger, rates))


def _least_pipeline_s(ledger: Ledger, rates: Rates, mean_s: Array) -> Array:
    """[n] kind_s of a pipeline of whole layers, split in any way; mean_s: of a micro-batch on the mean stage."""
    if ledger.path is not None:  # the stages that a micro-batch skips fill nothing
        return np.asarray(ledger.m * mean_s)
    x, kernels, kind_s = ledger.layouts, kernel_seconds(ledger.tables, rates), kind_seconds(ledger, rates)
    layers, pp = ledger.problem.num_kinds, x["pp"].astype(np.float64)
    edges = len(kernels.layers) + EMBEDDING
    layer_s = np.min([kind_s[k] for k in ledger.kinds if k < layers], axis=0)
    first_s = kind_s[edges] if ledger.problem.edges.lookups[0] == 0 else np.zeros(len(x))
    last_s = sum((ledger.totals[k] * kind_s[k] for k in ledger.kinds if k > edges), np.zeros(len(x)))
    for kind in ledger.problem.mtp:
        last_s = last_s + kind_s[kind]
    whole = least_load_s(pp, np.full(len(x), float(ledger.problem.model.num_layers)), layer_s, first_s, last_s)
    # In a V one device holds both ends of the model.
    load_s = np.maximum(mean_s, np.where(FOLDED[x["schedule"]], 0.0, whole))
    weight, forward = ledger.per_kind(kernels.weight_s), ledger.per_kind(kernels.forward_s)
    sees = ledger.problem.model.tower is not None  # else the embedding has no products
    ends = [k for k in ledger.kinds if sees or k != edges]
    with np.errstate(invalid="ignore"):  # of what takes no time
        weight_share = np.nanmax([weight[k] / kind_s[k] for k in ends], axis=0)
        passes = [k for k in ends if k < layers or (sees and k == edges)]
        forward_share = np.nanmin([forward[k] / kind_s[k] for k in passes], axis=0)
    return least_step_s(Pipelines(
        schedule=x["schedule"], pp=pp, vpp=x["vpp"].astype(np.float64), m=ledger.m, total_s=pp * mean_s,
        weight_s=ledger.over_devices(weight), layers_s=ledger.over_devices(kind_s), load_s=load_s,
        hop_s=hop_s(ledger, rates), forward_share=forward_share, weight_share=weight_share,
    ))  # fmt: skip
