"""The parts of a decoder layer, on plain tensors, split over tensor-parallel ranks where they can be.

Symbols: b sequences, s tokens of them on this rank's cp part, h hidden; `x` is [b, s/tp, h] between blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from ...cost_models.specs.model import Attention, FeedForward, MixtureOfExperts
from ..parallel import tensor_parallel as tp
from ..parallel.comm import Group
from ..parallel.context_parallel import ContextParallel, causal
from ..parallel.recompute import Recompute
from ..parallel.split_backward import linear
from . import grouped
from .adapters import Adapters, of_input, of_output
from .experts import Dispatch, ExpertGroup, combine
from .router import route, within_capacity

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "relu": F.relu
}  # fmt: skip
# Before pytorch pull request 153666 (2.9) F.rms_norm is a row of operations that keeps an fp32 copy of its input.
_FUSED_RMS_NORM = hasattr(torch.ops.aten, "_fused_rms_norm_backward")


@dataclass(frozen=True)
class ParamShard:
    """How this rank's part of a parameter lies in the whole one. firsts: (dim, index) where it starts, one for each dim
    that is split; none: every tp rank holds all of it.

    expert: a routed expert's weight, which each tp rank applies to its own tokens. start: initial value, None: random,
    with the standard deviation `std` (None: that of the model's weights).
    """

    shape: tuple[int, ...]
    firsts: tuple[tuple[int, int], ...] = ()
    expert: bool = False
    start: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class Context:
    """What all blocks of a stage share. fused: torch's own fused kernels, as a GPU has them. activation: its name.
    cp: None where every rank has whole sequences. adapters: where only these train, of what is not frozen.
    in_turn: tokens go to the experts in turn, and not to those that the router finds best. latent_scale: of the scores
    of latent attention."""

    group: Group
    experts: ExpertGroup
    dtype: torch.dtype
    device: torch.device
    norm_epsilon: float
    activation: str
    recompute: Recompute = field(default_factory=Recompute)
    fused: bool = False
    cp: ContextParallel | None = None
    adapters: Adapters | None = None
    in_turn: bool = False
    latent_scale: float = 1.0

    def positions(self, seq_len: int) -> Tensor:
        """Where the tokens of this rank stand in a sequence of `seq_len`."""
        return torch.arange(seq_len) if self.cp is None else self.cp.positions(seq_len)

    def dealt(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [b, heads, s, d] as `core` takes them."""
        return (q, k, v) if self.cp is None else self.cp.dealt(q, k, v)

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal(q, k, v) if self.cp is None else self.cp.core(q, k, v)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of this rank's queries, [b, heads, s, d], over whole sequences."""
        return self.core(*self.dealt(q, k, v))

    def part(self, size: int, group: Group | None = None) -> tuple[int, int]:
        """(first, number) of this rank's rows of `size`, out of those of a group (None: its tp ranks); the first ranks
        take one more where it does not divide."""
        group = group or self.group
        base, extra = divmod(size, group.size)
        rank = group.rank
        return rank * base + min(rank, extra), base + (rank < extra)


class Block(nn.Module):
    """A module that knows how each of its parameters is split. reads_again: its backward pass needs weights."""

    reads_again = True

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.splits: dict[str, ParamShard] = {}

    def add(self, name: str, shape: Sequence[int], dim: int | None = None, **how: Any) -> None:
        """A parameter of the whole `shape`; along `dim` this rank holds its part."""
        self.add_split(name, shape, {} if dim is None else {dim: self.context.group}, **how)

    def add_split(
        self, name: str, shape: Sequence[int], over: Mapping[int, Group], *, trains: bool | None = None, **how: Any
    ) -> None:
        """A parameter of the whole `shape`, of which the ranks of a group each hold a part along its dim. trains: None
        where all of the model does, or nothing but adapters."""
        local, firsts = list(shape), []
        for dim, group in over.items():
            first, local[dim] = self.context.part(shape[dim], group)
            firsts.append((dim, first))
        value = torch.empty(local, dtype=self.context.dtype, device=self.context.device)
        # Given back at once: a rank that shards its weights never holds all of them (sharding.Unit).
        value.untyped_storage().resize_(0)
        trains = self.context.adapters is None if trains is None else trains
        self.register_parameter(name, nn.Parameter(value, requires_grad=trains))
        self.splits[name] = ParamShard(tuple(shape), tuple(firsts), **how)

    def add_product(self, name: str, shape: Sequence[int], dim: int, target: str) -> None:
        """A weight [out, in] with the adapter that it has as `target`, if it has one: A is split where the weight's
        inputs are, B where its outputs are."""
        self.add(name, shape, dim)
        adapters = self.context.adapters
        if adapters is None or target not in adapters.targets:
            return
        (outputs, inputs), rank = shape, adapters.rank
        # B starts at zero, so that nothing changes at first; A as wide as PyTorch's linear layers.
        self.add(of_input(name), [rank, inputs], 1 if dim == 1 else None, trains=True, std=inputs**-0.5)
        self.add(of_output(name), [outputs, rank], 0 if dim == 0 else None, trains=True, start=0.0)

    def columns(self, x: Tensor, *names: str) -> list[Tensor]:
        """Products of x [b, s/tp, in] with weights split by outputs -> [b, s, out / tp] each."""
        adapted = [name for name in names if of_input(name) in self.splits]
        every = [*names, *map(of_input, adapted)]
        outs = tp.column(x, [self.tensor(name) for name in every], [self.maybe(f"{name}_bias") for name in every],
                         self.context.group)  # fmt: skip
        thin = dict(zip(adapted, outs[len(names) :], strict=True))
        return [out + self._widened(name, thin[name]) if name in thin else out
                for name, out in zip(names, outs, strict=False)]  # fmt: skip

    def row(self, x: Tensor, name: str) -> Tensor:
        """The product of x [b, s, in / tp] with a weight split by inputs -> [b, s/tp, out]."""
        beside = None
        if of_input(name) in self.splits:
            beside = self._widened(name, linear(x, self.tensor(of_input(name))), self.context.group)
        return tp.row(x, self.tensor(name), self.maybe(f"{name}_bias"), self.context.group, beside)

    def _widened(self, name: str, thin: Tensor, group: Group | None = None) -> Tensor:
        """(alpha / r) B of A x [b, s, r]; the narrow one is scaled."""
        if self.context.adapters is None:
            raise RuntimeError(f"{name} has an adapter and the model has none")
        group = None if group is None or group.size == 1 else group
        return linear(thin * self.context.adapters.scale, self.tensor(of_output(name)), group=group)

    def maybe(self, name: str) -> Tensor | None:
        return self._parameters.get(name)

    def tensor(self, name: str) -> Tensor:
        """A parameter that is there."""
        found = self._parameters[name]
        if found is None:
            raise KeyError(name)
        return found


class _RmsNorm(torch.autograd.Function):
    """Keeps its input and one number per row; torch's on the CPU also keeps the normalised input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        normal = x.to(scale.dtype) * scale
        grad = grads[0].to(scale.dtype)
        grad_weight = (grad * normal).flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        grad = grad * weight
        grad_x = (grad - normal * (grad * normal).mean(-1, keepdim=True)) * scale
        return grad_x.to(x.dtype), grad_weight, None


class Norm(Block):
    """RMSNorm, or LayerNorm where the model's norms have biases."""

    def __init__(self, context: Context, width: int, bias: bool) -> None:
        super().__init__(context)
        self.add("weight", [width], start=1.0)
        if bias:
            self.add("bias", [width], start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, epsilon = self.tensor("weight"), self.maybe("bias"), self.context.norm_epsilon
        if bias is not None:
            return F.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)
        if self.context.fused and _FUSED_RMS_NORM:  # one kernel, and it keeps no more
            return F.rms_norm(x, (x.shape[-1],), weight, epsilon)
        out: Tensor = _RmsNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
        return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, halves as in Hugging Face's Llama: x [b, s, heads, d]; cos, sin [s, w/2]. Of a head the first w
    turn, the others stay."""
    width = 2 * cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([rotate(x[..., :width], cos, sin), x[..., width:]], dim=-1)
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


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
        heads = [each.transpose(1, 2) for each in (q, k, v)]
        out = self.context.recompute.region("attn", self.context.attention, *heads).transpose(1, 2).flatten(2)
        return self.row(out, "o")

    def _head_dims(self) -> tuple[int, int, int]:
        return self.spec.head_dim, self.spec.head_dim, self.spec.value_head_dim


def gated(name: str, gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU, GeGLU, ... (arXiv 2002.05202)."""
    return ACTIVATIONS[name](gate) * up


class _Gated(torch.autograd.Function):
    """Keeps gate and up only; the activation of the gate is made again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, name: str, gate: Tensor, up: Tensor) -> Tensor:
        ctx.name = name
        ctx.save_for_backward(gate, up)
        return gated(name, gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [gate.detach().requires_grad_(), up.detach().requires_grad_()]
            found = torch.autograd.grad(gated(ctx.name, *leaves), leaves, grads[0])
        return None, found[0], found[1]


def lean_gated(name: str, gate: Tensor, up: Tensor) -> Tensor:
    """`gated` for an activation that is recomputed."""
    out: Tensor = _Gated.apply(name, gate, up)  # type: ignore[no-untyped-call]
    return out


def activated(recompute: Recompute, name: str, *inputs: Tensor) -> Tensor:
    """The activation of one input, or that of the first times the second."""
    if len(inputs) == 1:
        return recompute.output("act", ACTIVATIONS[name], *inputs)
    return recompute.output("act", partial(lean_gated if "act" in recompute.modules else gated, name), *inputs)


class Mlp(Block):
    """Dense feed-forward block, inner width split over tp; [b, s/tp, h] -> [b, s/tp, h]."""

    def __init__(self, context: Context, spec: FeedForward, hidden: int) -> None:
        super().__init__(context)
        self.names = ("gate", "up") if spec.gated else ("up",)
        for name in self.names:
            self.add_product(name, [spec.inner, hidden], 0, name)
            if spec.bias:
                self.add(f"{name}_bias", [spec.inner], 0, start=0.0)
        self.add_product("down", [hidden, spec.inner], 1, "down")
        if spec.bias:
            self.add("down_bias", [hidden], start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        out = activated(self.context.recompute, self.context.activation, *self.columns(x, *self.names))
        return self.row(out, "down")


class Experts(Block):
    """Routed experts; the ranks of an ep group hold a part of them each, those of an etp group a part of every one, and
    every tp rank routes its own tokens.

    Shared experts are one dense block that sees every token.
    """

    def __init__(self, context: Context, spec: MixtureOfExperts, hidden: int) -> None:
        super().__init__(context)
        self.spec, self.names = spec, ("gate", "up") if spec.gated else ("up",)
        self.add("router", [spec.experts, hidden])
        if spec.router_bias:
            self.add("router_bias", [spec.experts], start=0.0)
        for name in self.names:
            self._expert(name, [spec.expert_inner, hidden], 1)
        self._expert("down", [hidden, spec.expert_inner], 2)
        shared = FeedForward(inner=spec.shared_inner, gated=spec.gated)
        self.shared = Mlp(context, shared, hidden) if spec.shared_inner else None
        if spec.shared_gate:
            self.add("shared_gate", [1, hidden])

    def _expert(self, name: str, shape: list[int], inner: int) -> None:
        """`inner`: the dim of an expert's inner width."""
        cell = self.context.experts
        self.add_split(name, [self.spec.experts, *shape], {0: cell.ep, inner: cell.etp}, expert=True)
        if self.spec.expert_bias:
            bias = [self.spec.experts, shape[0]]
            self.add_split(f"{name}_bias", bias, {0: cell.ep, 1: cell.etp}, expert=True, start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        logits = linear(tokens, self.tensor("router"), self.maybe("router_bias"))
        weights, chosen = route(self.spec, logits, in_turn=self.context.in_turn)
        through: Callable[..., Tensor] = self._routed
        if self.spec.capacity_factor is not None:
            capacity = int(self.spec.capacity(len(tokens)))
            weights, chosen = within_capacity(weights, chosen, self.spec.experts, capacity)
            through = self._capped
        out = self.context.recompute.region("moe", through, tokens, weights.to(x.dtype), chosen).view_as(x)
        if self.shared is None:
            return out
        shared: Tensor = self.shared(x)
        gate = self.maybe("shared_gate")
        return out + (shared if gate is None else torch.sigmoid(linear(x, gate)) * shared)

    def _routed(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """tokens [n, h], weights and chosen experts [n, k] -> [n, h]."""
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = self._counts(flat)
        return self._through(tokens, weights.flatten()[order], order // self.spec.top_k, counts)

    def _capped(self, tokens: Tensor, weights: Tensor, source: Tensor) -> Tensor:
        """The same with as many tokens for every expert: which ones, and their weights, expert by expert."""
        counts = [len(source) // self.spec.experts] * self.spec.experts
        return self._through(tokens, weights, source, counts, alike=True)

    def _through(
        self, tokens: Tensor, weights: Tensor, source: Tensor, counts: Sequence[int], *, alike: bool = False
    ) -> Tensor:
        """Tokens `source` to their experts, `counts` of each, and back to where they stood."""
        if self.context.experts.size == 1:
            out = self._each(tokens[source], counts)
        else:
            dispatch = Dispatch(self.context.experts, counts, tokens, alike=alike)
            out = dispatch.back(self._each(dispatch.there(tokens[source]), dispatch.counts))
        return combine(out, weights, source, len(tokens))

    def _each(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """Tokens expert by expert of this rank, through their experts."""
        inner = [grouped.linear(tokens, self.tensor(name), self.maybe(f"{name}_bias"), counts) for name in self.names]
        # Inside a recomputed block nothing is kept anyway.
        lean = Recompute() if "moe" in self.context.recompute.modules else self.context.recompute
        out = activated(lean, self.context.activation, *inner)
        return grouped.linear(out, self.tensor("down"), self._down_bias(), counts)

    def _counts(self, chosen: Tensor) -> list[int]:
        """Tokens of each expert; of a tensor without values, as even as they come."""
        if isinstance(chosen, FakeTensor):
            base, extra = divmod(chosen.numel(), self.spec.experts)
            return [base + (expert < extra) for expert in range(self.spec.experts)]
        counts: list[int] = torch.bincount(chosen, minlength=self.spec.experts).tolist()
        return counts

    def _down_bias(self) -> Tensor | None:
        """In the columns that this rank has a part of: the sum over etp has all of it, once."""
        bias = self.maybe("down_bias")
        if bias is None or self.context.experts.etp.size == 1:
            return bias
        width = self.tensor("down").shape[1]
        first, number = self.context.part(width, self.context.experts.etp)
        return F.pad(bias, (first, width - first - number))
