"""Documents of stored tokens, found by their length. No torch here.

`launch tokens` writes `documents.npz` beside its shards: the tokens of each document, without the one that ends it. The
sampler plan names lengths. Documents of a length take turns, so every layout trains the same: in the order of the data,
or in one by seed that changes when each was read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ...cost_models.arrays import Ints
from ...errors import InputError
from ...planner.document.array_file import reading_array
from ...planner.document.sampler_plan import DOCUMENTS, SamplerBatch
from ..data import WrongTokens
from ..shards import Row, Shards
from ..shuffling import place_of

_HINT = "`launch tokens` writes it, with the shards"


class StoredDocuments:
    """The documents of a folder of shards."""

    def __init__(self, folder: Path, shards: Shards, end_token: int, shuffle_seed: int | None = None) -> None:
        """shuffle_seed: None for the order of the data.

        Raises InputError for a folder without the lengths of its documents, or with those of other shards.
        """
        self.path, self.shards, self.end_token = folder / DOCUMENTS, shards, end_token
        self.shuffle_seed = shuffle_seed
        lengths = _lengths(self.path)
        self.starts = np.cumsum(lengths + 1) - lengths - 1
        if (tokens := int(lengths.sum()) + len(lengths)) != len(shards):
            text = f"{self.path}: its {len(lengths):,} documents have {tokens:,} tokens, the shards {len(shards):,}"
            raise InputError(text, hint=_HINT)
        self.order = np.argsort(lengths, kind="stable")
        self.ascending = lengths[self.order]

    def check(self, batches: Iterable[SamplerBatch]) -> None:
        """Raises InputError for lengths of the sampler plan that no document has."""
        planned = np.unique([length for batch in batches for length in batch.lengths])
        lacking = planned[~np.isin(planned, self.ascending)]
        if len(lacking):
            text = f"{self.path}: no document has {lacking[0]:,} tokens, the length of one in the sampler plan"
            more = f" ({len(lacking) - 1:,} more lengths are lacking)" if len(lacking) > 1 else ""
            raise InputError(text + more, hint=f"plan with `--lengths {self.path.parent}`, or leave out `--end-token`")

    def read(self, length: int, turn: int) -> Row:
        """Tokens of a document of `length`, with the one that ends it, int64. turn: how many of this length were read
        before. Raises WrongTokens for a document that does not end so."""
        first, end = np.searchsorted(self.ascending, (length, length + 1))
        document = int(self.order[first + place_of(turn, int(end - first), self.shuffle_seed)])
        row = self.shards.read(int(self.starts[document]), length + 1)
        if row[-1] != self.end_token:
            raise WrongTokens(f"{self.path}: document {document} ends with token {row[-1]}, not {self.end_token}",
                              hint="give the `--end-token` of `launch tokens`")  # fmt: skip
        return row


class Turns:
    """How many documents of its length were trained before each document."""

    def __init__(self, batches: Sequence[SamplerBatch]) -> None:
        self.batches, self.before = batches, [Counter[int]()]
        for batch in batches:
            self.before.append(self.before[-1] + Counter(batch.lengths))

    def of_step(self, step: int) -> list[int]:
        """[document] of step 0, 1, ...; after the last batch the first one follows."""
        rounds, index = divmod(step, len(self.batches))
        seen, out = self.before[index].copy(), list[int]()
        for length in self.batches[index].lengths:
            out.append(rounds * self.before[-1][length] + seen[length])
            seen[length] += 1
        return out


def _lengths(path: Path) -> Ints:
    with reading_array(path, _HINT), np.load(path, allow_pickle=False) as stored:
        lengths = stored["lengths"]
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not len(lengths) or lengths.min() < 1:
        raise InputError(f"{path} holds no list of tokens per document", hint=_HINT)
    return np.asarray(lengths, dtype=np.int64)
