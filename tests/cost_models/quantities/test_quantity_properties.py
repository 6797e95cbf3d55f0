"""Properties of parameters and bytes, on random legal layouts of real models."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from meshwright.cost_models.layouts import MODULES, OFFLOADS
from meshwright.cost_models.quantities.activations import Activations
from meshwright.cost_models.quantities.device_memory import BUFFERS, DeviceMemory
from meshwright.cost_models.quantities.memory import REPLICATED
from meshwright.cost_models.quantities.moments import TRANSIENT
from meshwright.cost_models.quantities.params import layer_parameters, total_parameters
from meshwright.cost_models.quantities.stages import EMBEDDING
from meshwright.cost_models.schedule_kinds import FOLDED, SPLITS_BACKWARD
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.step import reserved_memory, step
from meshwright.planner.space.tree import Columns, select
from numpy.typing import NDArray

from ..mtp_parameters import mtp_parameters
from ..random_cases import (
    ACT,
    FULL,
    OPT,
    SELECTIVE,
    SLACK,
    case_named,
    cases,
    check,
    draw,
    ledger_of,
    seeds,
    thorough,
    with_column,
)


def copies(model: ModelSpec, columns: Columns) -> NDArray[np.float64]:
    """Parameters of the second embedding: for a tied head or MTP modules, on a last stage that is not the first one."""
    apart = (columns["pp"] > 1) & ~FOLDED[columns["schedule"]]
    wanted = model.tied_embeddings or model.mtp_layers > 0
    return np.where(apart & wanted, model.vocab * (model.embedding_dim or model.hidden), 0)


@given(cases, seeds)
@thorough(40)
def test_sharding_conserves_parameters(name: str, seed: int) -> None:
    """Over the ranks of a pipeline every parameter is held once: shards over tp and experts add up, replicas once."""
    case = case_named(name)
    problem, columns = case.problem, draw(case, seed)
    batch = ledger_of(case, columns)
    tables, tp, folded = batch.tables.parameters, columns["tp"], columns["ep"] * columns["etp"]
    model = problem.model
    replicated = [
        float(sum(layer_parameters(model, model.kinds[v.kind]).get(name, 0) for name in REPLICATED)) * (not v.repeats)
        for v in problem.variants
    ]
    replicated += [row.replicated for row in problem.parameters[problem.num_kinds :]]
    total = np.zeros(len(tp))
    for kind, layers in batch.totals.items():
        dense = tables["dense"][kind][batch.key]
        total += layers * (tp * (dense - replicated[kind]) + replicated[kind])
        total += layers * folded * tables["experts"][kind][batch.key]
    expected = total_parameters(model) + mtp_parameters(model) + copies(model, columns)
    check(np.isclose(total, expected, rtol=1e-12), columns, total, expected)


@given(cases, seeds)
@thorough(25)
def test_a_collective_of_one_rank_carries_nothing(name: str, seed: int) -> None:
    """Nor does it take a buffer, whatever the rest of the batch exchanges."""
    case = case_named(name)
    batch = ledger_of(case, draw(case, seed))
    for ops in batch.tables.operations:
        for exchange in ops.exchanges:
            alone = np.broadcast_to(exchange.size, exchange.num_bytes.shape) == 1
            assert not exchange.num_bytes[alone].any(), (ops.name, exchange.axis, exchange.op)
    keys = batch.tables.keys
    assert not batch.tables.head_exchange[keys["tp"] == 1].any()


@given(cases, seeds)
@thorough(25)
def test_stages_hold_all_layers_once(name: str, seed: int) -> None:
    """Profiles with their number of devices are the stages: they add up to the model, whatever the schedule."""
    case = case_named(name)
    columns = draw(case, seed, pipelined=True)
    batch = ledger_of(case, columns)
    model = case.model
    assert batch.splits.devices[batch.split].sum(axis=1).tolist() == columns["pp"].tolist()
    layers = batch.over_profiles(np.array(batch.layers))
    check(layers == model.num_layers + model.mtp_layers * max(len(model.mtp_pattern), 1), columns, layers)
    for kind in batch.kinds:
        over = batch.over_profiles(np.array([batch.counts[j][kind] for j in range(batch.num_profiles)]))
        check(over == batch.totals[kind], columns, over)
    check(np.max(batch.layers, axis=0) >= model.num_layers / columns["pp"], columns)


@given(cases, seeds)
@thorough(40)
def test_zero_is_monotone_in_memory(name: str, seed: int) -> None:
    """Each stage shards one state more; only the part that is whole meanwhile is new. The ranks together lose none."""
    case = case_named(name)
    columns = draw(case, seed)
    columns = select(columns, columns["dp"] * columns["cp"] > 1)
    if not len(columns["tp"]):
        return
    stages = [with_column(columns, zero=zero, shard=columns["dp"]) for zero in range(4)]
    ledgers = [ledger_of(case, stage) for stage in stages]
    j = seed % ledgers[0].num_profiles
    memories = [DeviceMemory(one) for one in ledgers]
    held = [one.buffers(j) for one in memories]
    for before, after, state in zip(held, held[1:], ("optimizer", "gradients", "weights"), strict=False):
        for buffer in ("optimizer", "gradients", "weights"):
            check(after[buffer] <= before[buffer] * (1 + SLACK), columns, before[buffer], after[buffer])
            if buffer != state:
                check(np.isclose(after[buffer], before[buffer], rtol=1e-12), columns)
    # What is whole meanwhile may shift the peak to another moment; without it, the moment is the same.
    for before, after in pairwise([one.buffers(j, gathered=False) for one in memories]):
        for buffer in ("activations", "logits", "exchange", "workspace"):
            check(after[buffer] == before[buffer], columns)
    totals = [reserved_memory.fullest_stage(one, case.rates, gathered=False)[0] for one in memories]
    for larger, smaller in pairwise(totals):
        check(smaller <= larger * (1 + SLACK), columns, larger, smaller)
    assert not any(before["gathered"].any() for before in held[:2])
    if not case.model.is_moe:
        ranks = columns["dp"] * columns["cp"]
        check(np.isclose(ranks * held[1]["optimizer"], held[0]["optimizer"], rtol=1e-12), columns)
        if case.workload.lora is None:  # adapters' weights are not sharded
            whole = (columns["pp"] > 1) & (held[3]["weights"] == held[0]["weights"])  # FSDP2 in a pipeline
            check(whole | np.isclose(ranks * held[3]["weights"], held[0]["weights"], rtol=1e-12), columns)


@given(cases, seeds)
@thorough(40)
def test_offload_moves_its_buffer(name: str, seed: int) -> None:
    """What leaves the device is on the host (states with the buffers of their copies), and no other buffer changes: but
    where the backward pass is split, some layers recompute and the others, on the host, have nothing to let go of, or
    the embedding is differentiated beside other micro-batches, or a vision tower is, or the head's gradient of a tied
    table waits for the embedding's: then another moment may be the fullest."""
    case = case_named(name)
    columns = with_column(draw(case, seed), offload_layers=0, offload_modules=0)  # they move a part of the buffer
    apart = SPLITS_BACKWARD[columns["schedule"]]
    there = ledger_of(case, with_column(columns, offload=0))
    for offload, buffers in ((OPT, {"optimizer"}), (ACT, {"activations"}), (3, {"optimizer", "activations"})):
        moved = ledger_of(case, with_column(columns, offload=offload))
        memory_there, memory_moved = DeviceMemory(there), DeviceMemory(moved)
        for j in range(there.num_profiles):
            before, after = memory_there.buffers(j), memory_moved.buffers(j)
            model = case.problem.model
            piped = (columns["pp"] > 1) | model.tied_embeddings | (model.tower is not None)
            moves = there.counts[j][there.splits.counts.shape[2] + EMBEDDING] * piped > 0
            moves = apart | (moves & ("activations" in buffers))
            # An optimizer on the host has no flat copies on the GPU either.
            copies = {"workspace"} if case.problem.stack.flat_buffers != "none" and "optimizer" in buffers else set()
            # DeepSpeed sums up gradients beside an optimizer on the host.
            summed = {"gradients"} if case.problem.stack.sums_on_host and "optimizer" in buffers else set()
            for buffer in BUFFERS:
                may_fall = buffer in buffers | copies | summed
                less = after[buffer] <= before[buffer] if may_fall else after[buffer] == before[buffer]
                other = moves | ("activations" in buffers) & (columns["recompute_layers"] > 0) & (buffer in TRANSIENT)
                check(less | other, columns, before[buffer], after[buffer])
            gone = np.sum([before[buffer] - after[buffer] for buffer in buffers], axis=0)
            on_host = memory_moved.host_bytes(j)
            check((on_host >= gone * (1 - SLACK)) | moves, columns, on_host, gone)
            if "optimizer" not in buffers:
                check(np.isclose(on_host, gone, rtol=1e-9) | moves, columns, on_host, gone)
        small, large = (reserved_memory.fullest_stage(one, case.rates)[0] for one in (memory_moved, memory_there))
        check(small <= large, columns, small, large)
        if "optimizer" in buffers:
            assert not any(memory_moved.buffers(j)["optimizer"].any() for j in range(moved.num_profiles))


