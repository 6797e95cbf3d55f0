"""The matrices of a model that Muon orthogonalises, and the work on each.

Muon (arXiv 2502.16982) keeps one moment of a matrix and updates it by the nearest orthogonal matrix, which
Newton-Schulz steps find. Adam updates all other parameters. Sources of what is one matrix: Megatron Core d98e8a64,
optimizer/emerging_optimizers.py (_is_muon_excluded: two dimensions, neither token table nor head; queries, keys and
values by themselves; gate and up projection together).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from ..layer_kinds import (
    alternating_updates,
    attention,
    augmented_residual,
    dense,
    experts,
    layer_inputs,
    residual_streams,
    sparse_attention,
)
from ..layer_kinds.registry import kind_of
from ..specs.model import FeedForward, Layer, ModelSpec
from .matrix import Matrix


def layer_matrices(model: ModelSpec, kind: Layer) -> Iterator[tuple[Matrix, int]]:
    """The matrices of a layer of `kind`, and how many it has of each; without those of cross attention and modulation,
    of models that do not train by Muon."""
    for matrix, number in _of_one_stream(model, kind):
        yield matrix, kind.streams * number


def _of_one_stream(model: ModelSpec, kind: Layer) -> Iterator[tuple[Matrix, int]]:
    h, block = model.hidden, kind.feed_forward
    if (mixing := kind.attention) is not None:
        for matrix in attention.matrices(mixing, h):
            yield matrix, 1
        if mixing.index is not None and not mixing.index.shared:
            for matrix in sparse_attention.index_matrices(mixing, mixing.index, h):
                yield matrix, 1
    for matrix in kind_of(kind.mixer).matrices(kind.mixer, h) if kind.mixer is not None else ():
        yield matrix, 1
    yield from residual_streams.matrices(model, kind.num_blocks)
    beside = (alternating_updates.matrices(model), augmented_residual.matrices(kind, h), layer_inputs.matrices(model))
    yield from ((matrix, 1) for matrix in chain.from_iterable(beside))
    if isinstance(block, FeedForward):
        for matrix in dense.matrices(h, block.inner, block.gated):
            yield matrix, 1
    elif block is not None:
        yield from experts.matrices(block, h)


def edge_matrices(
    model: ModelSpec, *, splits_projection: bool = False
) -> tuple[tuple[tuple[Matrix, float], ...], ...]:
    """Matrices of the edges, in the order of stages.py. Adam updates the token table and the head. Megatron marks only
    these two (language_module.py), so tables of positions and types and dense layers of a head are matrices of Muon."""
    table = Matrix(((model.vocab, model.embedding_dim or model.hidden),), orthogonalised=False)
    projection = Matrix(((model.hidden, 2 * model.hidden),), split=splits_projection)
    tables = [rows for rows in (model.learned_positions, model.token_types) if rows]
    embedding = ((table, 1.0), *((Matrix(((rows, model.hidden),), split=False), 1.0) for rows in tables))
    own = model.token_head and not model.tied_embeddings
    head = (*(((table, 1.0),) if own else ()), *_beside_head(model))
    share = 1 / model.mtp_layers if model.mtp_shared and model.mtp_layers else 1.0  # of one that modules share
    return embedding, head, ((projection, share),) if model.mtp_layers else (), ((table, 1),)


def _beside_head(model: ModelSpec) -> Iterator[tuple[Matrix, float]]:
    h, classes = model.hidden, model.pooled_classes
    if dense := int(model.head_transform) + int(classes > 0):
        yield Matrix(((h, h),), split=False), dense
    if classes:
        yield Matrix(((classes, h),), split=False), 1
    if model.token_labels:
        yield Matrix(((model.token_labels, model.embedding_dim or h),), split=False), 1
