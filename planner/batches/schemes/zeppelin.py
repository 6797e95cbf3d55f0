"""Zeppelin: three zones of documents by length, one network card per GPU for long ones, linear layers balanced apart.

Chen et al., arXiv:2509.21841. All ranks train a micro-batch together:

- **Zones**: documents beyond the room of a node go around a ring of all ranks,
  documents beyond that of a rank around a ring of their node, the others stay on a rank. A document goes to the node,
  then to the rank, with the least load that has room. Where none has, the longest document moves up a zone.
- **Attention**: a rank works through the rings of all ranks, those of its node, and its own documents, in turn.
- **Routing**: messages between nodes leave through the cards of all ranks of a node, not of the last one alone.
- **Remapping**: tokens move between ranks for the linear layers, so that each has as many, where that is faster than
  to wait for the rank with the most.

Documents longer than a node goes over all nodes here; the paper cuts them over as few as it needs. Weights are whole
(ZeRO-1). The rule here is simplified: it follows summaries of the paper, which has no public code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ....cost_models.arrays import Array
from ....cost_models.problem import Problem
from ....cost_models.quantities.element_bytes import activation_bytes
from ....cost_models.rates.rates import Rates
from ....errors import NoFeasibleLayoutError
from ..batch_plan import descending
from ..costs import GroupCosts
from ..family_choice import Candidate
from ..ledger_costs import Priced, ledger_costs
from ..policy import Step
from .base import Scheme, SchemeStep, Subject, words_of

_PASSES = 4  # of hidden states through a remapping, assumed: to the linear layers and back, forward and backward


@dataclass(frozen=True)
class _Routed:
    """A problem priced with other rates."""

    problem: Problem
    rates: Rates
    budget_bytes: float


def routed(priced: Priced, ranks_per_node: int) -> Priced:
    """`priced` where a message between nodes has the bandwidth of all ranks of a node."""
    network = priced.rates.levels_of("cp")[-1].bw_bytes_per_s
    return _Routed(priced.problem, priced.rates.on_network({"cp": network * ranks_per_node}), priced.budget_bytes)


@dataclass(frozen=True, eq=False)
class Zones:
    """The costs of a micro-batch."""

    costs: GroupCosts  # of rings, with routing
    node: int  # ranks of a node
    moved_s: float  # seconds of a token that a rank gives away and takes back for the linear layers

    @property
    def linear_s(self) -> float:
        """Seconds of a token of the linear layers on one rank."""
        return float(self.costs.token_s[0, 0])

    def attention_s(self, length: float, degree: int) -> float:
        """Attention of a document on each of `degree` ranks, with what its messages leave exposed."""
        column = int(np.searchsorted(self.costs.degrees, degree))
        token_s = float(np.interp(length, self.costs.grid, self.costs.token_s[:, column]))
        return max(length * (token_s - self.linear_s / degree), 0.0)

    def micro_batch_s(self, lengths: Array) -> tuple[float, set[int]] | None:
        """Seconds of documents of `lengths` [k] tokens, the longest first, and their degrees; None: no room."""
        split = _Split.of(lengths, self)
        if split is None:
            return None
        tokens, attention_s = split.tokens, split.attention_s
        balanced = tokens.mean() * self.linear_s + attention_s.max() + (tokens.max() - tokens.mean()) * self.moved_s
        seconds = min(float((tokens * self.linear_s + attention_s).max()), float(balanced))
        return self.costs.micro_batch_s + seconds, split.degrees


@dataclass
class _Split:
    """A micro-batch over nodes and ranks, as it fills."""

    zones: Zones
    tokens: Array  # [rank]
    attention_s: Array  # [rank]
    degrees: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, lengths: Array, zones: Zones) -> _Split | None:
        """The fewest of the longest documents go over all nodes."""
        for num in range(len(lengths) + 1):
            split = cls(zones, np.zeros(zones.costs.num_ranks), np.zeros(zones.costs.num_ranks))
            if split._fill(lengths, num):
                return split
        return None

    def _fill(self, lengths: Array, over_nodes: int) -> bool:
        """Places the first `over_nodes` documents on all ranks, and the others on the least loaded nodes."""
        zones, room = self.zones, self.zones.costs.rank_tokens
        num_ranks = zones.costs.num_ranks
        self._on(slice(None), lengths[:over_nodes], num_ranks)
        nodes: list[list[float]] = [[] for _ in range(num_ranks // zones.node)]
        tokens = np.full(len(nodes), float(self.tokens[0] * zones.node))
        loads = np.zeros(len(nodes))
        for length in lengths[over_nodes:].tolist():
            at = int(np.where(tokens + length <= room * zones.node, loads, np.inf).argmin())
            if tokens[at] + length > room * zones.node:
                return False
            nodes[at].append(length)
            tokens[at] += length
            loads[at] += length * self.zones.linear_s + self.zones.attention_s(length, 1)
        placed = all(self._fill_node(at, np.array(members)) for at, members in enumerate(nodes) if members)
        return placed and bool(self.tokens.max() <= room)

    def _fill_node(self, node: int, lengths: Array) -> bool:
        """The fewest of the longest documents go over all ranks of the node."""
        ranks = slice(node * self.zones.node, (node + 1) * self.zones.node)
        before = self.tokens[ranks].copy(), self.attention_s[ranks].copy()
        for num in range(len(lengths) + 1):
            self.tokens[ranks], self.attention_s[ranks] = before
            self._on(ranks, lengths[:num], self.zones.node)
            if all(self._on_one(ranks, length) for length in lengths[num:].tolist()):
                return True
        return False

    def _on_one(self, ranks: slice, length: float) -> bool:
        """Puts it on the rank of a node with the least load that has room. False: none has."""
        zones = self.zones
        loads = self.tokens[ranks] * zones.linear_s + self.attention_s[ranks]
        loads = np.where(self.tokens[ranks] + length <= zones.costs.rank_tokens, loads, np.inf)
        at = int(loads.argmin())
        if not np.isfinite(loads[at]):
            return False
        self._on(slice(ranks.start + at, ranks.start + at + 1), np.array([length]), 1)
        return True

    def _on(self, ranks: slice, lengths: Array, degree: int) -> None:
        """Documents split evenly over `degree` ranks."""
        if len(lengths):
            self.tokens[ranks] += lengths.sum() / degree
            self.attention_s[ranks] += sum(self.zones.attention_s(length, degree) for length in lengths.tolist())
            self.degrees.add(degree)


def step(lengths: Array, zones: Zones) -> SchemeStep:
    """The fewest micro-batches that hold a batch, the longest documents dealt out first, to the one with the fewest
    tokens."""
    least, ordered = zones.costs.least_micro_batches(lengths), lengths[descending(lengths)]
    for num in range(least, least + len(lengths)):
        parts: list[list[float]] = [[] for _ in range(num)]
        for length in ordered.tolist():
            min(parts, key=sum).append(length)
        priced = [zones.micro_batch_s(np.array(part)) for part in parts if part]
        whole = [each for each in priced if each is not None]
        if len(whole) == len(priced):
            break
    seconds = zones.costs.once_s + sum(part_s for part_s, _ in whole)
    return SchemeStep(seconds, tuple(sorted(set().union(*(degrees for _, degrees in whole)))), len(whole))


def zones_of(priced: Priced, candidate: Candidate) -> Zones | None:
    """The zones of a family; None where a node, or all ranks, are no power of two."""
    family, costs = candidate
    node = min(max(priced.problem.gpus_per_node // family.tp, 1), costs.num_ranks)
    if not {node, costs.num_ranks} <= set(costs.degrees.tolist()):
        return None
    model, width = priced.problem.model, activation_bytes(priced.problem.workload)
    moved = _PASSES * model.num_layers * model.hidden * width / family.tp
    level = priced.rates.levels_of("cp")[-1 if costs.num_ranks > node else 0]
    faster = ledger_costs(routed(priced, node), family)
    return Zones(replace(costs, token_s=faster.token_s) if faster else costs, node, moved / level.bw_bytes_per_s)


def _run(subject: Subject) -> tuple[str, Sequence[Step]]:
    able = [(family, zones) for family, costs in subject.candidates("ring", zero=1)
            if (zones := zones_of(subject.priced, (family, costs)))]  # fmt: skip
    if not able:
        raise NoFeasibleLayoutError("needs a power of two of ranks")
    (family, _), steps = subject.fastest(able, lambda each, batches: [step(lengths, each[1]) for lengths in batches])
    return words_of(family), steps


SCHEME = Scheme(name="zeppelin", source="arXiv:2509.21841", basis="summary", rule="one per document", run=_run)
