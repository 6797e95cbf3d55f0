"""Kernels of an engine's layers in an iteration: for prompts the host launches them one by one, without CUDA graphs.

They are counted in the layers of vLLM 0.32 (LlamaDecoderLayer, Qwen3DecoderLayer, DeepseekV2DecoderLayer, GptOss'
TransformerBlock; fused_experts_impl for experts), with norms fused with sums before them. Casts to narrow formats and
collectives are left out: engines fuse them, or not, by release, whose seconds are fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..layer_kinds.registry import kind_of
from ..specs.model import Layer, MixtureOfExperts

# Norm, projection of queries, keys and values, positions, write of the cache, attention, projection of its output.
_ATTENTION = 6.0
_HEAD_NORMS = 2.0  # of queries and of keys
# Beside the same, with one for both down projections: norms of the two latents, up projections of queries, of keys and
# of values, keys joined with their positions.
_LATENT = 6.0
_DENSE = 4.0  # norm, projection up, activation, projection down
# Norm, router, choice, order of tokens (2), projections up, activation, projections down, sum of the copies.
_EXPERTS = 9.0
_SHARED = 4.0  # of shared experts: projection up, activation, projection down, sum
TOWER_KERNELS = _ATTENTION + _DENSE - 2.0  # of a layer of a vision tower, without positions and cache
_AROUND_SCAN = 3.0  # norm, projection before the recurrence and behind it


def kernels_of(layers: Sequence[Layer]) -> float:
    """Kernels of an iteration in all layers."""
    return sum(map(_of_layer, layers))


def _of_layer(kind: Layer) -> float:
    attention, block, number = kind.attention, kind.feed_forward, 0.0
    if attention is not None:
        number += _ATTENTION
        number += _LATENT if attention.is_mla else _HEAD_NORMS * (attention.norm_parameters > 0)
    if kind.mixer is not None:
        number += kind_of(kind.mixer).kernels + _AROUND_SCAN
    if isinstance(block, MixtureOfExperts):
        number += _EXPERTS + _SHARED * (block.shared_inner > 0)
    elif block is not None:
        number += _DENSE
    return number
