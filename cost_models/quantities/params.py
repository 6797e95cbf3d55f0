"""Counts the parameters of a model by name, per layer kind and in total.

Every function is pure and counts elements, not bytes. Biases and norms are counted: the totals equal the element
counts of transformers' modules for each supported family (tests/cost_models/quantities/test_params.py).
Symbols: h hidden, a heads, g kv_heads, d head_dim, d_v value_head_dim, f inner, E experts, k top_k, V vocab.
Source of the general layer: Megatron-LM `theoretical_memory_usage.py`; biases and norms are derived here.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

from ..layer_kinds import (
    alternating_updates,
    augmented_residual,
    cross_attention,
    dense,
    experts,
    layer_inputs,
    residual_streams,
    sparse_attention,
    stack_start,
)
from ..layer_kinds import attention as attention_kind
from ..layer_kinds.registry import kind_of
from ..specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from ..specs.workload import LoraTarget
from . import vision


def attention_parameters(attention: Attention, hidden: int) -> dict[str, int]:
    """Elements of one attention block, including its index."""
    counts = attention_kind.parameters(attention, hidden)
    if attention.index is not None and not attention.index.shared:
        counts |= sparse_attention.index_parameters(attention, attention.index, hidden)
    return counts


def feed_forward_parameters(block: FeedForward | MixtureOfExperts, hidden: int) -> dict[str, int]:
    """Elements of one feed-forward block, dense or mixture of experts."""
    return dense.parameters(block, hidden) if isinstance(block, FeedForward) else experts.parameters(block, hidden)


def norm_parameters(num_norms: int, hidden: int, bias: bool) -> int:
    """num_norms·h weights, and as many biases for LayerNorm with bias."""
    return num_norms * hidden * (2 if bias else 1)


def layer_parameters(model: ModelSpec, kind: Layer) -> dict[str, int]:
    """Named parameter groups of one layer of `kind`; their sum is the layer.

    Raises nothing: a ModelSpec is checked where it is made.
    """
    counts = attention_parameters(kind.attention, model.hidden) if kind.attention is not None else {}
    if kind.mixer is not None:
        counts |= kind_of(kind.mixer).parameters(kind.mixer, model.hidden)
    if kind.cross_attention is not None:
        counts |= cross_attention.parameters(kind.cross_attention, model.hidden)
    counts |= stack_start.parameters(model, kind)
    if kind.feed_forward is not None:
        counts |= feed_forward_parameters(kind.feed_forward, model.hidden)
    modulation = kind.modulation
    num_norms = kind.num_norms if modulation is None else modulation.norms
    counts["norms"] = norm_parameters(num_norms, model.hidden, kind.norm_bias)
    if modulation is not None:
        counts["modulation"] = modulation.parameters
    counts |= augmented_residual.parameters(kind, model.hidden)
    counts |= alternating_updates.layer_parameters(model) | layer_inputs.layer_parameters(model)
    for name, number in residual_streams.block_parameters(model).items():
        counts[name] = kind.num_blocks * number
    return {name: model.towers * kind.streams * number for name, number in counts.items()}


def expert_parameters(model: ModelSpec, kind: Layer) -> int:
    """Routed experts of one layer of `kind` (0 when dense): what expert parallelism splits."""
    block = kind.feed_forward
    if not isinstance(block, MixtureOfExperts):
        return 0
    return block.experts * experts.one_expert_parameters(block, model.hidden)


def embedding_parameters(model: ModelSpec) -> int:
    """Input embedding V·h, learned positions and token types, embedding norm, the projection of a narrower embedding
    (opt-350m), and what makes residual streams and inputs of layers (Gemma 3n).

    Held by the first pipeline stage.
    """
    norm = norm_parameters(int(model.embedding_norm), model.hidden, model.norm_bias)
    norm += 0 if model.diffusion is None else model.diffusion.embedders
    norm += 0 if model.graph is None else model.hidden  # bias of the product of the features
    learned = (model.learned_positions + model.token_types) * model.hidden
    norm += alternating_updates.end_parameters(model) + layer_inputs.embedding_parameters(model)
    return table_parameters(model) + widening_parameters(model) + model.towers * (learned + norm)


def table_parameters(model: ModelSpec) -> int:
    """The token table, with one row per token, or per value of a token of latents. A tied head shares it, and tensor
    parallelism splits it."""
    return model.towers * model.inputs * (model.embedding_dim or model.hidden)


def widening_parameters(model: ModelSpec) -> int:
    """The projection between a narrower embedding and the layers (opt-350m), at either end of the model."""
    width = model.embedding_dim or model.hidden
    return 0 if width == model.hidden else width * model.hidden


def head_parameters(model: ModelSpec) -> int:
    """Output projection V·h (0 when tied to the embedding), its bias, and what is between it and the layers.

    Held by the last pipeline stage; the final norm is counted apart (`final_norm_parameters`).
    """
    own = model.token_head and not model.tied_embeddings
    matrix = model.vocab * (model.embedding_dim or model.hidden) if own else 0
    matrix += 0 if model.diffusion is None else model.diffusion.ends
    return matrix + beside_head_parameters(model) + (model.vocab if model.head_bias else 0)


def beside_head_parameters(model: ModelSpec) -> int:
    """Parameters of a head that tensor parallelism does not split: the projection down to a narrower embedding, the
    dense layer h·h + h before the norm (BertPredictionHeadTransform of transformers 5.24), the head of the first token
    (BertPooler, BertOnlyNSPHead): another such layer and n·(h + 1), and n·h of one that gives each token n values."""
    h, classes = model.hidden, model.pooled_classes
    dense = (int(model.head_transform) + int(classes > 0)) * (h * h + h)
    vectors = 0 if model.retrieval is None else model.towers * model.retrieval.projection * (h + 1)
    values = model.token_labels * (model.embedding_dim or h)
    return widening_parameters(model) + dense + classes * (h + 1) + vectors + values


def final_norm_parameters(model: ModelSpec) -> int:
    """The norm before the output projection: h, twice with bias, and that before its dense layer; and the weights that
    sum several residual streams."""
    streams = residual_streams.head_parameters(model) + alternating_updates.end_parameters(model)
    norms = int(model.final_norm) + int(model.transform_norm)
    return model.towers * norm_parameters(norms, model.hidden, model.norm_bias) + streams


def _outside_layers(model: ModelSpec) -> int:
    tower = sum(vision.parameters(model.tower).values()) if model.tower is not None else 0
    return tower + embedding_parameters(model) + final_norm_parameters(model) + head_parameters(model)


def total_parameters(model: ModelSpec) -> int:
    """All parameters with those of a vision tower, tied weights once, MTP modules not included.

    For a GPT (f = 4h, biases, tied): 12·l·h²·(1 + 13/(12h) + (V+s)/(12·l·h)) + 2h. Source: Megatron SC21
    (arXiv 2104.04473, equation 2), which leaves out the 2h of the final norm.
    """
    layers = sum(count * sum(layer_parameters(model, model.kinds[index]).values())
                 for index, count in Counter(model.pattern).items())  # fmt: skip
    return layers + _outside_layers(model)


def active_parameters(model: ModelSpec) -> int:
    """Active parameters per token: `total_parameters` with top_k of the routed experts."""
    idle = sum(count * _idle(model, model.kinds[index]) for index, count in Counter(model.pattern).items())
    return total_parameters(model) - idle


def _idle(model: ModelSpec, kind: Layer) -> int:
    block = kind.feed_forward
    if not isinstance(block, MixtureOfExperts):
        return 0
    return (block.experts - block.top_k) * experts.one_expert_parameters(block, model.hidden)


def lora_shapes(model: ModelSpec, kind: Layer, targets: tuple[str, ...]) -> dict[str, tuple[int, int, bool]]:
    """Inputs, outputs, and whether tensor parallelism splits the outputs, of each projection of `kind` in `targets`.

    MLA: q, k, v are the up projections. gate, up, down are the dense or shared block; routed experts take no adapters.
    """
    shapes = attention_kind.projection_shapes(kind.attention, model.hidden) if kind.attention is not None else {}
    if (block := kind.feed_forward) is not None:
        inner = block.inner if isinstance(block, FeedForward) else block.shared_inner
        shapes |= {"gate": (model.hidden, inner, True)} if block.gated else {}
        shapes |= {"up": (model.hidden, inner, True), "down": (inner, model.hidden, False)}
    wanted = {name: shapes[name] for name in targets if name in shapes}
    return {name: shape for name, shape in wanted.items() if min(shape[:2]) > 0}


def lora_targets(model: ModelSpec) -> tuple[str, ...]:
    """The projections of any layer that take adapters."""
    every: tuple[str, ...] = get_args(LoraTarget)
    have = {name for kind in model.kinds for name in lora_shapes(model, kind, every)}
    return tuple(name for name in every if name in have)


def lora_parameters(model: ModelSpec, kind: Layer, rank: int, targets: tuple[str, ...]) -> tuple[int, int]:
    """Adapter elements of one layer, rank x (inputs + outputs) per targeted projection (LoRA, arXiv 2106.09685): those
    that tensor parallelism splits, on the side that it splits of the projection, and those that every rank has."""
    shapes = lora_shapes(model, kind, targets).values()
    split = sum(outputs if splits_outputs else inputs for inputs, outputs, splits_outputs in shapes)
    whole = sum(inputs if splits_outputs else outputs for inputs, outputs, splits_outputs in shapes)
    return rank * split, rank * whole
