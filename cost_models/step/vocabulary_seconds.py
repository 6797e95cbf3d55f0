"""Seconds of vocabulary parallelism: the passes S and T on every stage, and their messages C0, C1 and C2.

The words are those of quantities/vocabulary.py. All functions are of a ledger with `vocabulary`.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.element_bytes import activation_bytes
from ..quantities.exchanges import Op
from ..quantities.ledger import Ledger
from ..quantities.operations import Exchange
from ..quantities.stages import EMBEDDING, HEAD
from ..rates import collectives
from ..rates.kernel_seconds import kernel_seconds
from ..rates.layer_seconds import COMPONENTS, exchange_seconds, tp_overlap
from ..rates.rates import Rates

# Per token, in fp32, summed over the stages one after another: the largest logit, the target's, the exponentials.
STATISTICS, STATISTIC_BYTES = 3, 4.0
_TP = COMPONENTS.index("tp")


def exposed_vocabulary_s(ledger: Ledger, rates: Rates, cycle: Array) -> Array:
    """[n] seconds of messages of the vocabulary passes, and of waiting for them. No shorter cycle makes a longer step
    (`bound`)."""
    if ledger.vocabulary is None:
        return np.zeros(len(cycle))
    return ledger.m * vocabulary_overhead_s(ledger, rates) + vocabulary_stalls_s(ledger, rates, cycle)


def vocabulary_passes_s(ledger: Ledger, rates: Rates) -> tuple[Array, Array]:
    """[n] seconds of S and of T of a micro-batch on a stage."""
    kernels, key = kernel_seconds(ledger.tables, rates), ledger.key
    forward, backward = (rows[HEAD] + rows[EMBEDDING] for rows in (kernels.forward_s, kernels.backward_s))
    inputs = kernels.backward_s[HEAD] - kernels.weight_s[HEAD] if _barriers(ledger) == 1 else 0.0
    # With one barrier S makes the gradient of its input too, and T that of the weights alone.
    share = 1.0 / ledger.layouts["pp"]
    return (forward + inputs)[key] * share, (backward - inputs)[key] * share


def vocabulary_messages_s(ledger: Ledger, rates: Rates) -> Array:
    """[3, n] seconds of C0, the input of S to all stages; C1, the statistics of its logits, and with one barrier
    the gradient of that input; C2, that gradient with two."""
    problem, num_bytes = ledger.problem, _hidden_bytes(ledger)
    tokens = num_bytes / (activation_bytes(problem.workload) * problem.model.hidden)
    statistics = STATISTICS * _over_stages(ledger, rates, "all_reduce", STATISTIC_BYTES * tokens)
    gradient = _over_stages(ledger, rates, "all_reduce", num_bytes)
    first, none = _over_stages(ledger, rates, "broadcast", num_bytes), np.zeros_like(gradient)
    if _barriers(ledger) == 1:
        return np.array([first, statistics + gradient, none])
    return np.array([first, statistics, gradient])


def _hidden_bytes(ledger: Ledger) -> Array:
    """[n] bytes of a hidden state per token of a micro-batch: the sum of residual streams, where there are several."""
    return np.asarray(ledger.tables.message[ledger.key] / ledger.problem.model.residual_streams)


def _over_stages(ledger: Ledger, rates: Rates, op: Op, num_bytes: Array) -> Array:
    pp = ledger.layouts["pp"]
    levels, stride = rates.levels_of("pp"), ledger.problem.num_gpus // pp
    return collectives.seconds(collectives.curve_of_rows(rates.collectives, levels, op, pp, stride), num_bytes)


def vocabulary_overhead_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds per micro-batch that the messages cost a stage: those of tensor parallelism as far as they show,
    and what all others, hidden, slow compute by. The embedding's are one more message each way."""
    hidden = vocabulary_messages_s(ledger, rates).sum(axis=0)
    hidden = hidden + 2 * _over_stages(ledger, rates, "broadcast", _hidden_bytes(ledger))
    return np.asarray(rates.stack.contention * hidden + _gathers_s(ledger, rates))


def _gathers_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds that the head's tensor-parallel messages show: every stage sends all of them, beside 1/p of the
    head's product; less the share that its part of the head has already."""
    stack, share = rates.stack, 1.0 / ledger.layouts["pp"]
    head, operations = kernel_seconds(ledger.tables, rates).layers[HEAD], ledger.tables.operations[HEAD]
    shown = np.zeros(len(share))
    for seconds, calls in ((head.forward, _forward_calls), (head.backward, _backward_calls)):
        whole = sum(exchange_seconds(exchange, rates) * calls(exchange) for exchange in operations.exchanges)
        sent = (np.zeros(ledger.tables.num_keys) + whole)[ledger.key]
        hides = tp_overlap(stack, ledger.layouts["sequence_parallel"] > 0)
        behind = np.minimum(hides * sent, seconds[COMPONENTS.index("matmul")][ledger.key] * share)
        shown += sent - (1.0 - stack.contention) * behind - seconds[_TP][ledger.key] * share
    return np.maximum(shown, 0.0)


def vocabulary_stalls_s(ledger: Ledger, rates: Rates, cycle: Array) -> Array:
    """[n] seconds of a step in which stages wait for barriers; cycle: [n] of a micro-batch on the slowest stage.

    The last stage runs `barriers` forwards more before the backward pass of a micro-batch: from the end of its
    forward pass, through S, T and their messages, to its backward pass, there is time for those. One barrier shows
    once, at the end, beyond the last T.
    """
    s, t = vocabulary_passes_s(ledger, rates)
    c0, c1, c2 = vocabulary_messages_s(ledger, rates)
    way = c0 + s + c1 + (t + c2 if _barriers(ledger) > 1 else 0.0)
    longest = (way + cycle - s - t) / (_barriers(ledger) + 1)
    last = np.maximum(c1 - t, 0.0) if _barriers(ledger) == 1 else 0.0
    return np.asarray(ledger.m * np.maximum(longest - cycle, 0.0) + last)


def _barriers(ledger: Ledger) -> int:
    """Barriers of the batch's vocabulary parallelism; 0 without it."""
    return 0 if ledger.vocabulary is None else ledger.vocabulary.barriers


def _forward_calls(exchange: Exchange) -> Array | float:
    return exchange.forward_calls


def _backward_calls(exchange: Exchange) -> Array | float:
    return exchange.backward_calls
