"""Bytes of training without gradients: noise, the update of a weight, scores without a fused kernel."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from .element_bytes import activation_bytes
from .ledger import Ledger
from .shards import Shard
from .zeroth_order import ZerothOrder

# Bytes of a score of attention without a fused kernel: masked, its softmax in fp32, which is cast (OPTAttention of
# transformers 4.28.1, which zo2 ran at the commit of its table, 1c5931b).
_SOFTMAX_BYTES = 4.0
# Alive while layers run: embeddings of tokens, those of positions, and hidden states of a pass.
_HIDDEN_STATES = 3


def noise_bytes(ledger: Ledger, j: int, tensors: Array) -> Array:
    """[n] bytes moved by so many tensors of the size of the weights on the device of profile j."""
    tables = ledger.tables.parameters
    weights = ledger.on_profile(j, ledger.per_kind(tables["dense"] + tables["experts"]))
    return np.asarray(activation_bytes(ledger.problem.workload) * weights * tensors)


def update_buffers(
    ledger: Ledger, step: ZerothOrder, j: int, head: Array, embedding: Array
) -> tuple[Array, Array, Array]:  # fmt: skip
    """[n] bytes in the update of the largest weight of the head, of a layer and of the embedding on the device of
    profile j. head, embedding: [n] parameters of the two."""
    alive = step.buffers * activation_bytes(ledger.problem.workload)
    return alive * head, step.buffers * _largest_weight(ledger, j), alive * embedding


def score_bytes(ledger: Ledger, j: int) -> Array:
    """[n] bytes of the scores of a layer in its forward pass on profile j, where no fused kernel runs."""
    return np.asarray(sum(_score_buffers(ledger, j)))


def unfilled_bytes(ledger: Ledger, step: ZerothOrder, j: int, table: Array) -> Array:
    """[n] bytes that the allocator of profile j holds beside those of the fullest moment: freed blocks are taken again
    only by what fits into one. table: [n] parameters of the largest end of the model.

    The update of a table is first. Its blocks serve the layers, but for scores that are larger, and for a weight that
    is larger or has no room beside the hidden states that split a block.
    """
    problem, scores = ledger.problem, _score_buffers(ledger, j)
    w, weight = activation_bytes(problem.workload), _largest_weight(ledger, j)
    tokens = Shard.of(ledger.tables.keys, problem.model, problem.workload).sp_tokens[ledger.key]
    block, split = w * table, w * _HIDDEN_STATES * step.at_once * problem.model.hidden * tokens
    more = np.where(weight > block, step.buffers, 1.0) * weight * (weight > block - split)
    held = step.buffers * block + more + sum(each * (each > block) for each in scores)
    return np.asarray(held - np.maximum(step.buffers * np.maximum(block, weight), sum(scores)))


def _score_buffers(ledger: Ledger, j: int) -> tuple[Array, Array, Array]:
    """[n] bytes of each tensor of scores that is alive while the softmax is cast."""
    problem, none = ledger.problem, np.zeros(len(ledger.layouts))
    if problem.stack.attention != "unfused":
        return none, none, none
    shard = Shard.of(ledger.tables.keys, problem.model, problem.workload)
    of_head = shard.tokens / shard.tp * problem.workload.seq_len
    layers = (problem.model.kinds[variant.kind] for variant in problem.variants)
    heads = [layer.attention.heads if layer.attention is not None else 0 for layer in layers]
    scores = ledger.largest(j, np.outer(heads, of_head)[:, ledger.key])
    w = activation_bytes(problem.workload)
    return w * scores, _SOFTMAX_BYTES * scores, w * scores


def _largest_weight(ledger: Ledger, j: int) -> Array:
    """[n] bytes of the largest weight of a layer on profile j."""
    return ledger.largest(j, ledger.tables.largest_weight[:, ledger.key])
