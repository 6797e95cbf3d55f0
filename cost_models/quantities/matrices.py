"""The matrices of a model that Muon orthogonalises, and the work on each.

Muon (arXiv 2502.16982) keeps one moment of a matrix and updates it by the nearest orthogonal matrix, which
Newton-Schulz steps find. Adam updates all other parameters. Sources of what is one matrix: Megatron Core d98e8a64,
optimizer/emerging_optimizers.py (_is_muon_excluded: two dimensions, neither token table nor head; queries, keys and
values by themselves; gate and up projection together).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..layer_kinds.registry import kind_of
from ..specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from .matrix import Matrix


def layer_matrices(model: ModelSpec, kind: Layer) -> Iterator[tuple[Matrix, int]]:
    """The matrices of a layer of `kind`, and how many it has of each."""
    h, block = model.hidden, kind.feed_forward
    for matrix in _attention(kind.attention, h) if kind.attention is not None else ():
        yield matrix, 1
    for matrix in kind_of(kind.mixer).matrices(kind.mixer, h) if kind.mixer is not None else ():
        yield matrix, 1
    if isinstance(block, FeedForward):
        yield from _block(h, block.inner, block.gated)
    elif block is not None:
        yield from _experts(h, block)


def _experts(h: int, block: MixtureOfExperts) -> Iterator[tuple[Matrix, int]]:
    yield Matrix(((block.experts, h),), split=False), 1  # the router
    if block.latent is not None:
        yield Matrix(((block.latent, h),), split=False), 1
        yield Matrix(((h, block.latent),), split=False), 1
    for matrix, number in _block(block.latent or h, block.expert_inner, block.gated, expert=True):
        yield matrix, number * block.experts
    if block.shared_inner:
        yield from _block(h, block.shared_inner, block.gated)
    if block.shared_gate:
        yield Matrix(((1, h),), split=False), 1


def _attention(attention: Attention, hidden: int) -> Iterator[Matrix]:
    heads, width = attention.heads, attention.heads * attention.head_dim
    if attention.kv_lora_rank is None:
        keys, values = (attention.kv_heads * dim for dim in (attention.head_dim, attention.value_head_dim))
        gate = ((heads * attention.value_head_dim, hidden),) * attention.output_gate
        yield Matrix(((width, hidden), (keys, hidden), (values, hidden), *gate))
    else:
        if attention.q_lora_rank is not None:
            yield Matrix(((attention.q_lora_rank, hidden),), split=False)
        yield Matrix(((width, attention.q_lora_rank or hidden),))
        yield Matrix(((attention.kv_lora_rank + attention.rope_head_dim, hidden),), split=False)
        without_positions = attention.head_dim - attention.rope_head_dim
        yield Matrix(((heads * (without_positions + attention.value_head_dim), attention.kv_lora_rank),))
    yield Matrix(((hidden, heads * attention.value_head_dim),))
    if (index := attention.index) is not None and not index.shared:
        for shape in ((index.heads * index.head_dim, attention.q_lora_rank or hidden), (index.head_dim, hidden),
                      (index.heads, hidden)):  # fmt: skip
            yield Matrix((shape,), split=False)


def _block(hidden: int, inner: int, gated: bool, *, expert: bool = False) -> Iterator[tuple[Matrix, int]]:
    yield Matrix((((2 if gated else 1) * inner, hidden),), expert=expert), 1
    yield Matrix(((hidden, inner),), expert=expert), 1


def edge_matrices(model: ModelSpec) -> tuple[tuple[tuple[Matrix, int], ...], ...]:
    """Matrices of the edges, in the order of stages.py. Adam updates the token table and the head. Megatron marks only
    these two (language_module.py), so learned positions are a matrix of Muon."""
    table = Matrix(((model.vocab, model.embedding_dim or model.hidden),), orthogonalised=False)
    positions = Matrix(((model.learned_positions, model.hidden),), split=False)
    projection = Matrix(((model.hidden, 2 * model.hidden),), split=False)
    embedding = ((table, 1), (positions, 1)) if model.learned_positions else ((table, 1),)
    head = () if model.tied_embeddings else ((table, 1),)
    return embedding, head, ((projection, 1),) if model.mtp_layers else (), ((table, 1),)
