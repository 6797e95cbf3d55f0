"""The micro-batches that Megatron's hybrid context parallelism forms of a batch.

Megatron-LM d98e8a64, `BalancedCPScheduler` of its core: a document of s tokens has the degree
2^ceil(log2(s / rank_tokens)), and its work is s^2 / degree. Buckets of about equal work, the longest documents first,
are dealt out until no document fits, or until the ranks are balanced once degrees fall. Groups on free
ranks come first, then the least loaded group of the degree. The last document of the fullest group goes back while that
balances the ranks, and groups grow until no rank is free. Documents of a group train one after another, each alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...cost_models.arrays import Array
from .batch_plan import Group
from .rule_groups import Document, FillingGroup, micro_batches, needed_ranks

_SLACK = 0.05  # relative: ranks that differ by less are balanced
_FULL = 1.1  # times its share of the work: a bucket ends there


def hybrid_micro_batches(lengths: Array, rank_tokens: int, num_ranks: int) -> list[list[Group]]:
    """The groups of each micro-batch of a batch of `lengths` [k] tokens.

    rank_tokens: `--max-seqlen-per-dp-cp-rank`. num_ranks: a power of two that holds the longest document.
    """
    return micro_batches(lengths, lambda: _MicroBatch(rank_tokens, num_ranks))


class _MicroBatch:
    """Groups in the order of their ranks; free ranks are the last ones."""

    def __init__(self, rank_tokens: int, num_ranks: int) -> None:
        self.rank_tokens, self.num_ranks = rank_tokens, num_ranks
        self.groups: list[FillingGroup] = []

    def fill(self, documents: Sequence[Document]) -> list[Document]:
        """Places documents; returns those that are left, in the order in which the next micro-batch gets them."""
        buckets, widest, falls = self._buckets(documents), 0, False
        while buckets:
            bucket = next((bucket for bucket in buckets if self._fits(bucket[0])), None)
            if bucket is None:
                break
            degree = self._needed(bucket[0])
            self._place(bucket.popleft(), degree)
            buckets = [bucket for bucket in buckets if bucket]
            widest = widest or degree
            falls = falls or degree < widest
            if falls and buckets and self._is_balanced():
                break
        left = [document for bucket in buckets for document in bucket]
        self._trim(left)
        self._grow()
        return left

    def _needed(self, document: Document) -> int:
        return needed_ranks(document[1], self.rank_tokens)

    def _work(self, document: Document) -> float:
        return document[1] ** 2 / self._needed(document)

    def _buckets(self, documents: Sequence[Document]) -> list[deque[Document]]:
        """As many as there are degrees, of about equal work."""
        more = len({self._needed(document) for document in documents})
        share = sum(map(self._work, documents)) / more
        out = [deque[Document]()]
        work = 0.0
        for at, document in enumerate(documents):
            work += self._work(document)
            # Later buckets need at least a document each. `more` falls although full buckets are subtracted, too.
            if out[-1] and (work > _FULL * share or len(documents) - at <= more - (len(out) - 1)):
                out.append(deque())
                work, more = self._work(document), more - 1
            out[-1].append(document)
        return out

    @property
    def _free(self) -> int:
        return self.num_ranks - sum(group.degree for group in self.groups)

    def _fits(self, document: Document) -> bool:
        degree = self._needed(document)
        return self._free >= degree or any(group.degree == degree for group in self.groups)

    def _place(self, document: Document, degree: int) -> None:
        if self._free >= degree:
            self.groups.append(FillingGroup(degree))
            group = self.groups[-1]
        else:
            group = min((group for group in self.groups if group.degree == degree), key=lambda group: group.load)
        group.load += self._work(document)
        group.documents.append(document)

    def _is_balanced(self) -> bool:
        loads = [group.load for group in self.groups]
        return not self._free and max(loads) - min(loads) <= _SLACK * max(loads)

    def _trim(self, left: list[Document]) -> None:
        """Puts the last document of the fullest group back while that narrows the spread of the loads."""
        while not self._free and not self._is_balanced():
            loads = [group.load for group in self.groups]
            fullest = self.groups[loads.index(max(loads))]
            if len(fullest.documents) == 1:
                return
            work = self._work(fullest.documents[-1])
            after = [group.load - (work if group is fullest else 0.0) for group in self.groups]
            if max(after) - min(after) >= max(loads) - min(loads):
                return
            fullest.load -= work
            left.append(fullest.documents.pop())

    def _grow(self) -> None:
        """Doubles the first of the smallest groups until no rank is free."""
        while self._free:
            smallest = min(self.groups, key=lambda group: group.degree)
            smallest.degree = min(2 * smallest.degree, self.num_ranks)
