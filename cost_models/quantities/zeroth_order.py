"""Training without gradients: the losses of two passes with perturbed weights give the slope along a random direction.

MeZO (Malladi et al. 2023, arXiv 2305.17333): the direction comes from a seed again whenever it is needed, so that no
pass keeps it. Traffic and buffers are those of its steps of torch (liangyuwang/zo2 097d5686, MeZOSGD),
counted in tensors of the size of a weight: the noise is written; it is scaled twice, and added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array
from .element_bytes import activation_bytes
from .shards import Shard

if TYPE_CHECKING:
    from .ledger import Ledger

# Noise written (1), scaled twice (2 x 2), added to the weight (3): along the direction, against it, and back.
PERTURBED_TENSORS = 3 * 8.0
# Noise written (1), times the slope (2), decay of the weight (2), their sum (3), times the rate (2), subtracted (3).
UPDATED_TENSORS = 13.0
# Alive at once in that update: noise, noise times the slope, decay, their sum. One less on the way along a direction.
UPDATE_BUFFERS = 4.0
# Bytes of a score of attention without a fused kernel: masked, its softmax in fp32, which is cast (OPTAttention of
# transformers 4.28.1, which zo2 ran at the commit of its table, 1c5931b).
_SOFTMAX_BYTES = 4.0
# Alive while layers run: embeddings of tokens, those of positions, and hidden states of a pass.
_HIDDEN_STATES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ZerothOrder:
    """A step of training without gradients."""

    # [n] tensors of the size of the weights of a rank that are moved in its memory: in the passes of a micro-batch, and
    # after all of a step.
    in_passes: Array
    after: Array
    sent_bytes: Array  # [n] slopes of a step that every rank gets, of all replicas
    buffers: float  # tensors of the size of a weight that are alive at once while it is updated
    at_once: int = 1  # passes that each layer runs before the next one does


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
