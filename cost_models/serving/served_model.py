"""Quantities of a model that serves: parameters that an iteration reads, bytes of the KV cache, FLOPs of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from ..arrays import Array, Ints
from ..layer_kinds.registry import kind_of
from ..quantities.memory import replicated_parameters
from ..quantities.params import expert_parameters, layer_parameters, table_parameters
from ..specs.model import Attention, Layer, MixtureOfExperts, ModelSpec
from ..specs.stack import StackSpec
from .kernel_counts import kernels_of
from .recurrences import scans_of

_SCALE_BYTES = 4  # of the scale of so many elements in fp8, in caches of latents and indexes (vLLM 0.32, Indexer)
_SCALED = 128


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """One model (0-d arrays) or one per row ([n], `stacked`). All sums are over the layers of the whole model. Compared
    by identity."""

    layers: Array
    moe_layers: Array
    hidden: Array
    dense_parameters: Array  # of layers, that a token passes, without routed experts
    # Of `dense_parameters`, what engines give every rank of tensor parallelism whole: down projections of latent
    # attention, its index, routers, norms (vLLM 0.32 and SGLang 0.5: ReplicatedLinear, disable_tp).
    whole_parameters: Array
    still_parameters: Array  # of layers, that it does not: modulation, which a sequence passes, and the other stream
    head_parameters: Array  # of the output projection
    tables: Array  # of that size in one stage: the token table and the projection; 1: tied, 0: those of another model
    expert_parameters: Array  # of all routed experts
    experts: Array  # of a layer, 1 where there are none
    top_k: Array  # of them, of a token
    kv_heads: Array  # parts that tensor parallelism can split the cache into (latent attention: 1)
    kv_elements: Array  # cached per token in layers that see all tokens before
    window: Array  # tokens that the other layers see
    window_kv_elements: Array  # cached per token of the window in those
    # Layers that see the tokens that an index chooses, which cache all (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).
    chosen: Array  # tokens
    chosen_kv_elements: Array  # of `kv_elements`, theirs
    chosen_fp8_bytes: Array  # cached per token beside a byte per element, where that is the format
    index_bytes: Array  # of the keys of their indexes per token, whole on each rank
    state_bytes: Array  # of a sequence, kept by the recurrences and convolutions of all layers; ranks split them
    scan_flops: Array  # of the recurrences of all layers, per token of a prompt; ranks split them
    scan_bytes: Array  # the same, that they read and write
    # FLOPs of scores and values per pair of a query and a token that it sees, full layers and windowed layers.
    pair_flops: Array
    window_pair_flops: Array
    decode_pair_flops: Array  # the same of full layers in decoding: latent attention works on the latents there
    chosen_pair_flops: Array  # of those layers, per chosen token
    index_pair_flops: Array  # of their indexes, per token before, as of products in 16 bits
    kernels: Array  # of an iteration, in all layers
    block_elements: Array  # of a token, that the widest block of a layer makes of its input and has at once

    @classmethod
    def of(cls, model: ModelSpec, stack: StackSpec) -> ServedModel:
        """The model without its modules for further tokens. stack: the kernels of its recurrences."""
        tables = 1 if model.tied_embeddings else 2
        return cls._of(model, stack, [model.kinds[index] for index in model.pattern], beside=0, tables=tables)

    @classmethod
    def of_next_tokens(cls, model: ModelSpec, stack: StackSpec) -> ServedModel:
        """One module for further tokens: a layer, and a projection of the hidden state beside the embedding
        (DeepSeek-V3, arXiv 2412.19437, section 2.2). The token table and the head are the model's; the head is read
        again."""
        index = model.mtp_pattern[0] if model.mtp_pattern else model.pattern[-1]
        return cls._of(model, stack, [model.kinds[index]], beside=2 * model.hidden**2, tables=0)

    def dense_of_rank(self, tp: Array) -> Array:
        """[n] of `dense_parameters`, those that a rank has and multiplies its tokens with."""
        return np.asarray((self.dense_parameters - self.whole_parameters) / tp + self.whole_parameters)

    @cached_property
    def chooses(self) -> bool:
        """Whether an index of a layer chooses tokens."""
        return bool(self.chosen.any() or self.index_bytes.any() or self.index_pair_flops.any())

    @cached_property
    def windowed(self) -> bool:
        """Whether layers see a window alone."""
        return bool(self.window.any())

    def read_elements(self, context: Array) -> Array:
        """[n] cached, that attention reads for a sequence with so many tokens before."""
        read = (self.kv_elements - self.chosen_kv_elements) * context if self.chooses else self.kv_elements * context
        if self.windowed:
            read = read + self.window_kv_elements * np.minimum(context, self.window)
        if self.chooses:
            read = read + self.chosen_kv_elements * np.minimum(context, self.chosen)
        return np.asarray(read)

    def decode_flops(self, context: Array, tp: Array) -> Array:
        """[n] of the attention of a token on one of `tp` ranks. Indexes are whole on each."""
        everywhere = context * self.decode_pair_flops / tp
        return np.asarray(everywhere + self._chosen_flops(context, tp) if self.chooses else everywhere)

    def prompt_flops(self, context: Array, tp: Array) -> Array:
        """[n] the same of a prompt's token, which sees so many in the mean."""
        seen = context * self.pair_flops
        if self.windowed:
            seen = seen + np.minimum(context, self.window) * self.window_pair_flops
        return np.asarray(seen / tp + self._chosen_flops(context, tp) if self.chooses else seen / tp)

    def _chosen_flops(self, context: Array, tp: Array) -> Array:
        """Attention to chosen tokens works on the latents, in prompts too (vLLM 0.32, FlashMLASparseBackend)."""
        seen = np.minimum(context, self.chosen)
        return np.asarray(seen * self.chosen_pair_flops / tp + context * self.index_pair_flops)

    def rows(self, index: Ints) -> ServedModel:
        """The rows `index` [m] of columns [n]."""
        return ServedModel(**{field.name: getattr(self, field.name)[index] for field in fields(ServedModel)})

    @classmethod
    def none(cls) -> ServedModel:
        """No model."""
        names = (field.name for field in fields(cls))
        return cls(**{name: np.asarray(float(name in ("experts", "top_k", "kv_heads"))) for name in names})

    @classmethod
    def _of(cls, model: ModelSpec, stack: StackSpec, layers: Sequence[Layer], beside: int, tables: int) -> ServedModel:
        """Sums over the layers. The widest window counts where a model has several. beside: further parameters."""
        attentions = [kind.attention for kind in layers if kind.attention is not None]
        full = [block for block in attentions if block.window is None and block.index is None]
        sparse = [block for block in attentions if block.index is not None]
        indexes = [block.index for block in sparse if block.index is not None]
        own = [index for index in indexes if not index.shared]
        scan_flops, scan_bytes = scans_of(model, layers, stack)
        windowed = [block for block in attentions if block.window is not None]
        experts = [kind.feed_forward for kind in layers if isinstance(kind.feed_forward, MixtureOfExperts)]
        return cls(**{name: np.asarray(float(value)) for name, value in {
            "layers": len(layers), "moe_layers": len(experts), "hidden": model.hidden,
            "dense_parameters": beside + sum(_passed_parameters(model, kind) for kind in layers),
            "whole_parameters": sum(_whole_parameters(model, kind) for kind in layers),
            "still_parameters": sum(_dense_parameters(model, kind) - _passed_parameters(model, kind)
                                    for kind in layers),
            "head_parameters": table_parameters(model), "tables": tables,
            "expert_parameters": sum(expert_parameters(model, kind) for kind in layers),
            "experts": max((block.experts for block in experts), default=1),
            "top_k": max((block.top_k for block in experts), default=1),
            "kv_heads": min((1 if block.is_mla else block.kv_heads for block in attentions), default=1),
            "kv_elements": sum(map(kv_elements, full + sparse)),
            "window": max((block.window or 0 for block in windowed), default=0),
            "window_kv_elements": sum(map(kv_elements, windowed)),
            "chosen": max((index.top_k for index in indexes), default=0),
            "chosen_kv_elements": sum(map(kv_elements, sparse)),
            "chosen_fp8_bytes": sum(map(_fp8_bytes, sparse)),
            "index_bytes": sum(index.head_dim + _SCALE_BYTES * index.head_dim / _SCALED for index in own),
            "state_bytes": sum(_state_bytes(kind) for kind in layers),
            "scan_flops": scan_flops, "scan_bytes": scan_bytes,
            "pair_flops": sum(map(_pair_flops, full)),
            "window_pair_flops": sum(map(_pair_flops, windowed)),
            "decode_pair_flops": sum(map(_decode_pair_flops, full)),
            "chosen_pair_flops": sum(map(_decode_pair_flops, sparse)),
            # In fp8 (vLLM 0.32, SparseAttnIndexer), twice as fast as in 16 bits.
            "index_pair_flops": sum(2.0 * index.heads * index.head_dim / 2.0 for index in own),
            "kernels": kernels_of(layers),
            "block_elements": max((_block_elements(kind) for kind in layers), default=0),
        }.items()})  # fmt: skip


