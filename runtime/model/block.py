"""A part of a decoder on plain tensors: its parameters, their split over tp ranks, and products with them.

Symbols: b sequences, s tokens of them on this rank's cp part, h hidden; `x` is [b, s/tp, h] between blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...cost_models.specs.model import ModelSpec
from ..parallel import tensor_parallel as tp
from ..parallel.comm import Group
from ..parallel.context_parallel import Attend, ContextParallel, causal
from ..parallel.key_exchange import KeyExchange
from ..parallel.recompute import Recompute
from ..parallel.split_backward import linear
from .adapters import Adapters, of_input, of_output
from .balancing import Balancing
from .dispatch import ExpertGroup


@dataclass(frozen=True)
class ParamShard:
    """The position of this rank's part in a whole parameter."""

    shape: tuple[int, ...]  # shape of the whole parameter
    firsts: tuple[tuple[int, int], ...] = ()  # (dim, first index) per split dim; empty: the whole parameter
    expert: bool = False  # weight of a routed expert, which each tp rank applies to its own tokens
    start: float | None = None  # initial value of all elements; None: random
    std: float | None = None  # standard deviation of random initial values; None: the model's


@dataclass(frozen=True)
class Numerics:
    """Numerical properties of the model's blocks beyond their shapes."""

    norm_epsilon: float = 1e-5  # added to the mean square or variance
    activation: str = "silu"  # its name in ACTIVATIONS
    unit_offset_norms: bool = False  # norms multiply by 1 + weight
    residual_scale: float = 1.0  # factor of a block's output before the residual addition
    latent_scale: float = 1.0  # factor of the scores in latent attention
    # Initial weights keep the variance of what they take, and rows of tokens have 1: T5 (`_init_weights` of
    # T5PreTrainedModel, transformers 5.24). Else all have the same deviation.
    keeps_variance: bool = False

    @classmethod
    def of(cls, model: ModelSpec) -> Numerics:
        biased = any(attention.relative_bias for attention in model.attentions)
        return cls(model.norm_epsilon, model.activation, model.unit_offset_norms, model.residual_scale,
                   model.latent_scale, biased)  # fmt: skip

    def std(self, inputs: int, factor: float = 1.0) -> float | None:
        """Standard deviation of the initial weights of a product of so many inputs; None: the model's. factor: of what
        comes out."""
        return factor * inputs**-0.5 if self.keeps_variance else None


@dataclass(frozen=True)
class Context:
    """The settings that all blocks of a stage share."""

    group: Group  # the tp ranks
    experts: ExpertGroup  # the ranks with one copy of the routed experts
    dtype: torch.dtype  # of weights and activations
    device: torch.device  # of weights and activations
    numerics: Numerics
    recompute: Recompute = field(default_factory=Recompute)  # the tensors that layers recompute
    fused: bool = False  # use torch's fused GPU kernels
    cp: ContextParallel | None = None  # None: every rank has whole sequences
    adapters: Adapters | None = None  # None: the weights train
    in_turn: bool = False  # assign tokens to experts round-robin, not by the router
    balancing: Balancing | None = None  # balancing loss of experts; None: no loss

    def positions(self, seq_len: int) -> Tensor:
        """Positions of this rank's tokens in a sequence of `seq_len`."""
        return torch.arange(seq_len) if self.cp is None else self.cp.positions(seq_len)

    @property
    def sequence_groups(self) -> tuple[Group, ...]:
        """Groups whose ranks have the other tokens of this rank's sequences between blocks."""
        return (self.group,) if self.cp is None else (self.group, self.cp.group)

    def scatter_heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [b, heads, s, d] in the distribution of `core`."""
        return (q, k, v) if self.cp is None else self.cp.scatter_heads(q, k, v)

    def core(self, q: Tensor, k: Tensor, v: Tensor, attend: Attend | None = None) -> Tensor:
        """attend: None for plain causal attention."""
        return (attend or causal)(q, k, v) if self.cp is None else self.cp.core(q, k, v, attend)

    def exchange(self, k: Tensor) -> KeyExchange | None:
        """The exchange of keys like k and their values over cp; None where a rank has those of whole sequences."""
        return None if self.cp is None or self.cp.is_contiguous else self.cp.exchange(k)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, attend: Attend | None = None) -> Tensor:
        """Causal attention of this rank's queries, [b, heads, s, d], over whole sequences."""
        return self.core(*self.scatter_heads(q, k, v), attend)

    def part(self, size: int, group: Group | None = None) -> tuple[int, int]:
        """(first, number) of this rank's rows among `size` rows split over a group (None: its tp ranks).

        The first ranks take one row more where the split is uneven.
        """
        group = group or self.group
        base, extra = divmod(size, group.size)
        rank = group.rank
        return rank * base + min(rank, extra), base + (rank < extra)


class Block(nn.Module):
    """A module with the split of each of its parameters. reads_again: its backward pass needs weights."""

    reads_again = True

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.splits: dict[str, ParamShard] = {}

    def add(self, name: str, shape: Sequence[int], dim: int | None = None, **how: Any) -> None:
        """Adds a parameter of whole `shape`. This rank holds its part along `dim`."""
        self.add_split(name, shape, {} if dim is None else {dim: self.context.group}, **how)

    def add_split(
        self, name: str, shape: Sequence[int], over: Mapping[int, Group], *, trains: bool | None = None, **how: Any
    ) -> None:
        """Adds a parameter of whole `shape`, split over the ranks of groups along their dims.

        trains: None where all weights train, or only adapters.
        """
        local, firsts = list(shape), []
        for dim, group in over.items():
            first, local[dim] = self.context.part(shape[dim], group)
            firsts.append((dim, first))
        value = torch.empty(local, dtype=self.context.dtype, device=self.context.device)
        # The memory is freed at once, because a rank with sharded weights never holds all of them (sharding.Unit).
        value.untyped_storage().resize_(0)
        trains = self.context.adapters is None if trains is None else trains
        self.register_parameter(name, nn.Parameter(value, requires_grad=trains))
        self.splits[name] = ParamShard(tuple(shape), tuple(firsts), **how)

    def add_product(self, name: str, shape: Sequence[int], dim: int, target: str, factor: float = 1.0) -> None:
        """Adds a weight [out, in] and its adapter for `target`, if any.

        A is split like the weight's inputs, B like its outputs. factor: of the deviation of what comes out at first.
        """
        self.add(name, shape, dim, std=self.context.numerics.std(shape[1], factor))
        adapters = self.context.adapters
        if adapters is None or target not in adapters.targets:
            return
        (outputs, inputs), rank = shape, adapters.rank
        # B starts at zero, so that the adapter has no effect at first. A starts like PyTorch's linear layers.
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
        """(alpha / r) B (A x) from A x [b, s, r]. The scale is applied to the narrow A x."""
        if self.context.adapters is None:
            raise RuntimeError(f"{name} has an adapter and the model has none")
        group = None if group is None or group.size == 1 else group
        return linear(thin * self.context.adapters.scale, self.tensor(of_output(name)), group=group)

    def maybe(self, name: str) -> Tensor | None:
        return self._parameters.get(name)

    def tensor(self, name: str) -> Tensor:
        """A parameter that must exist."""
        parameter = self._parameters[name]
        if parameter is None:
            raise KeyError(name)
        return parameter


def named_splits(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter, ParamShard]]:
    """Full name, parameter and split of every parameter of `module`."""
    for path, block in module.named_modules(prefix=prefix):
        if isinstance(block, Block):
            for name, split in block.splits.items():
                yield f"{path}.{name}", block.get_parameter(name), split
