"""`--scale-down` of a run on documents of mixed lengths: a small model on 4 ranks, with groups of up to 3 degrees.

Kept: which documents share a group, micro-batches with unlike degrees, ranks that wait, the algorithm, ZeRO,
recomputation. Shrunk: the model, degrees, documents of a group, and lengths, by the root of their share of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...errors import UnsupportedError
from ...planner.document.sampler_plan import SamplerBatch, SamplerGroup
from ..rehearsal.scale import scale_down
from .job import LengthsJob

RANKS = 4  # that groups divide among themselves
_DOCUMENTS = 3  # of a group
_MICRO_BATCHES, _BATCHES = 4, 2


def rehearsed(job: LengthsJob, keep: Mapping[str, int]) -> tuple[LengthsJob, list[str]]:
    """The rehearsal of a job, and one line per shrunk part. Raises UnsupportedError for axes that are to be kept."""
    if keep:
        raise UnsupportedError("a plan for documents of mixed lengths is shrunk to 4 ranks only",
                               hint="leave out `--keep`")  # fmt: skip
    ranks = min(RANKS, job.layout.cp * job.layout.dp)
    widest = min(job.layout.cp, ranks)
    small, notes = scale_down(job, {"cp": widest} if widest > 1 else {})
    if not isinstance(small, LengthsJob):
        raise TypeError("a rehearsal trains another kind of job")
    dp = ranks // widest
    layout = replace(small.layout, dp=dp, shard=dp, micro_batch=widest)
    degrees = _small_degrees(job.degrees, widest)
    batches = tuple(_small_batch(batch, degrees, ranks, job.seq_len, small.seq_len)
                    for batch in sorted(job.batches, key=_variety, reverse=True)[:_BATCHES])  # fmt: skip
    small = replace(small, layout=layout, batches=batches, global_batch=len(batches[0].lengths))
    shown = ", ".join(f"{degree} -> {less}" for degree, less in degrees.items())
    lengths = f"documents {job.global_batch} of up to {job.seq_len:,} tokens -> {small.global_batch} of up to"
    kept = [note for note in notes if not note.startswith(("layout", "GPUs", "tokens", "micro-batches"))]
    return small, [f"layout {job.layout_id} -> {small.layout_id}", f"GPUs {job.world_size:,} -> {small.world_size:,}",
                   f"degrees {shown}", f"{lengths} {small.seq_len:,}", *kept]  # fmt: skip


def _variety(batch: SamplerBatch) -> int:
    return len({group.cp for group in batch.groups})


def _small_degrees(degrees: Sequence[int], widest: int) -> dict[int, int]:
    """Each degree and that of the rehearsal: the largest become `widest`, half of it, and so on, down to 1."""
    return {degree: max(widest >> at, 1) for at, degree in enumerate(sorted(degrees, reverse=True))}


def _small_batch(
    batch: SamplerBatch, degrees: Mapping[int, int], ranks: int, longest: int, short: int
) -> SamplerBatch:
    """Micro-batches with the most unlike degrees, the groups that `ranks` hold of each, a few documents of each."""
    lengths, micro_batches = list[int](), list[tuple[SamplerGroup, ...]]()
    unlike = sorted(batch.microbatches, key=lambda groups: len({degrees[group.cp] for group in groups}), reverse=True)
    for groups in unlike[:_MICRO_BATCHES]:
        # One group of each degree first: unlike degrees stand side by side where they fit.
        firsts = {degrees[group.cp]: group for group in reversed(groups)}
        if len(firsts) > 1:
            firsts.pop(ranks, None)
        chosen, free = list[SamplerGroup](), 0
        for degree, group in sorted(firsts.items(), reverse=True):
            if free + degree > ranks:
                break
            seqs = tuple(range(len(lengths), len(lengths) + min(len(group.seqs), _DOCUMENTS)))
            lengths += [max(2, math.ceil(short * math.sqrt(batch.lengths[seq] / longest)))
                        for seq in group.seqs[:_DOCUMENTS]]  # fmt: skip
            chosen.append(SamplerGroup(cp=degree, ranks=tuple(range(free, free + degree)), seqs=seqs))
            free += degree
        micro_batches.append(tuple(chosen))
    # The longest document of the batch trains on all ranks, as the widest groups do.
    lengths.append(max(2, math.ceil(short * math.sqrt(max(batch.lengths) / longest))))
    widest = max(degrees.values())
    micro_batches.append((SamplerGroup(cp=widest, ranks=tuple(range(widest)), seqs=(len(lengths) - 1,)),))
    return SamplerBatch(batch=batch.batch, lengths=tuple(lengths), microbatches=tuple(micro_batches))
