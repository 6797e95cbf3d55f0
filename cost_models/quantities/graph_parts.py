"""Parts of a layer in CUDA graphs: their products, and tensors at their ends (graph_memory.py has the reasons)."""

from __future__ import annotations

import numpy as np

from ..arrays import Array, Ints
from ..cuda_graphs import IN_GRAPH, holds_whole_layer
from ..layer_kinds.registry import kind_of
from ..specs.model import Layer, MixtureOfExperts


def kept_outputs(codes: Ints, kind: Layer) -> Array:
    """[n] tensors as large as a layer's input that its graphs keep per micro-batch in flight, and an eager layer does
    not."""
    block, router = kind.feed_forward, IN_GRAPH["router"][codes]
    shared = isinstance(block, MixtureOfExperts) and block.shared_inner > 0
    whole = holds_whole_layer(codes, parts_of(kind))
    return np.where(whole | (router & shared), 1.0, 0.0)


def kept_gradients(codes: Ints, kind: Layer) -> Array:
    """[n] tensors as large as a layer's input: gradients of the outputs of its largest graph. A graph that ends with
    the router gives the residual, the normed tokens, and the output of the shared experts."""
    block = kind.feed_forward
    any_graph = np.any([held[codes] for part, held in IN_GRAPH.items() if part in parts_of(kind)], axis=0)
    whole = holds_whole_layer(codes, parts_of(kind))
    more = 1.0 + (isinstance(block, MixtureOfExperts) and block.shared_inner > 0) if kind.is_moe else 0.0
    return np.where(any_graph, 1.0 + np.where(~whole & IN_GRAPH["router"][codes], more, 0.0), 0.0)


def parts_of(kind: Layer) -> tuple[str, ...]:
    """The parts of a layer in cuda_graphs.PARTS."""
    mixing = mixing_parts_of(kind)
    if kind.feed_forward is None:
        return mixing
    return mixing + (("router", "shared", "experts") if kind.is_moe else ("mlp",))


def mixing_parts_of(kind: Layer) -> tuple[str, ...]:
    """The parts of a layer in cuda_graphs.PARTS that mix tokens."""
    attention = ("attention",) if kind.attention is not None else ()
    mixer = (kind_of(kind.mixer).graph_part,) if kind.mixer is not None else ()
    return tuple(dict.fromkeys((*attention, *mixer)))


def part_of_product(name: str, kind: Layer) -> str:
    """The part of cuda_graphs.PARTS that has a product (Gemm.name) of a layer; adapters count as attention's."""
    is_moe = kind.is_moe
    if name.startswith("mixer") and kind.mixer is not None:
        return kind_of(kind.mixer).graph_part
    if name in ("up", "down"):
        return "shared" if is_moe else "mlp"
    if name == "weights of streams":  # those of the feed-forward block, which all layers of such models have
        return "router" if is_moe else "mlp"
    return "experts" if name.startswith("experts") else name if name == "router" else "attention"
