"""Masks of the rules on splits of a model over ranks: heads, widths, experts, and the tokens of a sequence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...cost_models.arrays import Ints, Mask
from ...cost_models.degrees import sequence_parts
from ...cost_models.layer_kinds.registry import kind_of
from ...cost_models.layouts import CP_ALGORITHMS
from ...cost_models.problem import Problem
from ...cost_models.quantities.shards import ulysses_degree
from ...cost_models.quantities.vision import ranks
from ...cost_models.schedule_kinds import FOLDED
from ...cost_models.specs.model import MixtureOfExperts

Columns = Mapping[str, Ints]

_ALLGATHER = CP_ALGORITHMS.index("allgather")
_HYBRID = CP_ALGORITHMS.index("ring+ulysses")


def heads(x: Columns, problem: Problem) -> Mask:
    ok = np.ones(len(x["tp"]), dtype=bool)
    for attention in problem.model.attentions:
        ok &= attention.heads % x["tp"] == 0
    return ok


def kv_heads(x: Columns, problem: Problem) -> Mask:
    ok = np.ones(len(x["tp"]), dtype=bool)
    for attention in problem.model.attentions:
        if not attention.is_mla:
            kv = attention.kv_heads
            ok &= (kv % x["tp"] == 0) | (x["tp"] % kv == 0)
    return ok


def tower_heads(x: Columns, problem: Problem) -> Mask:
    tower = problem.model.tower
    if tower is None:
        return np.ones(len(x["tp"]), dtype=bool)
    parts = ranks(tower, x["tp"].astype(np.float64), problem.stack.tp_plan)
    return np.asarray((tower.heads % parts == 0) | tower.pads_heads)


def mixer_heads(x: Columns, problem: Problem) -> Mask:
    """Mask for heads of mixers: tp splits heads, and cp splits the heads of a tp rank.

    Several cp ranks may have the same group (Megatron Core d98e8a64, ssm/mamba_context_parallel.py).
    """
    ok = np.ones(len(x["tp"]), dtype=bool)
    for mixer in problem.model.mixers:
        for split, shared in kind_of(mixer).heads(mixer).values():
            ok &= split % x["tp"] == 0
            if problem.stack.mixer_context != "heads":
                continue
            local = np.maximum(split // x["tp"], 1)
            ok &= (local % x["cp"] == 0) | (shared & (x["cp"] % local == 0))
    return ok


def has_keys(x: Columns, problem: Problem) -> Mask:
    return np.asarray((x["cp_algorithm"] == 0) | (x["cp"] == 1) | bool(problem.model.attentions))


def gathers_keys(x: Columns, problem: Problem) -> Mask:
    """Mask for an index, which chooses among all tokens and needs all keys (Megatron Core d98e8a64, dsa.py)."""
    chosen = any(attention.index is not None for attention in problem.model.attentions)
    return np.asarray((x["cp"] == 1) | (x["cp_algorithm"] == _ALLGATHER) | (not chosen))


def ffn(x: Columns, problem: Problem) -> Mask:
    ok = np.ones(len(x["tp"]), dtype=bool)
    for block in problem.model.feed_forwards:
        inner = block.shared_inner if isinstance(block, MixtureOfExperts) else block.inner
        if inner:
            ok &= inner % x["tp"] == 0
    return ok


def whole_rows(x: Columns, problem: Problem) -> Mask:
    thresholds = any(getattr(block, "sparsity", 0.0) for block in problem.model.feed_forwards)
    return np.asarray((x["tp"] == 1) | (not thresholds))


def one_stage(x: Columns, problem: Problem) -> Mask:
    """Mask for layers that take more than hidden states of those before them."""
    model = problem.model
    takes = model.layer_inputs is not None or any(attention.takes_keys for attention in model.attentions)
    return np.asarray((x["pp"] == 1) | (not takes))


def sequence(x: Columns, problem: Problem) -> Mask:
    # A ring assigns every rank two chunks, one from each end, so that causal attention is balanced.
    return np.asarray(problem.workload.seq_len % sequence_parts(x)[1] == 0)


def source(x: Columns, problem: Problem) -> Mask:
    parts = np.where(x["sequence_parallel"] > 0, x["tp"], 1)
    return np.asarray((problem.workload.source_len or 0) % parts == 0)


def whole_source(x: Columns, problem: Problem) -> Mask:
    return np.asarray((x["cp"] == 1) | (problem.model.encoder is None))


def one_way(x: Columns, problem: Problem) -> Mask:
    """Mask for stages of one chunk. Megatron Core interleaves neither an encoder with a decoder nor unequal lengths of
    source and target (forward_backward_pipelining_with_interleaving in its releases with encoders)."""
    one_chunk = (x["vpp"] == 1) & ~FOLDED[x["schedule"]]
    return np.asarray(one_chunk | (problem.model.encoder is None))


def ulysses(x: Columns, problem: Problem) -> Mask:
    degree = ulysses_degree(problem.model, x).astype(np.int64)
    ok = np.ones(len(x["tp"]), dtype=bool)
    for attention in problem.model.attentions:
        heads = attention.heads if attention.is_mla else attention.kv_heads
        ok &= (degree == 1) | (heads % (x["tp"] * degree) == 0)
    hybrid = (x["cp_algorithm"] == _HYBRID) & (x["cp"] > 1)
    return np.asarray(ok & (~hybrid | ((degree > 1) & (degree < x["cp"]))))


def experts(x: Columns, problem: Problem) -> Mask:
    ok = np.ones(len(x["ep"]), dtype=bool)
    for block in problem.model.feed_forwards:
        if isinstance(block, MixtureOfExperts):
            ok &= (block.experts % x["ep"] == 0) & (block.expert_inner % x["etp"] == 0)
    return ok


def mixer_heads_text(problem: Problem) -> str:
    """The numbers of heads of the mixers, by name."""
    heads: dict[str, int] = {}
    for mixer in problem.model.mixers:
        heads |= {name: number for name, (number, _) in kind_of(mixer).heads(mixer).items()}
    return ", ".join(f"{number} {name}" for name, number in heads.items())
