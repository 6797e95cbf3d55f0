"""The chunks of a rehearsal: those of the plan that are kept, and the layers of each."""

from __future__ import annotations

from collections.abc import Sequence

from ...cost_models.layouts import Layout
from ...cost_models.quantities.stages import devices_of
from ...cost_models.specs.model import ModelSpec
from ...errors import InputError
from ...planner.document.candidate import Chunk
from ..job import Job

LEAST_LAYERS = 4  # of all chunks together


def picked_chunks(job: Job, layout: Layout) -> list[Chunk]:
    """As many chunks of the plan as the rehearsal has, selected evenly, the first and the last among them."""
    number, last = len(devices_of(layout)), len(job.chunks) - 1
    return [job.chunks[round(index * last / max(number - 1, 1))] for index in range(number)]


def chunk_sizes(job: Job, picked: Sequence[Chunk]) -> tuple[list[int], list[int]]:
    """Layers of each chunk, and the number of fully recomputed ones.

    A chunk has one layer, or more where there are few chunks or where a part of a chunk is recomputed. Chunks that are
    longer in the plan have one more; empty ones have none. With an encoder see `stack_sizes`.
    """
    sizes = _sizes(job, picked) if job.source_len is None else [sum(both) for both in stack_sizes(job.model, picked)]
    recomputed = [
        min(size, 1 if chunk.recompute_layers < _size(chunk) else size) * (chunk.recompute_layers > 0)
        for chunk, size in zip(picked, sizes, strict=True)
    ]
    return sizes, recomputed


def _sizes(job: Job, picked: Sequence[Chunk]) -> list[int]:
    base = max(_least(picked), LEAST_LAYERS // len(picked))
    shortest = min(_size(chunk) for chunk in job.chunks if chunk.layers)
    sizes = [base + (_size(chunk) > shortest) if chunk.layers else 0 for chunk in picked]
    if len(set(sizes)) == 1 and len({_size(chunk) for chunk in job.chunks}) > 1:
        sizes[len(picked) // 2] += 1
    return sizes


def stack_sizes(model: ModelSpec, picked: Sequence[Chunk]) -> list[tuple[int, int]]:
    """Layers of the encoder and of the decoder in each chunk: as many of each stack as it has in the plan, where that
    is none. Raises InputError if chunks of one stack alone are kept."""
    encoder = 0 if model.encoder is None else model.encoder.layers
    ends = [(chunk.layers[0], chunk.layers[-1] + 1) if chunk.layers else (0, 0) for chunk in picked]
    kept = [(min(end, encoder) > first, end > max(first, encoder)) for first, end in ends]
    base = max(_least(picked), LEAST_LAYERS // max(sum(map(sum, kept)), 1))
    sizes = [(base * of_encoder, base * of_decoder) for of_encoder, of_decoder in kept]
    if not all(map(sum, zip(*sizes, strict=True))):
        raise InputError(f"--scale-down: {len(picked)} kept stages have layers of one stack alone",
                         hint=f"keep more of them, as in `--keep pp={len(picked) + 1}`")  # fmt: skip
    return sizes


def _least(picked: Sequence[Chunk]) -> int:
    """Layers of a chunk at least: two where a part of one is recomputed."""
    return 2 if any(0 < chunk.recompute_layers < _size(chunk) for chunk in picked) else 1


def _size(chunk: Chunk) -> int:
    return chunk.layers[-1] - chunk.layers[0] + 1 if chunk.layers else 0
