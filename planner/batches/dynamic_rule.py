"""The micro-batches that Megatron's dynamic context parallelism forms of a batch.

Megatron-LM, branch dev at d48bd6be, `next_hdp_group_packing_aware` of megatron/core/datasets/data_schedule_utils.py:
documents come in descending length. One of s tokens needs 2^ceil(log2(s / rank_tokens)) ranks, and has the work
s^2 / d on d of them. It joins a group of so many ranks or of a greater power of two, or opens one on free ranks: where
the most loaded rank then has the least work. It waits for the next micro-batch where every place would give a rank more
than `rank_tokens` tokens. Groups grow until no rank is free. Documents of a group train together, packed.

The packer has a limit on work, too: 1.05 times longest x rank_tokens. Ranks never reach it: documents on d ranks have
the work sum(s^2) / d, which is at most longest x sum(s) / d, and that at most longest x rank_tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...cost_models.arrays import Array
from .batch_plan import Group
from .rule_groups import Document, FillingGroup, micro_batches, needed_ranks


def dynamic_micro_batches(lengths: Array, rank_tokens: int, num_ranks: int) -> list[list[Group]]:
    """The groups of each micro-batch of a batch of `lengths` [k] tokens.

    rank_tokens: `--max-seqlen-per-dp-cp-rank`. num_ranks: a power of two that holds the longest document.
    """
    return micro_batches(lengths, lambda: _MicroBatch(rank_tokens, num_ranks))


class _MicroBatch:
    """Groups in the order of their ranks; free ranks are the last ones."""

    def __init__(self, rank_tokens: int, num_ranks: int) -> None:
        self.rank_tokens, self.num_ranks = rank_tokens, num_ranks
        self.groups: list[FillingGroup] = []
        self.free, self.highest = num_ranks, 0.0  # ranks; the work of the most loaded one

    def fill(self, documents: Sequence[Document]) -> list[Document]:
        """Places documents, the longest first; returns those that are left."""
        left = list[Document]()
        self._place(documents[0], next(self._places(documents[0][1])))
        for document in documents[1:]:
            work = document[1] ** 2
            places = [(max(self.highest, group.load + work / group.degree), group)
                      for group in self._places(document[1])]  # fmt: skip
            if places:
                self._place(document, min(places, key=lambda place: place[0])[1])
            else:
                left.append(document)
        self._grow()
        return left

    def _places(self, tokens: float) -> Iterator[FillingGroup]:
        """The groups that hold a document, and the new ones that free ranks may form, in the order of their degrees."""
        degree = needed_ranks(tokens, self.rank_tokens)
        while degree <= self.num_ranks:
            for group in self.groups:
                if group.degree == degree and group.tokens + tokens / degree <= self.rank_tokens:
                    yield group
            if self.free >= degree:
                yield FillingGroup(degree)
            degree *= 2

    def _place(self, document: Document, group: FillingGroup) -> None:
        tokens = document[1]
        if not group.documents:
            self.groups.append(group)
            self.free -= group.degree
        group.tokens += tokens / group.degree
        group.load += tokens**2 / group.degree
        group.documents.append(document)
        self.highest = max(self.highest, group.load)

    def _grow(self) -> None:
        """Doubles the first of the smallest groups until no rank is free."""
        while self.free:
            smallest = min(self.groups, key=lambda group: group.degree)
            self.free -= smallest.degree
            smallest.degree *= 2
