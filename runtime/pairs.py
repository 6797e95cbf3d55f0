"""Pairs of a source and a target for an encoder and its decoder, from JSON lines. No torch here.

A line is `{"source": [tokens], "target": [tokens]}`. A row is the source, padding up to the length that the encoder
reads, the token that starts a decoder, the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import FieldProblem
from .shards import Row, digest_of
from .token_lines import Line, read_lines

if TYPE_CHECKING:
    from .job import Job

PADDING = -1  # behind a source: no token, which attention does not see
START = 0  # `decoder_start_token_id` in T5's configurations
_FIELDS = ("source", "target")


@dataclass(frozen=True)
class PairShape:
    """The lengths of a plan and the tokens of its model, against which pairs are checked."""

    source_len: int
    target_len: int
    vocab: int
    end_token: int | None  # follows a target, and fills the places behind it; None: targets have the planned length


def shape_of(job: Job) -> PairShape | None:
    """The lengths and tokens of the pairs of a job; None: its model has no encoder."""
    if job.source_len is None:
        return None
    return PairShape(job.source_len, job.seq_len, job.model.vocab, job.end_token)


class Pairs:
    """The pairs of several files, in their order. Each rank holds 4 bytes for each token."""

    def __init__(self, files: Sequence[Path], shape: PairShape) -> None:
        """Raises InputError for files without a pair, and with all problems of their lines."""
        self.files = files
        self.rows = np.stack(read_lines(files, _FIELDS, shape.vocab, partial(_row, shape)))
        self.digests: Mapping[str, str] = {path.name: digest_of(path) for path in files}

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, place: int) -> Row:
        """The row of a pair, [source + 1 + target], int64."""
        return np.asarray(self.rows[place], dtype=np.int64)


def _row(shape: PairShape, pair: Line) -> Row | FieldProblem:
    """The row of a pair, or the first thing wrong in it."""
    source, target = pair["source"], _ended(pair["target"], shape)
    if len(source) > shape.source_len:
        return FieldProblem(f"{len(source):,} tokens, the encoder of the plan reads {shape.source_len:,}", "source",
                            hint="shorten it, or plan with a longer `--source-len`")  # fmt: skip
    if len(target) > shape.target_len:
        return FieldProblem(f"{len(target):,} tokens with its end, the decoder of the plan has {shape.target_len:,}",
                            "target", hint="shorten it, or plan with a longer `--seq-len`")  # fmt: skip
    if _goes_on(target, shape.end_token):
        return FieldProblem(f"tokens behind token {shape.end_token}, the end, would have no loss", "target",
                            hint="cut it there, or give another `--end-token`")  # fmt: skip
    missing = shape.target_len - len(target)
    if missing and shape.end_token is None:
        return FieldProblem(f"{len(target):,} tokens, the decoder of the plan has {shape.target_len:,}", "target",
                            hint="`--end-token ID` fills the places behind a target, without loss")  # fmt: skip
    padding = [PADDING] * (shape.source_len - len(source))
    return np.array([*source, *padding, START, *target, *[shape.end_token] * missing], dtype=np.int32)


def _ended(target: list[int], shape: PairShape) -> list[int]:
    """A target with the end token behind it, where there is one."""
    return target if shape.end_token is None or target[-1] == shape.end_token else [*target, shape.end_token]


def _goes_on(target: list[int], end: int | None) -> bool:
    """Whether other tokens than the end follow it."""
    return end is not None and end in target and any(token != end for token in target[target.index(end) :])
