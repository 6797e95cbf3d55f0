"""Vocabulary parallelism: embedding and output head over all stages of a pipeline, instead of on its ends.

Each of the p stages holds 1/p of the vocabulary. A micro-batch that leaves the last stage passes S on all stages (its
logits), then T (what is left of its backward pass), beside the layers of others (Yeung et al., arXiv 2411.05288;
github.com/sail-sg/VocabularyParallelism). C0, C1, C2 below are the messages between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Array
from ..rates import collectives
from ..rates.collectives import Op
from ..rates.rates import COMPONENTS, exchange_seconds
from .operations import Exchange, activation_bytes
from .stages import EMBEDDING, EMBEDDING_COPY, HEAD, Splits

if TYPE_CHECKING:
    from ..rates.rates import Rates
    from .ledger import Ledger


# Per token, in fp32, summed over the stages one after another: the largest logit, the target's, the exponentials.
STATISTICS, STATISTIC_BYTES = 3, 4.0
# Beside what a stage keeps of its layers: the input of S and its gradient, of the micro-batch in S and of that in T.
KEPT_MESSAGES = 4
_TP = COMPONENTS.index("tp")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """barriers: between S and the backward pass of the last layer. 1: S takes the gradient of its input too, T that of
    the weights alone; 2: T takes both, and is waited for. Each is hidden behind one more micro-batch in flight."""

    barriers: int

    @staticmethod
    def split(splits: Splits) -> Splits:
        """The same layers, with 1/p of embedding and head on each device. A tied head needs no copy."""
        counts, total = splits.counts.copy(), splits.total.copy()
        total[:, EMBEDDING_COPY] = 0.0
        edges = slice(EMBEDDING, None)
        counts[:, :, edges] = (total[:, edges] / splits.devices.sum(axis=1)[:, None])[:, None]
        return replace(splits, counts=counts, total=total)

    def passes_s(self, ledger: Ledger) -> tuple[Array, Array]:
        """[n] seconds of S and of T of a micro-batch on a stage."""
        tables, key = ledger.tables, ledger.key
        forward, backward = (rows[HEAD] + rows[EMBEDDING] for rows in (tables.forward_s, tables.backward_s))
        inputs = tables.backward_s[HEAD] - tables.weight_s[HEAD] if self.barriers == 1 else 0.0
        share = 1.0 / ledger.layouts["pp"]
        return (forward + inputs)[key] * share, (backward - inputs)[key] * share

    def messages_s(self, ledger: Ledger, rates: Rates) -> Array:
        """[3, n] seconds of C0, the input of S to all stages; C1, the statistics of its logits, and with one barrier
        the gradient of that input; C2, that gradient with two."""
        problem, num_bytes = ledger.problem, ledger.tables.message[ledger.key]
        tokens = num_bytes / (activation_bytes(problem.workload) * problem.model.hidden)
        statistics = STATISTICS * self._over_stages(ledger, rates, "all_reduce", STATISTIC_BYTES * tokens)
        gradient = self._over_stages(ledger, rates, "all_reduce", num_bytes)
        first, none = self._over_stages(ledger, rates, "broadcast", num_bytes), np.zeros_like(gradient)
        if self.barriers == 1:
            return np.array([first, statistics + gradient, none])
        return np.array([first, statistics, gradient])

    @staticmethod
    def _over_stages(ledger: Ledger, rates: Rates, op: Op, num_bytes: Array) -> Array:
        pp = ledger.layouts["pp"]
        levels, stride = rates.levels_of("pp"), ledger.problem.num_gpus // pp
        return collectives.seconds(collectives.curve_of_rows(rates.collectives, levels, op, pp, stride), num_bytes)

    def beside_s(self, ledger: Ledger, rates: Rates) -> Array:
        """[n] seconds per micro-batch that the messages cost a stage: those of tensor parallelism as far as they show,
        and what all others, hidden, slow compute by. The embedding's are one more message each way."""
        hidden = self.messages_s(ledger, rates).sum(axis=0)
        hidden = hidden + 2 * self._over_stages(ledger, rates, "broadcast", ledger.tables.message[ledger.key])
        return np.asarray(rates.stack.contention * hidden + self._gathers_s(ledger, rates))

    @staticmethod
    def _gathers_s(ledger: Ledger, rates: Rates) -> Array:
        """[n] seconds that the head's tensor-parallel messages show: every stage sends all of them, beside 1/p of the
        head's product; less the share that its part of the head has already."""
        stack, share = rates.stack, 1.0 / ledger.layouts["pp"]
        head, operations = ledger.tables.seconds[HEAD], ledger.tables.operations[HEAD]
        shown = np.zeros(len(share))
        for seconds, calls in ((head.forward, _forward_calls), (head.backward, _backward_calls)):
            whole = sum(exchange_seconds(each, rates) * calls(each) for each in operations.exchanges)
            sent = (np.zeros(ledger.tables.num_keys) + whole)[ledger.key]
            behind = np.minimum(stack.tp_overlap * sent, seconds[COMPONENTS.index("matmul")][ledger.key] * share)
            shown += sent - (1.0 - stack.contention) * behind - seconds[_TP][ledger.key] * share
        return np.maximum(shown, 0.0)

    def waits_s(self, ledger: Ledger, rates: Rates, cycle: Array) -> Array:
        """[n] seconds of a step in which stages wait for barriers; cycle: [n] of a micro-batch on the slowest stage.

        The last stage runs `barriers` forwards more before the backward pass of a micro-batch: from the end of its
        forward pass, through S, T and their messages, to its backward pass, there is time for those. One barrier shows
        once, at the end, beyond the last T.
        """
        s, t = self.passes_s(ledger)
        c0, c1, c2 = self.messages_s(ledger, rates)
        way = c0 + s + c1 + (t + c2 if self.barriers > 1 else 0.0)
        longest = (way + cycle - s - t) / (self.barriers + 1)
        last = np.maximum(c1 - t, 0.0) if self.barriers == 1 else 0.0
        return np.asarray(ledger.m * np.maximum(longest - cycle, 0.0) + last)


def _forward_calls(exchange: Exchange) -> Array | float:
    return exchange.forward_calls


def _backward_calls(exchange: Exchange) -> Array | float:
    return exchange.backward_calls
