"""Stages as even as possible: layers one by one, or in groups that no stage may cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import ceil

from ..specs.model import ModelSpec

EDGES = 2  # chunks that may hold no layer: the first one the embedding, the last one the head


@dataclass(frozen=True, slots=True)
class Tower:
    """The room of a vision tower in the first chunk of an even split."""

    worth: int  # layers that it takes as long as
    least: int  # layers that add its outputs up, which no stage sends on


@dataclass(frozen=True, slots=True)
class Stacks:
    """An encoder before a decoder in an even split, which puts them on chunks of their own."""

    encoder_layers: int  # the first ones
    worth: float  # layers of the decoder that one of them takes as long as
    head_worth: float  # layers of the decoder that the head takes as long as


@dataclass(frozen=True, slots=True)
class Edges:
    """The ends of the model in a split: MTP modules, a tied head, and layers that stay together."""

    mtp_layers: int  # modules
    mtp: tuple[int, ...]  # kind of every layer of theirs
    tied: bool
    joined: tuple[int, ...] = ()  # kinds of layers that stay on the chunk of the layer before them
    tower: Tower | None = None  # beside the embedding
    # Layers beside which the token table is looked up; the last ones take a copy of it where another chunk has it.
    lookups: tuple[int, ...] = (0,)
    stacks: Stacks | None = None  # None: one stack


def chunk_sizes(num_layers: int, num_chunks: int) -> list[int]:
    """Layers per chunk, as even as possible; the chunks in the middle take the remainder.

    The first and the last chunk also hold the embedding and the head, so they are the last to get an extra layer.
    """
    base, extra = divmod(num_layers, num_chunks)
    middle_first = sorted(range(num_chunks), key=lambda i: (abs(2 * i - (num_chunks - 1)), i))
    longer = set(middle_first[:extra])
    return [base + (i in longer) for i in range(num_chunks)]


def chunk_sizes_beside(num_layers: int, num_chunks: int, worth: int, least: int) -> list[int]:
    """Layers per chunk where the first chunk holds something that is worth as many layers, and at least `least`."""
    if num_chunks == 1:
        return [num_layers]
    first = max(chunk_sizes(num_layers + worth, num_chunks)[0] - worth, least)
    first = max(min(first, num_layers - (num_chunks - EDGES)), 0)
    return [first, *_after_first(num_layers - first, num_chunks - 1)]


def _after_first(num_layers: int, num_chunks: int) -> list[int]:
    """As even as possible; the last chunk, which holds the head, is the last to get an extra layer. Only one of these
    chunks holds more than layers, so the remainder goes to those from the front and not, as in `chunk_sizes`, to those
    farthest from both ends."""
    base, extra = divmod(num_layers, num_chunks)
    return [base + (i < extra) for i in range(num_chunks)]


def stack_sizes(num_layers: int, num_chunks: int, stacks: Stacks) -> list[int]:
    """Layers per chunk of an encoder and a decoder: no chunk holds layers of both, and the encoder has as many chunks
    as make the slowest chunk the fastest. The last chunk holds the head, too."""
    if num_chunks == 1:
        return [num_layers]
    encoder_layers, decoder_layers = stacks.encoder_layers, num_layers - stacks.encoder_layers

    def slowest(chunks: int) -> float:
        of_last = max(decoder_layers / (num_chunks - chunks), 1.0) + stacks.head_worth
        return max(ceil(encoder_layers / chunks) * stacks.worth, of_last)

    of_encoder = range(max(1, num_chunks - decoder_layers), min(encoder_layers, num_chunks - 1) + 1)
    chunks = min(of_encoder, key=slowest)
    return [*chunk_sizes(encoder_layers, chunks), *chunk_sizes(decoder_layers, num_chunks - chunks)]


def most_chunks(num_layers: int) -> int:
    """Chunks at most of an even split. Each inner chunk holds a layer; the first may hold the embedding alone, and the
    last the head. Megatron Core accepts it: `account_for_embedding_in_pipeline_split` and
    `account_for_loss_in_pipeline_split` of its TransformerConfig count each end as a layer (core_v0.16.1)."""
    return num_layers + EDGES


def joined_kinds(model: ModelSpec) -> tuple[int, ...]:
    """Kinds of layers that stay on the chunk of the layer before them: they see the tokens that its index chose, which
    no stage sends on (Megatron Core d98e8a64, _validate_dsa_index_share_pipeline_split)."""
    indices = [None if kind.attention is None else kind.attention.index for kind in model.kinds]
    return tuple(number for number, index in enumerate(indices) if index is not None and index.shared)


def lookup_layers(model: ModelSpec) -> tuple[int, ...]:
    """Layers beside which tokens are looked up: the first one of each stack that reads text."""
    if model.encoder is None:
        return (0,)
    return (0, model.encoder.layers) if model.encoder.reads_text else (model.encoder.layers,)


def groups_of(pattern: Sequence[int], joined: Collection[int]) -> tuple[int, ...]:
    """Layers of each group: a layer whose kind is in `joined` is in the group of the layer before it."""
    starts = [i for i, kind in enumerate(pattern) if i == 0 or kind not in joined]
    return tuple(end - start for start, end in zip(starts, [*starts[1:], len(pattern)], strict=True))


@lru_cache(maxsize=1024)
def group_sizes(groups: tuple[int, ...], num_chunks: int) -> tuple[int, ...]:
    """Layers per chunk where chunks hold whole groups: the least sum of squares, of equal ones the least at both ends.
    The first and the last chunk may hold none; all others, too, where there are more chunks than that needs."""
    may_be_empty = {0, num_chunks - 1} if num_chunks <= len(groups) + EDGES else set(range(num_chunks))
    ends = [0]
    for group in groups:
        ends.append(ends[-1] + group)
    last = num_chunks - 1
    # [groups so far] (sum of squares, layers at the ends), sizes: the best split of them into the chunks so far.
    best: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {0: ((0, 0), ())}
    for chunk in range(num_chunks):
        longer: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {}
        for start, ((squares, at_ends), sizes) in best.items():
            for end in range(start + (chunk not in may_be_empty), len(groups) + 1):
                size = ends[end] - ends[start]
                cost = (squares + size**2, at_ends + size * (chunk in (0, last)))
                if end not in longer or (cost, sizes) < longer[end]:
                    longer[end] = (cost, (*sizes, size))
        best = longer
    return best[len(groups)][1]


def first_cut(pattern: Sequence[int], joined: Collection[int], sizes: Sequence[int]) -> int | None:
    """The first layer, from 1, that a chunk starts with and that stays with the layer before it; None without any."""
    starts = list(accumulate(sizes))[:-1]
    return next((start + 1 for start in starts if 0 < start < len(pattern) and pattern[start] in joined), None)


def even_sizes(pattern: Sequence[int], edges: Edges, num_chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, as even as possible."""
    if not edges.joined:
        if (stacks := edges.stacks) is not None:
            return tuple(stack_sizes(len(pattern), num_chunks, stacks))
        if edges.tower is not None:
            return tuple(chunk_sizes_beside(len(pattern), num_chunks, edges.tower.worth, edges.tower.least))
        return tuple(chunk_sizes(len(pattern), num_chunks))
    return group_sizes(groups_of(pattern, edges.joined), num_chunks)
