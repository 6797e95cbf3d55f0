"""Tokens of the documents of a sampler plan, equal under any groups: synthetic, stored documents, or pieces of them.

A document of s tokens has s + 1, the last of which is the last target. With the token that ends documents, stored ones
of the planned lengths are trained, and that token is the last target. Without it stored tokens are cut into pieces of
these lengths one after another, without regard to where their documents end. Behind the last token follows the first:
in as many tokens as are stored, an epoch, each is an input once and a target once. Epochs are cut at other places.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from ..data import Stored, Synthetic, WrongTokens, open_source
from ..shards import Row
from .job import LengthsJob
from .stored_documents import StoredDocuments, Turns


class DocumentTokens:
    """The source of batches of a run on documents of mixed lengths."""

    def __init__(self, job: LengthsJob) -> None:
        """Raises InputError for missing data, for data that is shorter than a document, and for planned lengths that no
        stored document has."""
        self.job = job
        longest = max(max(batch.lengths) for batch in job.batches)
        self.source = open_source(job.data, job.model.vocab, longest, 1, job.seed)
        self._before = (0, *accumulate(batch.num_tokens for batch in job.batches))
        self._turns = Turns(job.batches)
        self._stored: StoredDocuments | None = None
        if job.end_token is not None and isinstance(self.source, Stored):
            self._stored = StoredDocuments(Path(job.data), self.source.shards, job.end_token,
                                           job.seed if job.shuffle else None)  # fmt: skip
            self._stored.check(job.batches)

    def digests(self) -> Mapping[str, str]:
        """As those of the data."""
        return self.source.digests()

    def documents(self, step: int) -> list[Tensor]:
        """Tokens of the documents of step 0, 1, ...: [length + 1] each, int64."""
        lengths = self.job.batch(step).lengths
        if isinstance(self.source, Stored):
            if self._stored is None:
                rows = self._pieces(self.source, step, lengths)
            else:
                rows = [self._stored.read(*each) for each in zip(lengths, self._turns.of_step(step), strict=True)]
            return [torch.from_numpy(row) for row in self._checked(self.source, rows)]
        drawn = Synthetic(self.job.model.vocab, sum(lengths), 1, self.job.seed, len(lengths)).batch(step)[0]
        return list(torch.split(drawn, [length + 1 for length in lengths]))

    def batch(self, step: int) -> Tensor:
        """The documents of a step one after another."""
        return torch.cat(self.documents(step))

    def _pieces(self, source: Stored, step: int, lengths: tuple[int, ...]) -> list[Row]:
        rounds, index = divmod(step, len(self.job.batches))
        first, out = rounds * self._before[-1] + self._before[index], list[Row]()
        for length in lengths:
            out.append(source.shards.read_around(first % len(source.shards), length + 1))
            first += length
        return out

    @staticmethod
    def _checked(source: Stored, rows: list[Row]) -> list[Row]:
        """`rows`. Raises WrongTokens for those that the model does not know."""
        least, most = min(int(row.min()) for row in rows), max(int(row.max()) for row in rows)
        if least < 0 or most >= source.vocab:
            wrong = most if most >= source.vocab else least
            raise WrongTokens(f"{source.name} has token {wrong}, the model knows 0 to {source.vocab - 1}",
                              hint="use the model's own tokenizer")  # fmt: skip
        return rows