@given(cases, seeds)
@thorough(40)
def test_recompute_is_monotone(name: str, seed: int) -> None:
    """One module, or one layer, more: no byte more is saved, and the step takes no less time.

    Activations stay on the GPU here: what is recomputed need not be moved to the host, and a step may get shorter.
    Where the backward pass is split and states are sharded, the same longer pass hides more messages of data
    parallelism and leaves more weight gradients to fill the bubble: the step may fall by what is shown less of these.
    """
    case = case_named(name)
    columns = draw(case, seed)
    twice = SPLITS_BACKWARD[columns["schedule"]] & (columns["zero"] >= 2)
    offload = np.where(columns["offload"] == OFFLOADS.index("opt+act"), OPT, columns["offload"])
    offload = np.where(offload == ACT, 0, offload)
    columns = with_column(columns, recompute_modules=0, recompute_layers=0, offload=offload)
    columns = with_column(columns, offload_layers=0, offload_modules=0)
    n, rng = len(columns["tp"]), np.random.default_rng(seed)
    some = rng.integers(1, 1 << len(MODULES), size=n)
    more = some | 1 << rng.integers(len(MODULES), size=n)
    per_stage = -(-case.model.num_layers // columns["pp"])
    part = rng.integers(1, np.maximum(per_stage, 2))
    ladders = (
        [
            with_column(columns, recompute=0),
            with_column(columns, recompute=SELECTIVE, recompute_modules=some),
            with_column(columns, recompute=SELECTIVE, recompute_modules=more),
            with_column(columns, recompute=SELECTIVE, recompute_modules=(1 << len(MODULES)) - 1),
        ],
        [
            with_column(columns, recompute=0),
            with_column(columns, recompute=FULL, recompute_layers=part),
            with_column(columns, recompute=FULL, recompute_layers=part + 1),
            with_column(columns, recompute=FULL),
        ],
    )
    for ladder in ladders:
        ledgers = [ledger_of(case, rung) for rung in ladder]
        estimates = [step.price(one, case.rates) for one in ledgers]
        for lower, upper in pairwise(estimates):
            before, after = lower.step_s, upper.step_s
            less_shown = np.where(twice, np.maximum(lower.terms["dp"] - upper.terms["dp"], 0.0), 0.0)
            check(after >= before * (1 - SLACK) - less_shown, columns, before, after)
            for j in range(lower.ledger.num_profiles):
                small, large = Activations(upper.ledger).saved[j], Activations(lower.ledger).saved[j]
                check(small <= large * (1 + SLACK), columns, large, small)