def stacked(models: Sequence[ServedModel]) -> ServedModel:
    """The models as columns [n]."""
    names = [field.name for field in fields(ServedModel)]
    return ServedModel(**{name: np.array([float(getattr(model, name)) for model in models]) for name in names})


def kv_elements(attention: Attention) -> int:
    """Elements cached per token: keys and values of all heads, or the latent and the positions of latent attention
    (DeepSeek-V2, arXiv 2405.04434, section 2.1.4); none where they are those of an earlier layer."""
    if attention.kv_lora_rank is not None:
        return attention.kv_lora_rank + attention.rope_head_dim
    if attention.takes_keys:
        return 0
    return attention.kv_heads * (attention.head_dim + attention.value_head_dim * (not attention.values_from_keys))


def _fp8_bytes(attention: Attention) -> float:
    """Positions stay in 16 bits, and 128 elements of the latent share a scale of 4 bytes: 656 bytes for 576 elements
    (`fp8_ds_mla` of vLLM 0.32, which SGLang 0.5 has, too)."""
    return attention.rope_head_dim + _SCALE_BYTES * (attention.kv_lora_rank or 0) / _SCALED


def keeps_states(model: ModelSpec) -> bool:
    """Whether a layer has a state for a sequence, in place of keys and values for each of its tokens."""
    return any(_state_bytes(kind) for kind in model.kinds)


