"""Pairs of answers for DPO, from JSON lines.

A line is `{"prompt": [tokens], "chosen": [tokens], "rejected": [tokens]}`. The tokens of answers are targets as they
stand, the token that ends an answer among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ...errors import FieldProblem
from ..shards import Row, digest_of, pair_files
from ..shuffling import places_of
from ..token_lines import Line, read_lines
from .job import END, RlJob
from .rollout import Rollout

_FIELDS = ("prompt", "chosen", "rejected")


class Preference(NamedTuple):
    """Two answers to a prompt, as int32 tokens."""

    prompt: Row
    chosen: Row
    rejected: Row


class Preferences:
    """The pairs of the files of a run. Each rank holds 4 bytes for each token."""

    def __init__(self, job: RlJob) -> None:
        """Raises InputError for files without a pair, and with all problems of their lines."""
        files = pair_files(Path(job.data))
        self.job, self.shuffle_seed = job, job.seed if job.shuffle else None
        self.pairs = read_lines(files, _FIELDS, job.model.vocab, partial(_pair, job.seq_len + 1))
        self.digests: Mapping[str, str] = {path.name: digest_of(path) for path in files}

    def step(self, index: int) -> Rollout:
        """The pairs of step 0, 1, ..., in each of them the chosen answer first. Rows are filled up with END, which no
        target is."""
        places = places_of(index, self.job.prompts, len(self.pairs), self.shuffle_seed)
        rows = [(pair.prompt, answer) for pair in (self.pairs[place] for place in places)
                for answer in (pair.chosen, pair.rejected)]  # fmt: skip
        tokens = torch.full((len(rows), self.job.seq_len + 1), END)
        counted = torch.zeros(len(rows), self.job.seq_len, dtype=torch.bool)
        for row, (prompt, answer) in enumerate(rows):
            first, end = len(prompt), len(prompt) + len(answer)
            tokens[row, :end] = torch.from_numpy(np.concatenate([prompt, answer]))
            counted[row, first - 1 : end - 1] = True
        return Rollout(tokens, counted, torch.zeros(counted.shape, dtype=torch.float64))


def _pair(row_len: int, line: Line) -> Preference | FieldProblem:
    """The pair of a line, or the reason against it. row_len: tokens of a prompt and an answer, at most."""
    prompt, *answers = (np.array(line[field], dtype=np.int32) for field in _FIELDS)
    for field, answer in zip(_FIELDS[1:], answers, strict=True):
        if (length := len(prompt) + len(answer)) > row_len:
            return FieldProblem(f"{len(prompt):,} tokens of the prompt and {len(answer):,} are {length:,}, rows of the "
                                f"plan have {row_len:,}", field, hint="shorten it, or plan with a longer "
                                "`--output-max`")  # fmt: skip
    return Preference(prompt, *answers)
