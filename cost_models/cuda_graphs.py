"""CUDA graphs of a layout: the values of its field `cuda_graphs`, the remaining launches, and the parts of a layer in
separate graphs (`quantities/graph_memory.py` counts their memory).

Modules are those of Megatron Core (its CudaGraphModule). A graph of `moe` holds the router, too;
`moe_preprocess` (counts per expert and rank) is held only beside the router.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from ..errors import InputError
from .arrays import Array, Ints, Mask

_ATTENTION = ("", "attn")
_MIXER = ("", "mamba")
_DENSE = ("", "mlp")
_EXPERTS = ("", "moe", "moe_router", "moe_router+moe_preprocess")
_MODULES = tuple(
    "+".join(part for part in parts if part) for parts in product(_ATTENTION, _MIXER, _DENSE, _EXPERTS)
)[1:]
# `layer`: all kernels of a layer. `full_iteration`: those of all passes of a step.
CUDA_GRAPHS = ("none", *_MODULES, "layer", "full_iteration")
# The same in the id of a layout.
_SHORT = {"moe_router": "router", "moe_preprocess": "pre"}
GRAPH_TOKENS = ("none", *(f"({'+'.join(_SHORT.get(part, part) for part in name.split('+'))})" for name in _MODULES),
                "layer", "full")  # fmt: skip
GRAPH_CODE = {name: code for code, name in enumerate(CUDA_GRAPHS)}
WHOLE = ("layer", "full_iteration")

# Share of the launches left where a graph holds a whole layer. FIDELITY 5: host time is divided by 2 to 5 by graphs of
# layers; one launch replays a whole iteration (assumed: a twentieth remains, of the optimizer and the data).
_OF_LAYER, _OF_ITERATION = 0.2, 0.05
# Share of a layer's launches left by a graph of attention, or of another block that mixes tokens. Attention and norms
# are 11 of the 14 kernels of a layer with TransformerEngine (stacks/megatron-core.yaml): the feed-forward block's three
# remain.
_BESIDE_MIXING = 0.2
# Kernels of an expert block that route and count: softmax, top-k, permutation maps, counts per expert and rank
# (assumed: over a third of the 110 of stacks/generic.yaml).
ROUTER_KERNELS = 40
# Bytes set apart for what experts save over the average, where a graph holds the iteration: sizes are not known at its
# capture (Megatron-Bridge, perf_recipes: moe_paged_stash_buffer_size_factor_cuda).
STASH_FACTOR = 1.2
# Rows of a rank's experts in such a graph, over those that it gets on average (the same recipes:
# moe_expert_rank_capacity_factor).
RANK_CAPACITY = 1.5


def code_of_token(token: str) -> int:
    """The code that a token of a layout's id stands for, `none` among them. Raises InputError for another text."""
    if token not in GRAPH_TOKENS:
        raise InputError(f"-g{token} names no CUDA graphs", hint=f"known: -g{', -g'.join(GRAPH_TOKENS[1:])}")
    return GRAPH_TOKENS.index(token)


def modules_of(name: str) -> tuple[str, ...]:
    """The modules that graphs of a value hold; none for `none`, `layer` and `full_iteration`."""
    return tuple(name.split("+")) if name in _MODULES else ()


_WHOLE_SHARE = np.array([{"layer": _OF_LAYER, "full_iteration": _OF_ITERATION}.get(name, 1.0) for name in CUDA_GRAPHS])
_MIXING = {"attention": "attn", "mixer": "mamba"}
_HOLDS = {part: np.array([module in modules_of(name) for name in CUDA_GRAPHS]) for part, module in _MIXING.items()}
_HOLDS_ROUTER = np.array(["moe_router" in modules_of(name) for name in CUDA_GRAPHS])


def launched_share(codes: Ints) -> Array:
    """[n] of all launches, the share that graphs of whole layers or steps leave."""
    return _WHOLE_SHARE[codes]


def launched_beside_mixing(codes: Ints, parts: tuple[str, ...]) -> Array:
    """[n] of a layer's launches, the share that graphs of the blocks that mix tokens leave. parts: those blocks."""
    held = np.all([_HOLDS[part][codes] for part in parts], axis=0) & bool(parts)
    return np.where(held, _BESIDE_MIXING, 1.0)


def router_launches(codes: Ints) -> Array:
    """[n] launches of an expert block that a graph of the router holds."""
    return np.where(_HOLDS_ROUTER[codes], float(ROUTER_KERNELS), 0.0)


def has_fixed_shapes(codes: Ints) -> Mask:
    """[n] whether a graph holds the experts, so that no counts of tokens are read back."""
    return _WHOLE_SHARE[codes] < 1.0


# The parts of layers whose products may be in a graph (graph_parts.parts_of). Of mixers, graphs of modules hold
# Mamba-2's (`mamba`: Megatron Core's MambaLayer), and gated DeltaNet's as attention (MixerKind.graph_part).
PARTS = ("attention", "mixer", "mlp", "shared", "router", "experts")
_PART_MODULES = {"attention": ("attn",), "mixer": ("mamba",), "mlp": ("mlp",), "shared": ("moe_router", "moe"),
                 "router": ("moe_router", "moe"), "experts": ("moe",)}  # fmt: skip


def _in_graph(part: str) -> Mask:
    """[code] whether graphs of layers hold a part. One of the whole iteration has no others beside it."""
    return np.array([name == "layer" or not set(_PART_MODULES[part]).isdisjoint(modules_of(name))
                     for name in CUDA_GRAPHS])  # fmt: skip


IN_GRAPH = {part: _in_graph(part) for part in PARTS}
_ENDS_AT_ROUTER = np.array(["moe_router" in modules_of(name) for name in CUDA_GRAPHS])
_HOLDS_PREPROCESSING = np.array(["moe_preprocess" in modules_of(name) for name in CUDA_GRAPHS])
IS_ITERATION = np.array([name == "full_iteration" for name in CUDA_GRAPHS])


def returns_normed_tokens(codes: Ints, *, permutes_first: bool) -> Mask:
    """[n] whether graphs return the input of the experts, the output of a norm: no recomputation frees that then.
    permutes_first: whether tokens are permuted before they travel, in the preprocessing; a graph with that returns the
    permuted ones (Megatron-LM, core/transformer/transformer_layer.py, can_recompute_pre_mlp_layernorm_for_cudagraph).
    """
    return np.asarray(_ENDS_AT_ROUTER[codes] & ~(permutes_first & _HOLDS_PREPROCESSING[codes]))


def holds_whole_layer(codes: Ints, parts: tuple[str, ...]) -> Mask:
    """[n] whether one graph holds all `parts` of a layer."""
    return np.asarray(np.all([IN_GRAPH[part][codes] for part in parts], axis=0))