def _state_bytes(kind: Layer) -> int:
    state = kind_of(kind.mixer).state if kind.mixer is not None else None
    halves, singles = state(kind.mixer) if state is not None else (0, 0)
    return 2 * halves + 4 * singles


def _dense_parameters(model: ModelSpec, kind: Layer) -> int:
    return sum(layer_parameters(model, kind).values()) - expert_parameters(model, kind)


def _passed_parameters(model: ModelSpec, kind: Layer) -> float:
    modulation = kind.streams * kind.modulation.parameters if kind.modulation is not None else 0
    return (_dense_parameters(model, kind) - modulation) / kind.streams


def _whole_parameters(model: ModelSpec, kind: Layer) -> float:
    named = layer_parameters(model, kind)
    return (replicated_parameters(kind, named) - named.get("modulation", 0)) / kind.streams


def _block_elements(kind: Layer) -> int:
    """Queries, keys, values and their sum; or the products before the activation function and its result. Blocks beside
    one another have both at once."""
    attention, block, heads, width = kind.attention, kind.feed_forward, 0, 0
    if attention is not None:
        heads = attention.heads * (attention.head_dim + attention.value_head_dim) + kv_elements(attention)
    if isinstance(block, MixtureOfExperts):
        width = (2 + block.gated) * (block.top_k * block.expert_inner + block.shared_inner)
    elif block is not None:
        width = (2 + block.gated) * block.inner
    return heads + width if kind.parallel_blocks else max(heads, width)


def _pair_flops(attention: Attention) -> float:
    return 2.0 * attention.heads * (attention.head_dim + attention.value_head_dim)


def _decode_pair_flops(attention: Attention) -> float:
    """Latent attention absorbs its up projections: scores over the latent and the positions, values over the latent."""
    if attention.kv_lora_rank is None:
        return _pair_flops(attention)
    return 2.0 * attention.heads * (2 * attention.kv_lora_rank + attention.rope_head_dim)
