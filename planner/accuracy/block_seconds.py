"""Seconds that DCP's balance of blocks changes in a step with one context-parallel degree of ring and Ulysses.

Everything but attention and its exchanges stays: tokens are spread evenly. In each pass of a layer, attention takes as
long as the products of the busiest node (`place` of planner/batches/block_placement.py). Its keys and values reach it
once, and their gradients leave it, where the ring sends them past every node. The devices of a node share the products
of its blocks by heads, and exchange them as Ulysses does. DCP runs attention in four divisions, of which the first
needs what a device has: messages of the others hide behind the division before (`DCP_N_STAGES` of its launch template).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.layouts import Layouts
from ...cost_models.quantities import tables
from ...cost_models.quantities.operations import LayerOperations
from ...cost_models.quantities.tables import index_keys
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.rates.layer_seconds import COMPONENTS, exchange_seconds
from ...cost_models.rates.rates import Rates
from ..batches.block_placement import MASKS, causal, pairs, place
from ..batches.costs import GroupCosts
from ..batches.ledger_costs import Family, Priced

_DIVISIONS = 4  # of attention
_ATTENTION, _CP = (COMPONENTS.index(name) for name in ("attention", "cp"))


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """DCP's settings."""

    mask: str  # a name of MASKS
    tokens: int  # of a block
    work_limit: float  # by how much the work of a node may exceed the mean, relative


def saved_s(priced: Priced, family: Family, costs: GroupCosts, lengths: Array, blocks: Blocks) -> float:
    """Seconds by which a step on one micro-batch of `lengths` [k] tokens is shorter with DCP's blocks, on all ranks.

    family: ring and Ulysses, nothing recomputed; Ulysses fills a node. costs: of the family. As they do, it takes the
    seconds of a token in full micro-batches.
    """
    problem = priced.problem
    nodes, total = problem.num_gpus // problem.gpus_per_node, float(lengths.sum())
    documents = [pairs(int(length), MASKS[blocks.mask], blocks.tokens) for length in lengths]
    heads = max(attention.heads / attention.kv_heads for attention in problem.model.attentions)
    placement = place(documents, blocks.tokens, nodes, blocks.work_limit, heads)
    whole = sum(float(pairs(int(length), causal, blocks.tokens).sum()) for length in lengths)
    work = placement.work * sum(float(document.sum()) for document in documents) / whole
    received = placement.received / (total * (nodes - 1) / nodes)  # of the keys that a ring brings
    workload = replace(
        problem.workload, seq_len=costs.rank_tokens, global_batch=costs.num_ranks, packed=True, lengths=(),
        mean_len=float((lengths**2).sum()) / total, mean_square_len=(float((lengths**2).sum()) / total) ** 2,
    )  # fmt: skip
    layout = family.layout(costs.num_ranks, problem.num_gpus)
    table = tables.build(replace(problem, workload=workload), index_keys(Layouts.of([layout]))[0])
    layers = kernel_seconds(table, priced.rates).layers
    out = 0.0
    for variant in problem.pattern:  # of layers
        for is_forward, seconds in ((True, layers[variant].forward), (False, layers[variant].backward)):
            before_s = float(seconds[_ATTENTION, 0] + seconds[_CP, 0])
            attention_s = float(seconds[_ATTENTION, 0]) * work
            sent_s = _messages_s(table.operations[variant], priced.rates, received, is_forward)
            hidden_s = attention_s * (_DIVISIONS - 1) / _DIVISIONS
            out += before_s - attention_s - max(0.0, sent_s - hidden_s)
    return out * total / (costs.rank_tokens * costs.num_ranks)


def _messages_s(operations: LayerOperations, rates: Rates, received: float, is_forward: bool) -> float:
    """Seconds of the exchanges of keys, as a share of those of the ring, and of heads."""
    out = 0.0
    for exchange in operations.exchanges:
        if exchange.axis == "cp":
            calls = exchange.forward_calls if is_forward else exchange.backward_calls
            share = received if exchange.op == "p2p" else 1.0
            out += share * float(np.max(exchange_seconds(exchange, rates) * calls))
    return out
