"""Seconds of gradients reduced and weights gathered once per step that the stack hides behind nothing.

A device of a simulated step has them after its last operation (`Staged`). They are a sum over the layers of a device,
at least: here are the bytes of a layer at the bandwidth of its groups, without latency.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.arrays import Array
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities.exchanges import Op
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.tables import build, index_keys
from ...cost_models.rates.rates import Rates
from ...cost_models.step.data_parallel import REPLICAS, SHARDS, group_curve
from ..evaluation.simulator_costs import hiding_shares
from .islands import IslandPart


def never_hidden_s(parts: Sequence[IslandPart], layouts: Sequence[Layout]) -> Array:
    """[island, kind, n] seconds of one layer, at least, whatever the size of the shard group of layouts with ZeRO-1.
    layouts: of one number of GPUs."""
    jobs = [part.in_job(layouts[0].num_gpus) for part in parts]
    problem, sizes = jobs[0].problem, [jobs[0].space.shards(x.dp, x.cp, x.zero) if x.zero == 1 else (x.shard,)
                                       for x in layouts]  # fmt: skip
    batch = Layouts.of([replace(x, shard=size) for x, of_layout in zip(layouts, sizes, strict=True)
                        for size in of_layout])  # fmt: skip
    keys, key = index_keys(batch)
    ledger = build_ledger.build(problem, build(problem, keys), batch, key, mean=True)
    starts = np.cumsum([0, *(len(of_layout) for of_layout in sizes[:-1])])
    return np.stack([np.minimum.reduceat(_of_rows(ledger, job.rates), starts, axis=-1) for job in jobs])


def _of_rows(ledger: Ledger, rates: Rates) -> Array:
    """[kind, n] seconds of one layer."""
    gathers, reduces = hiding_shares(rates.stack)
    of_parts = [(1.0 - reduces) * reduce_s + (1.0 - gathers) * gather_s for reduce_s, gather_s in _parts(ledger, rates)]
    return np.asarray(np.sum(of_parts, axis=0))


def _parts(ledger: Ledger, rates: Rates) -> Iterator[tuple[Array, Array]]:
    """[kind, n] seconds to reduce the gradients and to gather the weights of a layer, dense ones and those of experts.
    """
    states = ledger.states
    scatter: Op = "all_reduce" if states.sums_gradients else "reduce_scatter"
    gather: Op = "broadcast" if ledger.problem.stack.dp_gather == "broadcasts" else "all_gather"
    names = ("trained_dense", "trained_experts")[: 1 + ledger.problem.model.is_moe]
    for part, name in enumerate(names):
        groups = (ledger.dense_groups, ledger.expert_groups)[part]
        within, between = ((groups.shard, groups.shard_stride), (groups.replicate, groups.replicate_stride))
        of_scatter = group_curve(rates, SHARDS[part], scatter, *within).s_per_byte
        of_gather = group_curve(rates, SHARDS[part], gather, *within).s_per_byte
        of_copies = group_curve(rates, REPLICAS[part], "all_reduce", *between).s_per_byte / groups.shard
        reduced = np.where(states.reduces_once, of_scatter, 0.0) + of_copies
        gathered = np.where(states.gathers_once, of_gather, 0.0)
        trained = ledger.tables.parameters[name][:, ledger.key]
        yield trained * states.whole_gradient_bytes * reduced, ledger.new_weights(part) * gathered
