"""What comes and goes beside the states and the activations: alive together only at certain moments of a step.

A stage is fullest when the activations of all micro-batches in flight are there. That is while the loss is taken, when
the head is differentiated, when a prediction beside it is, and when the last layer is; or a little later, when those of
one micro-batch are gone and the gradient of a large embedding is made. The peak is at the fullest of these, not at
their sum.
`meshwright memory --trace` runs the runtime and finds the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..schedule_kinds import LOSSES_FIRST, SPLITS_BACKWARD
from .element_bytes import activation_bytes
from .stages import EMBEDDING, HEAD, MTP
from .vocabulary import KEPT_MESSAGES

if TYPE_CHECKING:
    from ..problem import Problem
    from .device_memory import DeviceMemory
    from .ledger import Ledger


TRANSIENT = ("logits", "gathered", "exchange", "workspace")
AT_LOSS, IN_HEAD, IN_LAYER, IN_W, IN_EMBEDDING, IN_PREDICTION = range(6)  # moments
SOFTMAX_BYTES = 4.0  # kept per logit for the backward pass, in fp32
FP32_LOSS_BYTES = 3 * SOFTMAX_BYTES  # per logit: softmax and two gradients, as torch's cross entropy of fp32 logits


def memory_moments(memory: DeviceMemory, j: int) -> dict[str, Array]:
    """[moment, n] bytes of every buffer of TRANSIENT on the device of profile j: at the loss, in the backward pass of
    the head, in that of a layer, in the first W after an I, in the backward pass of the embedding and, of models that
    have some, in that of a prediction (AT_LOSS, ...)."""
    ledger = memory.ledger
    x, key, tables = ledger.layouts, ledger.key, ledger.tables
    n, extra = len(x), ledger.splits.counts.shape[2]
    predictions = ledger.counts[j].get(extra + MTP, np.zeros(n))
    heads = ledger.counts[j].get(extra + HEAD, np.zeros(n)) + predictions
    part = np.minimum(heads, 1.0)
    w, logits = activation_bytes(ledger.problem.workload), tables.logits[key]
    softmax = SOFTMAX_BYTES * logits
    # Where all losses come before the first backward pass, the softmax of each is kept until its own.
    losses_first = LOSSES_FIRST[x["schedule"]] & (x["pp"] > 1)
    others = 0.0 if ledger.vocabulary is None else np.minimum(ledger.m - 1, 1.0)  # in T, while this one is in S
    waiting = np.where(losses_first, ledger.m - 1, others) * heads * softmax
    # The last loss of a micro-batch is differentiated first.
    before = waiting + np.maximum(heads - 1, 0.0) * softmax
    at_loss = max(ledger.problem.stack.logit_bytes, 2 * w) * logits  # the logits and their softmax at the least
    weights, gradients = _gathered(ledger, j)
    layer, projection = weights[1:] + gradients[1:3]
    # The whole gradient of the head comes when that of the logits is gone, unless the product adds to it by itself.
    gone = 0.0 if ledger.problem.stack.fused_accumulation else w * logits
    head = weights[0] + np.maximum(gradients[0] - gone, 0.0)
    prediction = layer + projection + weights[0]  # with the head that it calls
    predicts = (predictions > 0).astype(np.float64)
    zero, gathered_input = np.zeros(n), tables.head_exchange[key]
    # The gradient of the head's weights as the product makes it, before it is added to the sum.
    made = part * w * _edge(ledger, tables.parameters["trained_dense"])[key]
    made_last = _embeddings(ledger, j) * w * tables.parameters["trained_dense"][EMBEDDING][key]
    kept = ledger.largest(j, tables.cached_gradients[:, key])
    last, arrived = part, _asked_for(ledger, (heads > 0) & losses_first)
    if ledger.vocabulary is not None:  # every stage has a part of the head, and all of its input
        last, arrived = np.ones(n), arrived + KEPT_MESSAGES * tables.message[key]
    working, made_in_w = memory.workspace(j), ledger.largest(j, tables.made_gradient[:, key])
    in_w = np.where(SPLITS_BACKWARD[x["schedule"]], made_in_w, 0.0)
    found = {
        "logits": [part * at_loss + before, part * w * logits + before, waiting, zero, waiting, before],
        "gathered": [part * weights[0], part * head, layer, zero, gradients[3], predicts * prediction],
        "exchange": [arrived, arrived + 2 * last * gathered_input, arrived, arrived, arrived, arrived],
        "workspace": [kept, made + kept, working + kept, in_w + kept, made_last + kept, predicts * working + kept],
    }  # fmt: skip
    return {name: np.array(each[: number_of_moments(ledger.problem)]) for name, each in found.items()}


def number_of_moments(problem: Problem) -> int:
    """How many moments a stage of this model may be fullest at."""
    return IN_PREDICTION + (problem.model.mtp_layers > 0)


def _asked_for(ledger: Ledger, has_all: NDArray[np.bool_]) -> Array:
    """[n] bytes of messages that are still to come. has_all: [n] whether none are when the device is fullest."""
    x = ledger.layouts
    ahead = np.minimum(ledger.problem.stack.messages_ahead, ledger.m * ledger.chunks - 1)
    return np.where((x["pp"] > 1) & ~has_all, ahead, 0.0) * ledger.tables.message[ledger.key]


def unusable(ledger: Ledger, j: int) -> Array:
    """[n] bytes of freed blocks on the device of profile j that nothing at its peak fits into: a loss on fp32 copies
    leaves that of the logits in half precision, which no tensor of the loss is small enough for."""
    extra, stack = ledger.splits.counts.shape[2], ledger.problem.stack
    heads = ledger.counts[j].get(extra + HEAD, np.zeros(len(ledger.layouts)))
    w = activation_bytes(ledger.problem.workload)
    if stack.logit_bytes < FP32_LOSS_BYTES or w >= SOFTMAX_BYTES:
        return np.zeros(len(ledger.layouts))
    return np.asarray(w * heads * ledger.tables.logits[ledger.key])


def _embeddings(ledger: Ledger, j: int) -> Array:
    """[n] embeddings on the device of profile j whose gradient is made beside other micro-batches; none without a
    pipeline: there the last activations are gone by then."""
    x = ledger.layouts
    return ledger.counts[j].get(ledger.splits.counts.shape[2] + EMBEDDING, np.zeros(len(x))) * (x["pp"] > 1)


def _edge(ledger: Ledger, rows: Array) -> Array:
    """[key] of the matrix of the head; where it is tied, that of the embedding."""
    return np.asarray(rows[EMBEDDING if ledger.problem.model.tied_embeddings else HEAD])


def _gathered(ledger: Ledger, j: int) -> tuple[Array, Array]:
    """[head, layer, projection of a prediction; n] bytes: weights while they are whole (ZeRO-3), of a layer with those
    of the next one where the stack gathers ahead; gradients before they are scattered (ZeRO-2 and 3), also those of the
    embedding, and of a layer those of its experts or the others: the experts' are scattered before the others come."""
    x, key, parameters = ledger.layouts, ledger.key, ledger.tables.parameters
    num_kinds, problem = ledger.problem.num_kinds, ledger.problem
    weights = parameters["dense_gathered_bytes"] + parameters["experts_gathered_bytes"]
    trained = problem.state_bytes.gradient * np.maximum(parameters["trained_dense"], parameters["trained_experts"])
    layer = ledger.largest(j, weights[:num_kinds, key]) * (2 if problem.stack.fsdp_overlap > 0 else 1)
    gradients = ledger.largest(j, trained[:num_kinds, key])
    whole = ((x["zero"] == 3) & ~ledger.states.whole_in_pipeline).astype(np.float64)
    scattered = ((x["zero"] >= 2) & ~ledger.states.whole_gradients).astype(np.float64)
    return (whole * np.array([_edge(ledger, weights)[key], layer, weights[MTP][key]]),
            scattered * np.array([_edge(ledger, trained)[key], gradients, trained[MTP][key],
                                  _embeddings(ledger, j) * trained[EMBEDDING][key]]))  # fmt: skip
