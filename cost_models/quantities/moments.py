"""Short-lived bytes beside states and activations: alive together only at certain moments of a step.

A stage is fullest when the activations of all micro-batches in flight are there. That is while the loss is taken, when
the head is differentiated, when a prediction beside it is, and when the last layer is; or a little later, when those of
one micro-batch are gone and the gradient of a large embedding is made. The peak is at the fullest of these, not at
their sum.
`meshwright memory --trace` runs the runtime and finds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array, Mask
from ..schedule_kinds import LOSSES_FIRST, SPLITS_BACKWARD
from .comparison import Comparison
from .element_bytes import activation_bytes
from .graph_memory import graph_bytes
from .stacks import arriving_bytes
from .stages import EMBEDDING, HEAD, MTP
from .tower_memory import embedding_workspace
from .vocabulary import KEPT_MESSAGES
from .zeroth_order import ZerothOrder
from .zeroth_order_bytes import score_bytes, unfilled_bytes, update_buffers

if TYPE_CHECKING:
    from ..problem import Problem
    from .activations import Activations
    from .ledger import Ledger


TRANSIENT = ("logits", "gathered", "exchange", "workspace", "graphs")
AT_LOSS, IN_HEAD, IN_LAYER, IN_W, IN_EMBEDDING, IN_PREDICTION = range(6)  # moments
SOFTMAX_BYTES = 4.0  # kept per logit for the backward pass, in fp32
FP32_LOSS_BYTES = 3 * SOFTMAX_BYTES  # per logit: softmax and two gradients, as torch's cross entropy of fp32 logits


def memory_moments(
    activations: Activations, j: int, workspace: Array, *, gathered: bool = True
) -> dict[str, Array]:  # fmt: skip
    """[moment, n] bytes of every buffer of TRANSIENT on the device of profile j: at the loss, in the backward pass of
    the head, in that of a layer, in the first W after an I, in the backward pass of the embedding and, of models that
    have some, in that of a prediction (AT_LOSS, ...). workspace: [n] bytes of a layer; gathered: count that buffer."""
    ledger = activations.ledger
    passing = moments_beside_layer(ledger, j, gathered=gathered)
    add_layer(ledger, j, passing["workspace"], workspace)
    if gathered:
        add_layer(ledger, j, passing["gathered"], unscattered_bytes(activations, j))
    return passing


def add_layer(ledger: Ledger, j: int, by_moment: Array, layer: Array) -> None:
    """Add bytes of a layer that is differentiated [n] to those [moment, n] of the moments at which one is."""
    by_moment[IN_LAYER] += layer
    if len(by_moment) > IN_PREDICTION:
        by_moment[IN_PREDICTION] += np.where(_Losses.of(ledger, j).predictions > 0, layer, 0.0)


def moments_beside_layer(ledger: Ledger, j: int, *, gathered: bool = True) -> dict[str, Array]:
    """The bytes of `memory_moments` without the workspace of a layer and what `unscattered_bytes` counts: recomputation
    does not change them."""
    losses = _Losses.of(ledger, j)
    by_buffer = {
        "logits": _logits(ledger, losses),
        "gathered": _gathered(ledger, j, losses) if gathered else [np.zeros(len(ledger.layouts))] * (IN_PREDICTION + 1),
        "exchange": _exchanged(ledger, j, losses),
        "workspace": _workspaces(ledger, j, losses),
    }
    num_moments = number_of_moments(ledger.problem)
    by_moment = {name: np.array(rows[:num_moments]) for name, rows in by_buffer.items()}
    return {**by_moment, "graphs": graph_bytes(ledger, j, num_moments, IN_LAYER)}


@dataclass(frozen=True, eq=False)
class _Losses:
    """The runs of the output head on a device."""

    heads: Array  # [n] runs of a micro-batch: the head's own and one for each prediction
    predictions: Array  # [n] MTP modules, each of which runs the head once more
    any_head: Array  # [n] 1 where there is a head, else 0
    all_first: Mask  # [n] whether all losses of a step are taken before the first backward pass
    saved_softmax: Array  # [n] bytes of the softmax of the other micro-batches, kept until their backward pass

    @classmethod
    def of(cls, ledger: Ledger, j: int) -> _Losses:
        x, kinds, none = ledger.layouts, ledger.splits.counts.shape[2], np.zeros(len(ledger.layouts))
        predictions = ledger.counts[j].get(kinds + MTP, none)
        heads = ledger.counts[j].get(kinds + HEAD, none) + predictions
        all_first = LOSSES_FIRST[x["schedule"]] & (x["pp"] > 1)
        # With vocabulary parallelism the loss of one micro-batch is taken while the next one is in the head.
        others = 0.0 if ledger.vocabulary is None else np.minimum(ledger.m - 1, 1.0)
        saved = np.where(all_first, ledger.m - 1, others) * heads * SOFTMAX_BYTES * ledger.tables.logits[ledger.key]
        return cls(heads, predictions, np.minimum(heads, 1.0), all_first, saved)


def _logits(ledger: Ledger, losses: _Losses) -> list[Array]:
    """Bytes of logits, their gradients and softmaxes at each moment."""
    w, logits = activation_bytes(ledger.problem.workload), ledger.tables.logits[ledger.key]
    if ledger.zeroth_order is not None:  # the loss alone, of one pass after the other
        none, head = np.zeros_like(logits), losses.any_head * ledger.zeroth_order.at_once * w * logits
        beside = _beside_head(ledger, ledger.zeroth_order, losses)
        return [head + losses.any_head * SOFTMAX_BYTES * logits, beside, none, none, none, head]
    # The last loss of a micro-batch is differentiated first: the softmaxes of all others are there.
    saved = losses.saved_softmax
    before = saved + np.maximum(losses.heads - 1, 0.0) * SOFTMAX_BYTES * logits
    at_loss = max(ledger.problem.stack.logit_bytes, 2 * w) * logits  # the logits and their softmax at the least
    if ledger.problem.workload.reference:  # its logits come last, beside those of the model that learns
        at_loss = at_loss + w * logits
    if (compared := Comparison.of(ledger)) is not None:
        at_loss = at_loss + compared.num_bytes
    zero = np.zeros_like(logits)
    return [losses.any_head * at_loss + before, losses.any_head * w * logits + before, saved, zero, saved, before]


def _beside_head(ledger: Ledger, step: ZerothOrder, losses: _Losses) -> Array:
    """[n] bytes of logits beside the update of a head without gradients, which comes before all passes: those of the
    first of two passes are there when the head is turned round for the second, by one tensor less than an update."""
    w, turned = activation_bytes(ledger.problem.workload), _of_head(ledger, ledger.tables.parameters["dense"])
    logits = (step.at_once - 1) * ledger.tables.logits
    return np.asarray(losses.any_head * w * np.maximum(logits - turned, 0.0)[ledger.key])


def _gathered(ledger: Ledger, j: int, losses: _Losses) -> list[Array]:
    """Bytes of weights that are whole for a while, and of gradients that are not scattered yet, at each moment; but for
    `unscattered_bytes`."""
    weights, gradients = _whole_states(ledger, j)
    layer, projection = weights[1:] + gradients[1:3]
    # The whole gradient of the head is made when that of the logits is freed, unless the product accumulates into it.
    fused = ledger.problem.stack.fused_accumulation
    freed = 0.0 if fused else activation_bytes(ledger.problem.workload) * ledger.tables.logits[ledger.key]
    head = weights[0] + np.where(_joins_gradients(ledger), 0.0, np.maximum(gradients[0] - freed, 0.0))
    prediction = np.where(losses.predictions > 0, layer + projection + weights[0], 0.0)  # with the head that it calls
    zero = np.zeros(len(ledger.layouts))
    return [losses.any_head * weights[0], losses.any_head * head, layer, zero, gradients[3], prediction]


def _exchanged(ledger: Ledger, j: int, losses: _Losses) -> list[Array]:
    """Bytes of messages between stages that have arrived, and of the gathered input of the head, at each moment."""
    head, arrived = losses.any_head, _requested(ledger, j, (losses.heads > 0) & losses.all_first)
    if ledger.vocabulary is not None:  # every stage has a part of the head, and all of its input
        head, arrived = np.ones_like(head), arrived + KEPT_MESSAGES * ledger.tables.message[ledger.key]
    # Sequence parallelism gathers the head's input for its product, and the same size again for the gradient.
    in_head = arrived + 2 * head * ledger.tables.head_exchange[ledger.key]
    return [arrived, in_head, arrived, arrived, arrived, arrived]


def _workspaces(ledger: Ledger, j: int, losses: _Losses) -> list[Array]:
    """Bytes of what kernels work on at each moment, but in a layer: gradients of the head's and the embedding's
    products, gradients of weights before they are added to the sum."""
    w, key, trained = activation_bytes(ledger.problem.workload), ledger.key, ledger.tables.parameters["trained_dense"]
    if ledger.zeroth_order is not None:
        return _updates(ledger, ledger.zeroth_order, j, losses)
    head = losses.any_head * w * _of_head(ledger, trained)[key]
    embedding = _embeddings(ledger, j) * embedding_workspace(ledger.tables)[key]
    cached = ledger.largest(j, ledger.tables.cached_gradients[:, key])
    weight = ledger.largest(j, ledger.tables.made_gradient[:, key])
    in_w = np.where(SPLITS_BACKWARD[ledger.layouts["schedule"]], weight, 0.0)
    tied = np.where(_joins_gradients(ledger), w * _of_head(ledger, trained)[key], 0.0)
    return [cached, head + cached, tied + cached, in_w + cached, embedding + tied + cached, cached]


def _updates(ledger: Ledger, step: ZerothOrder, j: int, losses: _Losses) -> list[Array]:
    """Bytes of what updates without gradients work on, at the moments of the weights that they update: IN_W is that of
    the weights of a layer."""
    none = np.zeros(len(ledger.layouts))
    head, layer, table = update_buffers(ledger, step, j, *_ends(ledger, j, losses))
    return [none, head, score_bytes(ledger, j), layer, table, none]


def _ends(ledger: Ledger, j: int, losses: _Losses) -> tuple[Array, Array]:
    """[n] parameters of the head and of the embedding on the device of profile j."""
    held = ledger.tables.parameters["dense"]
    of_head = losses.any_head * _of_head(ledger, held)[ledger.key]
    return of_head, _embeddings(ledger, j) * held[EMBEDDING][ledger.key]


def number_of_moments(problem: Problem) -> int:
    """The number of possible peak moments of a stage of this model."""
    return IN_PREDICTION + (problem.model.mtp_layers > 0)


def _requested(ledger: Ledger, j: int, has_all: Mask) -> Array:
    """[n] bytes of messages that are still to come. has_all: [n] whether none are when the device is fullest."""
    x = ledger.layouts
    ahead = np.minimum(ledger.problem.stack.messages_ahead, ledger.m * ledger.chunks - 1)
    return np.where((x["pp"] > 1) & ~has_all, ahead, 0.0) * arriving_bytes(ledger, j)


def unusable(ledger: Ledger, j: int) -> Array:
    """[n] bytes of freed blocks on the device of profile j that nothing at its peak fits into: a loss on fp32 copies
    leaves that of the logits in half precision, which no tensor of the loss is small enough for."""
    if ledger.zeroth_order is not None:
        return unfilled_bytes(ledger, ledger.zeroth_order, j, np.maximum(*_ends(ledger, j, _Losses.of(ledger, j))))
    extra, stack = ledger.splits.counts.shape[2], ledger.problem.stack
    heads = ledger.counts[j].get(extra + HEAD, np.zeros(len(ledger.layouts)))
    w = activation_bytes(ledger.problem.workload)
    if stack.logit_bytes < FP32_LOSS_BYTES or w >= SOFTMAX_BYTES:
        return np.zeros(len(ledger.layouts))
    return np.asarray(w * heads * ledger.tables.logits[ledger.key])


def _embeddings(ledger: Ledger, j: int) -> Array:
    """[n] embeddings on the device of profile j."""
    return ledger.counts[j].get(ledger.splits.counts.shape[2] + EMBEDDING, np.zeros(len(ledger.layouts)))


def _joins_gradients(ledger: Ledger) -> Mask:
    """[n] whether the head's part of the gradient of tied embeddings waits for the embedding's: autograd adds up all
    parts of a weight's gradient before it hands it on. Not between the chunks of a pipeline, each of which has a graph
    of its own, nor where products add to the sum by themselves."""
    problem = ledger.problem
    joins = problem.model.tied_embeddings and not problem.stack.fused_accumulation
    return np.asarray((ledger.layouts["pp"] == 1) & joins)


def _of_head(ledger: Ledger, rows: Array) -> Array:
    """[key] of the matrix of the head; where it is tied, that of the embedding."""
    return np.asarray(rows[EMBEDDING if ledger.problem.model.tied_embeddings else HEAD])


def _whole_states(ledger: Ledger, j: int) -> tuple[Array, Array]:
    """[head, layer, projection of a prediction; n] bytes: weights while they are whole (ZeRO-3), of a layer with those
    of the next one where the stack gathers ahead; gradients before they are scattered (ZeRO-2 and 3), also those of the
    embedding, and of a layer those of its experts or the others where they are scattered apart: the experts' are gone
    before the others come."""
    x, problem = ledger.layouts, ledger.problem
    # Layers of a store that counts those on the GPU are gathered into their places there.
    buffered = ledger.store is not None and ledger.store.layers_here > 0
    whole = (x["zero"] == 3) & ~ledger.states.whole_in_pipeline & (not buffered)
    scattered = (x["zero"] >= 2) & ~ledger.states.whole_gradients
    weights, gradients = np.zeros((3, len(x))), np.zeros((4, len(x)))
    layers = slice(problem.num_kinds)
    if whole.any():
        held = ledger.tables.gathered_bytes
        layer = ledger.largest(j, held[layers, ledger.key]) * (2 if problem.stack.fsdp_overlap > 0 else 1)
        weights = whole * np.array([_of_head(ledger, held)[ledger.key], layer, held[MTP][ledger.key]])
    if scattered.any():
        made = _made_at_once(ledger)
        layer = ledger.largest(j, np.array([made(kind) for kind in range(problem.num_kinds)]))
        beside = ledger.largest(j, _scattered_beside(ledger)) if problem.stack.scatters_beside else np.zeros(len(x))
        table = _embeddings(ledger, j) * (made(EMBEDDING) + beside)
        head = made(EMBEDDING if problem.model.tied_embeddings else HEAD)
        gradients = scattered * np.array([head, layer, made(MTP), table])
    return weights, gradients


def unscattered_bytes(activations: Activations, j: int) -> Array:
    """[n] bytes of gradients that are scattered beside the backward pass of another layer (StackSpec.scatters_beside):
    those of the layer behind it, beyond the activations that are gone with it."""
    ledger = activations.ledger
    scattered = (ledger.layouts["zero"] >= 2) & ~ledger.states.whole_gradients
    if not (ledger.problem.stack.scatters_beside and scattered.any()):
        return np.zeros(len(scattered))
    beside = ledger.largest(j, _scattered_beside(ledger))
    return np.where(scattered, np.maximum(beside - _freed_by_last_layer(activations, j), 0.0), 0.0)


def _scattered_beside(ledger: Ledger) -> Array:
    """[kind of layer, n] bytes of the gradients of a layer that are scattered last: those that are not of experts,
    where these are scattered apart."""
    dense, experts = (ledger.tables.parameters[name][:, ledger.key] for name in ("trained_dense", "trained_experts"))
    layers = slice(ledger.problem.num_kinds)
    gradient = ledger.states.whole_gradient_bytes
    apart = (experts[layers] > 0) & ledger.states.separate_experts
    return np.asarray(gradient * np.where(apart, np.minimum(dense, experts)[layers], (dense + experts)[layers]))


def _freed_by_last_layer(activations: Activations, j: int) -> Array:
    """[n] bytes of activations that the backward pass of the last layer frees; recomputed layers come first. Where they
    are on the host, those of one layer come back at a time, so that none are freed for good."""
    ledger = activations.ledger
    saved = ledger.on_profile(j, activations.per_kind)
    if activations.recomputes_some_layers:
        dropped = activations.saved_and_dropped[1]
        of_layers = ledger.on_profile(j, dropped)
        saved = saved + np.where(of_layers / ledger.chunks > ledger.recomputed(j, dropped), of_layers, 0.0)
    of_layer = saved / np.maximum(ledger.layers[j], 1.0)
    return np.where(ledger.states.offloads_activations, 0.0, of_layer)


def _made_at_once(ledger: Ledger) -> Callable[[int], Array]:
    """[n] bytes of the gradients of a kind before they are scattered."""
    dense, experts = (ledger.tables.parameters[name] for name in ("trained_dense", "trained_experts"))
    gradient, apart = ledger.states.whole_gradient_bytes, ledger.states.separate_experts

    def of(kind: int) -> Array:
        together = (dense[kind] + experts[kind])[ledger.key]
        if not experts[kind].any():
            return np.asarray(gradient * together)
        return np.asarray(gradient * np.where(apart, np.maximum(dense[kind], experts[kind])[ledger.key], together))

    return of
