"""Grouped-query attention, heads split over tensor-parallel ranks."""

from __future__ import annotations

from torch import Tensor

from ...cost_models.specs.model import Attention
from .block import Block, Context
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
        if spec.output_bias:
            self.add("o_bias", [hidden], start=0.0)
        self.q_norm = Norm(context, spec.head_dim, bias=False) if spec.norm_parameters else None
        self.k_norm = Norm(context, spec.head_dim, bias=False) if spec.norm_parameters else None

    def forward(self, x: Tensor, positions: tuple[Tensor, Tensor] | None) -> Tensor:
        parts = self.columns(x, "q", "k", "v")
        q, k, v = (part.view(*part.shape[:-1], -1, width) for part, width in zip(parts, self._head_dims(), strict=True))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if positions is not None:
            q, k = rotate(q, *positions), rotate(k, *positions)
        heads = [part.transpose(1, 2) for part in (q, k, v)]
        out = self.context.recompute.region("attn", self.context.attention, *heads).transpose(1, 2).flatten(2)
        return self.row(out, "o")

    def _head_dims(self) -> tuple[int, int, int]:
        return self.spec.head_dim, self.spec.head_dim, self.spec.value_head_dim
