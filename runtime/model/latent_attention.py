"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): projections through latents.

The down projections are replicated; each tp rank computes the latents of its part of the sequence. The up projections
are split by heads and gather the latents, which are narrower than their outputs. Rotary positions apply to a part of
each query head, and to one key part that all heads share. Core attention is that of other decoders.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...cost_models.specs.model import Attention
from ..parallel import tensor_parallel as tp
from ..parallel.recompute import whole
from ..parallel.split_backward import linear
from .block import Block, Context
from .norms import Norm
from .rope import rotate

Positions = tuple[Tensor, Tensor] | None
Heads = tuple[Tensor, Tensor, Tensor]


_LATENT_EPSILON = 1e-6  # of the norms of latents, independent of the model's other norms (DeepseekV3Attention)


class LatentAttention(Block):
    """Latent attention, heads split over tp; [b, s/tp, h] -> [b, s/tp, h]. Symbols: n heads here, d head dim."""

    def __init__(self, context: Context, spec: Attention, hidden: int) -> None:
        super().__init__(context)
        self.spec, self.rank, self.rope = spec, spec.kv_lora_rank or 0, spec.rope_head_dim
        self.nope = spec.head_dim - self.rope
        self.q_norm = None
        if spec.q_lora_rank is None:
            self.add_product("q", [spec.heads * spec.head_dim, hidden], 0, "q")
        else:
            self._down("q", spec.q_lora_rank, hidden)
            self.q_norm = Norm(context, spec.q_lora_rank, bias=False, epsilon=_LATENT_EPSILON)
            self.add_product("q_up", [spec.heads * spec.head_dim, spec.q_lora_rank], 0, "q")
        self._down("kv", self.rank + self.rope, hidden)
        self.kv_norm = Norm(context, self.rank, bias=False, epsilon=_LATENT_EPSILON)
        # Separate tensors, so that a value does not keep the keys of the same projection alive.
        self.add_product("k_up", [spec.heads * self.nope, self.rank], 0, "k")
        self.add_product("v_up", [spec.heads * spec.value_head_dim, self.rank], 0, "v")
        self.add_product("o", [hidden, spec.heads * spec.value_head_dim], 1, "o")
        if spec.output_bias:
            self.add("o_bias", [hidden], start=0.0)

    def _down(self, name: str, rank: int, hidden: int) -> None:
        self.add(f"{name}_down", [rank, hidden])
        if self.spec.qkv_bias:
            self.add(f"{name}_down_bias", [rank], start=0.0)

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        query = x
        if self.q_norm is not None:
            query = self.q_norm(linear(x, self.tensor("q_down"), self.maybe("q_down_bias")))
        compressed = linear(x, self.tensor("kv_down"), self.maybe("kv_down_bias"))
        latent, shared = torch.split(compressed, [self.rank, self.rope], dim=-1)
        out = self._core(positions, query, self.kv_norm(latent), shared).transpose(1, 2).flatten(2)
        return self.row(out, "o")

    def _core(self, positions: Positions, *latents: Tensor) -> Tensor:
        """Attention over the up-projected latents. Where `mla` is recomputed, only the latents are kept."""
        context, make = self.context, partial(self._heads, positions)
        recompute = context.recompute
        if {"attn", "mla"} <= recompute.modules:
            return whole(lambda *tensors: context.attention(*make(*tensors)), *latents)
        if "mla" in recompute.modules:
            q, k, v = recompute.outputs("mla", lambda *tensors: context.scatter_heads(*make(*tensors)), *latents)
            return context.core(q, k, v)
        return recompute.region("attn", context.attention, *make(*latents))

    def _heads(self, positions: Positions, query: Tensor, latent: Tensor, shared: Tensor) -> Heads:
        """Up projection of latents to queries, keys [b, n, s, d] and values [b, n, s, value dim].

        Inputs: latents [b, s/tp, rank] of queries, those of keys and values, and the shared key part [b, s/tp, rope].
        """
        group, up = self.context.group, "q" if self.q_norm is None else "q_up"
        (q,) = self.columns(query, up)
        k, v = self.columns(latent, "k_up", "v_up")
        widths = self.spec.head_dim, self.nope, self.spec.value_head_dim
        q, k, v = (part.view(*part.shape[:2], -1, width) for part, width in zip((q, k, v), widths, strict=True))
        turned = tp.from_sequence_parts(shared, group)[:, :, None]
        if positions is not None:
            turned = rotate(turned, *positions)
            q = torch.cat([q[..., : self.nope], rotate(q[..., self.nope :], *positions)], dim=-1)
        if self.context.numerics.latent_scale != 1.0:
            q = q * self.context.numerics.latent_scale
        k = torch.cat([k, turned.expand(*k.shape[:3], self.rope)], dim=-1)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
