"""Grouped-query attention, heads split over tensor-parallel ranks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ...cost_models.specs.model import Attention
from .block import Block, Context
from .blocked import Scores, blocked
from .norms import Norm
from .rope import rotate


class SelfAttention(Block):
    """Grouped-query attention, heads split over tp; [b, s/tp, h] -> [b, s/tp, h]."""

    def __init__(self, context: Context, spec: Attention, hidden: int) -> None:
        super().__init__(context)
        self.spec = spec
        widths = {"q": spec.heads * spec.head_dim, "k": spec.kv_heads * spec.head_dim,
                  "v": spec.kv_heads * spec.value_head_dim}  # fmt: skip
        for name, width in widths.items():
            self.add_product(name, [width, hidden], 0, name)
            if spec.qkv_bias:
                self.add(f"{name}_bias", [width], 0, start=0.0)
        self.add_product("o", [hidden, spec.heads * spec.value_head_dim], 1, "o")
        if spec.output_gate:
            self.add("gate", [spec.heads * spec.value_head_dim, hidden], 0)
            if spec.qkv_bias:
                self.add("gate_bias", [spec.heads * spec.value_head_dim], 0, start=0.0)
        if spec.output_bias:
            self.add("o_bias", [hidden], start=0.0)
        # One weight per element of a head (Qwen 3, Gemma 3) or of all heads (OLMo 2).
        self.of_heads = spec.norm_parameters == 2 * spec.head_dim
        self.q_norm = self._norm(widths["q"]) if spec.norm_parameters else None
        self.k_norm = self._norm(widths["k"]) if spec.norm_parameters else None
        if spec.sink_parameters:
            self.add("sinks", [spec.sink_parameters], 0)

    def _norm(self, width: int) -> Norm:
        if self.of_heads:
            return Norm(self.context, self.spec.head_dim, bias=False)
        return Norm(self.context, width, bias=False, split=True)

    def forward(self, x: Tensor, positions: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v, *gate = self.columns(x, "q", "k", "v", *(("gate",) if self.spec.output_gate else ()))
        if not self.of_heads:
            q, k = self._normed(q, k)
        q, k, v = (part.view(*part.shape[:-1], -1, width)
                   for part, width in zip((q, k, v), self._head_dims(), strict=True))  # fmt: skip
        if self.of_heads:
            q, k = self._normed(q, k)
        if positions is not None:
            q, k = rotate(q, *positions), rotate(k, *positions)
        if self.spec.score_scale is not None:  # the core divides by the square root
            q = q * (self.spec.score_scale * self.spec.head_dim**0.5)
        out = self._core(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2).flatten(2)
        return self.row(out * torch.sigmoid(gate[0]) if gate else out, "o")

    def _normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (q, k) if self.q_norm is None or self.k_norm is None else (self.q_norm(q), self.k_norm(k))

    def _core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Queries, keys and values, [b, heads, s, d] each."""
        context, sinks, cp = self.context, self.maybe("sinks"), self.context.cp
        scores = Scores(self.spec.window, self.spec.score_softcap)
        length = q.shape[2] * (1 if cp is None else cp.group.size)
        if sinks is None and scores.softcap is None and not scores.cuts(length):
            return context.recompute.region("attn", context.attention, q, k, v)
        here = None if sinks is None or cp is None else cp.group

        def attention(q: Tensor, k: Tensor, v: Tensor, *sinks: Tensor) -> Tensor:
            mine = [part if here is None else part.chunk(here.size)[here.rank] for part in sinks]
            attend = partial(blocked, sinks=mine[0] if mine else None, how=scores)
            return context.attention(q, k, v, attend)

        return context.recompute.region("attn", attention, q, k, v, *(() if sinks is None else (sinks,)))

    def _head_dims(self) -> tuple[int, int, int]:
        return self.spec.head_dim, self.spec.head_dim, self.spec.value_head_dim
