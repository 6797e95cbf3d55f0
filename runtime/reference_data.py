"""The sequences of the single-process reference, and their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .data import open_source
from .job import Job
from .mixed_lengths.job import LengthsJob
from .mixed_lengths.tokens import DocumentTokens
from .pairs import shape_of
from .trainer import images_of


def num_targets(batch: Sequence[Tensor], job: Job, further: int) -> int:
    """The targets of a step that have a loss."""
    if job.end_token is not None:
        return sum(int((rows[:, -1 - job.seq_len : -1] != job.end_token).sum()) for rows in batch)
    hidden = sum(place > 0 for place in image_places(job))
    beside = further + (job.source_len or 0) + hidden
    return sum(len(rows) * (rows.shape[1] - beside) for rows in batch)


def image_places(job: Job) -> list[int]:
    """Places of a sequence that images take."""
    seen = images_of(job)
    return [] if seen is None else seen.places


def shifted_rows(rows: Tensor, seq_len: int, further: int, job: Job) -> list[Tensor]:
    """Inputs, targets, and targets of predictions, [sequences, seq_len] each; -1 for a target behind a document, and
    for one that is an image's. Where there is an encoder, the source before them, and behind them its places without a
    token."""
    start = job.source_len or 0
    shifted = [rows[:, start + first : start + first + seq_len] for first in range(1 + further)]
    if job.end_token is not None:
        shifted[1] = torch.where(shifted[0] == job.end_token, -1, shifted[1])
    if job.images is not None:
        shifted[1] = shifted[1].clone()
        for place in image_places(job):
            if place > 0:
                shifted[1][:, place - 1] = -1
    if job.source_len is None:
        return shifted
    source = rows[:, : job.source_len]
    return [source.clamp(min=0), *shifted, source < 0]


def batches(job: Job, further: int) -> Callable[[int], Sequence[Tensor]]:
    """The passes through the model of each step, [sequences, tokens + further]: each document by itself, if any."""
    if isinstance(job, LengthsJob):
        tokens = DocumentTokens(job)
        return lambda step: [document[None] for document in tokens.documents(step)]
    source = open_source(job.data, job.model.vocab, job.row_len, job.global_batch, job.seed, further,
                         shuffle=job.shuffle, pairs=shape_of(job))  # fmt: skip
    return lambda step: torch.split(source.batch(step), _rows(job))


def _rows(job: Job) -> int:
    """Sequences per pass through the model: a rank's micro-batch, or that of all ranks for layer-wise strategies."""
    return job.layout.micro_batch if job.strategies is None else job.global_batch // job.num_micro_batches
