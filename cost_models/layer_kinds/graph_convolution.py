"""Graph convolution: a vertex sums what its neighbours have, then goes through a product.

GCN (arXiv 1609.02907), GraphSAGE with means (1706.02216) and GCNII (2007.02133). The sum is a product with a sparse
matrix: every edge reads a row of the features, so it is bound by memory. Ranks that part the vertices (context
parallelism) send the rows of vertices that have neighbours on other ranks, in every layer and both passes; stages of a
pipeline have all vertices of their layers and send none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import Exchange, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind

_INDEX_BYTES = 4  # of a neighbour's number, and of its weight


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphConvolution(Mixer):
    """Sizes of a graph convolution of `hidden` channels."""

    kind: ClassVar[str] = "graph_convolution"
    products: int = 1  # 2: one of the sum and one of the vertex itself (GraphSAGE)
    bias: bool = True
    initial: bool = False  # the output of the first product is added in every layer, and the layer's input (GCNII)


def _parameters(mixer: GraphConvolution, hidden: int) -> dict[str, int]:
    counts = {"mixer_in": mixer.products * hidden * hidden}
    return counts | {"mixer_bias": hidden} if mixer.bias else counts


def _matrices(mixer: GraphConvolution, hidden: int) -> tuple[Matrix, ...]:
    return (Matrix(((hidden, hidden),)),) * mixer.products


def _add(builder: Builder, ops: LayerOperations, mixer: GraphConvolution) -> None:
    graph, shard, h, w = builder.model.graph, builder.shard, builder.model.hidden, builder.activation_bytes
    if graph is None:
        raise RuntimeError("a graph convolution needs a graph")
    rows = shard.tokens
    builder.add_gemm(ops, "mixer vertices", rows, h, h, count=mixer.products)
    # A row per edge and its index and weight, and the sum written; backward along the edges the other way.
    moved = rows * (graph.degree * (w * h + 2 * _INDEX_BYTES) + w * h)
    ops.traffic.append(MemoryTraffic("sums over neighbours", moved, moved, tag("attn"), fusable=False))
    added = (2 + 2 * mixer.initial) * w * h * rows
    ops.traffic.append(MemoryTraffic("activation of vertices", added, 1.5 * added))
    parts = shard.cp
    leaving = np.where(parts > 1, w * h * rows * graph.copies_on(parts), 0.0)
    buffer = leaving * parts / np.maximum(parts - 1, 1)  # of an all-to-all, a part of which stays
    ops.exchanges.append(Exchange("cp", "all_to_all", buffer, parts, shard.tp, 1, 1, tag("attn")))
    if mixer.products > 1 and ops.keeps_input():
        ops.saved.append(Saved("vertices themselves", builder.kept_input * h * rows))
    if past_embeddings(builder):
        ops.saved.append(Saved("embeddings of the last step", w * h * rows))


def past_embeddings(builder: Builder) -> bool:
    """Whether the graph comes in chunks, which take what the last step left of the chunks behind them."""
    return builder.workload.global_batch > 1


KIND = MixerKind(
    spec=GraphConvolution, parameters=_parameters, replicated=("mixer_bias",), matrices=_matrices, add=_add,
    heads=lambda mixer: {"parts of the channels of a vertex": (1, True)},  # tp 1
    state=None,  # of sequences, which it has not
    kernels=4.0,  # the sum, the product, activation and dropout
)  # fmt: skip
