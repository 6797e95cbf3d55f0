"""Grouped-query attention, heads split over tensor-parallel ranks."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cost_models.specs.model import Attention
from .block import Block, Context
from .blocked import Scores, blocked
from .norms import Norm
from .rope import rotate


class Heads(Block):
    """Projections to queries, keys and values, and of the output of grouped-query attention, heads split over tp."""

    def __init__(self, context: Context, spec: Attention, hidden: int) -> None:
        super().__init__(context)
        self.spec = spec
        # Factor of queries, for a core that divides scores by the square root of the width of a head.
        self.factor = 1.0 if spec.score_scale is None else spec.score_scale * spec.head_dim**0.5
        widths = {"q": spec.heads * spec.head_dim, "k": spec.kv_heads * spec.head_dim,
                  "v": spec.kv_heads * spec.value_head_dim}  # fmt: skip
        for name, width in widths.items():
            self.add_product(name, [width, hidden], 0, name, 1 / self.factor if name == "q" else 1.0)
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
        self.scores = Scores(spec.window, spec.score_softcap, spec.causal)

    def _norm(self, width: int) -> Norm:
        if self.of_heads:
            return Norm(self.context, self.spec.head_dim, bias=False)
        return Norm(self.context, width, bias=False, split=True)

    def _turned(self, x: Tensor, norm: Norm | None, positions: tuple[Tensor, Tensor] | None) -> Tensor:
        """Queries or keys [b, s, n x d] -> [b, s, n, d], normalised and rotated."""
        if norm is not None and not self.of_heads:
            x = norm(x)
        x = x.view(*x.shape[:-1], -1, self.spec.head_dim)
        if norm is not None and self.of_heads:
            x = norm(x)
        return x if positions is None else rotate(x, *positions)

    def _scaled(self, q: Tensor) -> Tensor:
        return q if self.spec.score_scale is None else q * self.factor


class CrossAttention(Heads):
    """Attention to the output of an encoder; [b, s/tp, h] and [b, source / tp, h] -> [b, s/tp, h]."""

    def forward(self, x: Tensor, encoded: Tensor, padding: Tensor | None = None) -> Tensor:
        """padding: True [b, source] for tokens of the source that are not attended to."""
        (q,), (k, v) = self.columns(x, "q"), self.columns(encoded, "k", "v")
        q = self._scaled(self._turned(q, self.q_norm, None).transpose(1, 2))
        k = self._turned(k, self.k_norm, None).transpose(1, 2)
        v = v.view(*v.shape[:-1], -1, self.spec.value_head_dim).transpose(1, 2)
        core = unmasked if padding is None else partial(unmasked, padding=padding)
        out = self.context.recompute.region("attn", core, q, k, v)
        return self.row(out.transpose(1, 2).flatten(2), "o")


class SelfAttention(Heads):
    """Attention among the tokens of a sequence; [b, s/tp, h] -> [b, s/tp, h]."""

    def forward(
        self, x: Tensor, positions: tuple[Tensor, Tensor] | None, bias: Tensor | None = None,
        padding: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """bias: added to the scores, [heads / tp, s, s]. padding: True [b, s] for tokens that are not attended to."""
        spec, context = self.spec, self.context
        late = ("q", "gate")[: 1 + spec.output_gate]
        # Keys and values first over cp: their exchange runs beside products of queries. tp ranks gather x only once.
        at_once = context.cp is None or context.group.size > 1
        if at_once:
            q, k, v, *gate = self.columns(x, "q", "k", "v", *late[1:])
        else:
            k, v = self.columns(x, "k", "v")
        k = self._turned(k, self.k_norm, positions).transpose(1, 2)
        v = v.view(*v.shape[:-1], -1, spec.value_head_dim).transpose(1, 2)
        exchange = context.exchange(k) if bias is None and self._is_plain(k.shape[2]) else None
        keys = None if exchange is None else exchange.send(k, v)
        if not at_once:
            q, *gate = self.columns(x, *late)
        q = self._scaled(self._turned(q, self.q_norm, positions).transpose(1, 2))
        if exchange is None or keys is None:
            out = self._core(q, k, v, bias, padding)
        else:
            out = context.recompute.region("attn", exchange.attention, q, keys)
        out = out.transpose(1, 2).flatten(2)
        out = self.row(out * torch.sigmoid(gate[0]) if gate else out, "o")
        return out if exchange is None or keys is None else exchange.send_again(out, keys)

    def _core(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, padding: Tensor | None) -> Tensor:
        """Queries, keys and values, [b, heads, s, d] each."""
        context, sinks, cp = self.context, self.maybe("sinks"), self.context.cp
        if bias is None and padding is None and self._is_plain(q.shape[2]):
            core = context.attention if self.spec.causal else unmasked
            return context.recompute.region("attn", core, q, k, v)
        given = {name: each for name, each in (("sinks", sinks), ("bias", bias)) if each is not None}

        def attention(q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
            mine = dict(zip(given, tensors, strict=True))
            if cp is not None and "sinks" in mine:
                mine["sinks"] = mine["sinks"].chunk(cp.group.size)[cp.group.rank]
            return context.attention(q, k, v, partial(blocked, how=self.scores, padding=padding, **mine))

        return context.recompute.region("attn", attention, q, k, v, *given.values())

    def _is_plain(self, length: int) -> bool:
        """Whether attention has no sinks, softcap or window that cuts. length: tokens of a sequence on this rank."""
        cp = self.context.cp
        whole = length * (1 if cp is None else cp.group.size)
        return self.maybe("sinks") is None and self.scores.softcap is None and not self.scores.cuts(whole)


def unmasked(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Tensor:
    """Attention of q [b, heads, s, d] to all of k and v [b, heads or fewer, n, d] but `padding`, True [b, n]."""
    seen = None if padding is None else ~padding[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=k.shape[1] != q.shape[1])
