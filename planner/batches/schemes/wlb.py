"""WLB-LLM: packs of equal work instead of equal tokens, and a choice of how context parallelism cuts them.

Wang et al., arXiv:2503.17924. All documents have one degree.

- **Packing** (algorithm 1, equal_work.py): packs have equal work, and as many tokens as that takes. The number
  of packs per group is the fastest of the least and four more.
- **Sharding**: a pack is cut into 2 d chunks, and rank i gets the chunks i and 2 d - 1 - i. Cut as one row,
  ranks have unlike work where documents end inside it. Cut document by document, ranks have equal work, but queries of
  short chunks leave tiles of the attention kernel part empty. The faster is taken for each micro-batch.

The queue that delays outlier documents to later batches is left out: batches would not be those of the other plans.
The rule here is simplified: it follows summaries of the paper, which has no public code.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from ....cost_models.arrays import Array
from ..costs import GroupCosts
from ..one_degree import least_degree
from ..policy import Step
from .base import Scheme, SchemeStep, Subject, words_of
from .equal_work import packs_of_equal_work

_MORE = 4  # packs per group that are tried beyond the least; assumed
# Queries of a tile of FlashAttention for heads of 128, forward: run_mha_fwd_hdim128 of
# csrc/flash_attn/src/flash_fwd_launch_template.h (A100), tile_size_fwd_sm90 of hopper/tile_size.h.
TILE = 128


def row_imbalance(lengths: Array, degree: int) -> float:
    """Attention of the busiest rank over the mean, where documents [k] one after another are cut as one row."""
    ends = np.cumsum(lengths)
    edges = ends[-1] * np.arange(2 * degree + 1) / (2 * degree)
    before = np.concatenate([[0.0], np.cumsum(lengths**2)])  # of whole documents, twice their causal work
    inside = np.minimum(np.searchsorted(ends, edges, side="left"), len(lengths) - 1)
    chunks = np.diff(before[inside] + (edges - (ends[inside] - lengths[inside])) ** 2)
    ranks = chunks[:degree] + chunks[: degree - 1 : -1]
    return float(ranks.max() / ranks.mean())


def tile_waste(lengths: Array, degree: int) -> Array:
    """[k] attention with half-empty tiles over attention without, where each document is cut on its own."""
    chunk = lengths / (2 * degree)
    return np.asarray(np.ceil(chunk / TILE) * TILE / chunk)


class _Pricer:
    """Seconds of packs on groups of one degree."""

    def __init__(self, lengths: Array, costs: GroupCosts, degree: int) -> None:
        self.lengths, self.costs, self.degree = lengths, costs, degree
        self.column = int(np.searchsorted(costs.degrees, degree))
        self.seconds = costs.seconds(lengths)[:, self.column]
        # Attention of a document on one rank, whose messages do not hide it; the shortest length has hardly any.
        token_s = np.interp(lengths, costs.grid, costs.token_s[:, 0]) - costs.token_s[0, 0]
        self.attention_s = np.maximum(lengths * token_s * costs.degrees[0] / degree, 0.0)

    def pack_s(self, pack: Sequence[int]) -> float:
        """Seconds of a pack, cut the faster way."""
        members = list(pack)
        attention_s, lengths = self.attention_s[members], self.lengths[members]
        by_row = (row_imbalance(lengths, self.degree) - 1) * float(attention_s.sum())
        by_document = float(((tile_waste(lengths, self.degree) - 1) * attention_s).sum())
        return float(self.seconds[members].sum()) + (min(by_row, by_document) if self.degree > 1 else 0.0)

    def step(self) -> SchemeStep:
        """The fastest number of packs."""
        room, groups = self.costs.rank_tokens * self.degree, self.costs.num_ranks // self.degree
        least = max(1, int(np.ceil(self.lengths.sum() / (room * groups))))
        packed = (self._with(num, groups, room) for num in range(least, least + len(self.lengths)))
        return min(islice((step for step in packed if step), 1 + _MORE), key=lambda step: step.step_s)

    def _with(self, num: int, groups: int, room: float) -> SchemeStep | None:
        """`num` packs for every group; None where they do not hold the documents."""
        packs = packs_of_equal_work(self.lengths, self.seconds, room, num * groups)
        if packs is None:
            return None
        busy = sorted((self.pack_s(pack) for pack in packs if pack), reverse=True)
        makespans_s = sum(busy[::groups])  # packs of like work stand side by side
        count = -(-len(busy) // groups)
        step_s = self.costs.once_s + count * self.costs.micro_batch_s + makespans_s
        return SchemeStep(step_s, (self.degree,), count)


def steps_of_degree(batches: Sequence[Array], costs: GroupCosts, degree: int) -> list[SchemeStep]:
    """A step per batch, on groups of `degree`, which hold every document."""
    return [_Pricer(lengths, costs, degree).step() for lengths in batches]


def _run(subject: Subject) -> tuple[str, Sequence[Step]]:
    choices = ((family, costs, degree) for family, costs in subject.candidates("allgather", zero=3)
               for degree in costs.degrees.tolist() if degree >= least_degree(subject.longest, costs))  # fmt: skip
    (family, _, _), steps = subject.fastest(choices, lambda choice, batches: steps_of_degree(batches, *choice[1:]))
    return words_of(family), steps


SCHEME = Scheme(name="wlb-llm", source="arXiv:2503.17924", basis="summary", rule="one for all batches", run=_run)
