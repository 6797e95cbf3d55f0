"""Tokens of the documents of a sampler plan, equal under any groups: synthetic, or pieces of stored tokens.

A document of s tokens has s + 1, the last of which is the last target. Stored tokens are cut into such pieces one
after another, without regard to where their documents end, and begin again at their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor

from ...errors import InputError
from ..data import Stored, Synthetic, open_source
from .job import LengthsJob


class DocumentTokens:
    """The source of batches of a run on documents of mixed lengths."""

    def __init__(self, job: LengthsJob) -> None:
        """Raises InputError for missing data, and for data that is shorter than a document."""
        self.job = job
        longest = max(max(batch.lengths) for batch in job.batches)
        self.source = open_source(job.data, job.model.vocab, longest, 1, job.seed)
        self._before = (0, *accumulate(batch.num_tokens for batch in job.batches))

    def digests(self) -> Mapping[str, str]:
        """As those of the data."""
        return self.source.digests()

    def documents(self, step: int) -> list[Tensor]:
        """Tokens of the documents of step 0, 1, ...: [length + 1] each, int64."""
        lengths = self.job.batch(step).lengths
        if isinstance(self.source, Stored):
            return self._pieces(self.source, step, lengths)
        drawn = Synthetic(self.job.model.vocab, sum(lengths), 1, self.job.seed, len(lengths)).batch(step)[0]
        return list(torch.split(drawn, [length + 1 for length in lengths]))

    def batch(self, step: int) -> Tensor:
        """The documents of a step one after another."""
        return torch.cat(self.documents(step))

    def _pieces(self, source: Stored, step: int, lengths: tuple[int, ...]) -> list[Tensor]:
        rounds, index = divmod(step, len(self.job.batches))
        first, out = rounds * self._before[-1] + self._before[index], []
        for length in lengths:
            place = first % (len(source.shards) - length)
            out.append(torch.from_numpy(source.shards.read(place, length + 1)))
            first += length
        least, most = (int(torch.cat(out).min()), int(torch.cat(out).max()))
        if least < 0 or most >= source.vocab:
            wrong = most if most >= source.vocab else least
            raise InputError(f"the data has token {wrong}, the model knows 0 to {source.vocab - 1}",
                             hint="use the model's own tokenizer")  # fmt: skip
        return out
