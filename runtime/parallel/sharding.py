"""ZeRO 0-3 (arXiv 1910.02054) over flat buffers: one unit per part of the model and kind of parameter.

All gradients are sums: the loss is divided by the tokens of the whole batch, so nothing is averaged. Per parameter a
rank holds a weight in the compute dtype, a gradient in fp32, and for the optimizer an fp32 copy and its moments. In
fp32 and fp64 training the weight is the copy. Stage 1 shards the optimizer states. Stage 2 also shards the gradient,
which is then reduced after every micro-batch. Stage 3 also shards the weight, which is gathered around its use.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import host
from .comm import Group

_NORM_PIECE = 1 << 20  # elements


@dataclass(frozen=True)
class Groups:
    """The groups that shard and replicate a unit."""

    shard: Group  # ranks with one part of its states each
    replicate: Group  # ranks with the same part and other data
    partial: Group | None  # tp ranks with partial gradients of the same weights
    tied: Group | None  # the two stages with tied embeddings, or with two copies of the token table
    copies: int  # ranks in the world with the same gradient shard


class Weights:
    """Parameters that are gathered as one flat buffer. This class itself holds frozen parameters.

    Parameters arrive without memory; `fill` draws their weights.
    """

    def __init__(
        self, name: str, parameters: Sequence[nn.Parameter], groups: Groups, zero: int, device: torch.device,
        fill: Callable[[], None],
    ) -> None:  # fmt: skip
        self.name, self.parameters, self.groups, self.zero = name, list(parameters), groups, zero
        self.sizes = [p.numel() for p in parameters]
        # Padded, because all_gather and reduce_scatter need equal parts. The padding and its gradient are zero, so that
        # no norm counts them.
        self.length = -(-sum(self.sizes) // groups.shard.size) * groups.shard.size
        self.part = self.length // groups.shard.size
        self.flat = torch.zeros(self.length, dtype=self.parameters[0].dtype, device=device)
        self._num_bytes = self.flat.untyped_storage().nbytes()
        self._adopt()  # before weights are drawn, so that they are drawn into the buffer and never exist twice
        fill()
        mine = self.flat[groups.shard.rank * self.part : (groups.shard.rank + 1) * self.part]
        self.weights = mine.clone() if zero == 3 else mine  # stage 3 frees the buffer, which its part must outlive
        self.release()

    @property
    def is_token_table(self) -> bool:
        """Whether the embedding reads this unit, perhaps with a head or predictions."""
        return self.name == "embedding tied"

    def _adopt(self) -> None:
        start = 0
        for parameter, size in zip(self.parameters, self.sizes, strict=True):
            parameter.data = self.flat[start : start + size].view(parameter.shape)
            start += size

    def gather(self) -> None:
        """Stage 3: gathers the whole weights into the storage that the graph refers to."""
        # The storage is refilled and not replaced, because autograd saved views of it. A resident unit (perhaps tied
        # embeddings) is not gathered twice. All ranks of the group run the same parts, so none is alone in the
        # collective.
        storage = self.flat.untyped_storage()
        if self.zero == 3 and storage.nbytes() == 0:
            storage.resize_(self._num_bytes)
            self.groups.shard.all_gather(self.flat, self.weights)

    def release(self) -> None:
        """Stage 3: frees the whole weights."""
        if self.zero == 3:
            self.flat.untyped_storage().resize_(0)


class Unit(Weights):
    """Parameters that train: gathered, reduced and updated as one flat buffer."""

    def __init__(
        self, name: str, parameters: Sequence[nn.Parameter], groups: Groups, zero: int, device: torch.device,
        fill: Callable[[], None], *, states_on_host: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(name, parameters, groups, zero, device, fill)
        self.states_on_host, dtype = states_on_host, self.flat.dtype
        # Gradients are summed and reduced in fp32. In bf16, with 8 bits of mantissa, a sum over many micro-batches and
        # ranks could lose small terms.
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self._separate_master = dtype != self.wide or states_on_host  # a copy of the weights for the optimizer
        make = host.copy if states_on_host else torch.Tensor.to
        self.master = nn.Parameter(make(self.weights, self.wide) if self._separate_master else self.weights)
        self._reduced: Tensor | None = None  # reduced gradient for the optimizer's states
        self.gradient = torch.zeros(self.part if zero >= 2 else self.length, dtype=self.wide, device=device)
        self._whole: Tensor | None = None  # zero >= 2: the gradient of this micro-batch before it is reduced
        self._arrived = 0
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._taker(index))  # type: ignore[no-untyped-call]

    def _taker(self, index: int) -> Callable[[Tensor], None]:
        start = sum(self.sizes[:index])
        stop = start + self.sizes[index]
        # The garbage collector does not see the references of a hook. With a strong reference no unit would be freed.
        weak_unit = weakref.ref(self)

        def take(parameter: Tensor) -> None:
            unit = weak_unit()
            if parameter.grad is None or unit is None:
                return
            into = unit.gradient if unit.zero < 2 else unit._this_micro_batch()
            into[start:stop].view_as(parameter).add_(parameter.grad)
            parameter.grad = None  # at once, because the gradients of all parameters in bf16 would take 2 bytes each
            unit._arrived += 1
            if unit._arrived == len(unit.parameters):
                unit._all_arrived()

        return take

    def _this_micro_batch(self) -> Tensor:
        if self._whole is None:
            self._whole = torch.zeros(self.length, dtype=self.wide, device=self.gradient.device)
        return self._whole

    def _all_arrived(self) -> None:
        self._arrived = 0
        # The ranks of a shard group run the same graph, so their units complete in one order and the scatters match
        # without a barrier.
        if self._whole is not None:
            whole, self._whole = self._whole, None
            self.gradient.add_(self._scattered(whole))
        self.release()

    def _scattered(self, whole: Tensor) -> Tensor:
        return self.groups.shard.reduce_scatter(whole.new_empty(self.part), whole)

    def reduce(self) -> Tensor:
        """Reduces this rank's part [part] over all ranks after the last micro-batch."""
        reduced = self.gradient
        if self.zero == 1 and self.groups.shard.size > 1:
            # Written in place: parts of all units in addition to whole gradients would take 4/shard bytes more.
            mine = self.gradient[self.groups.shard.rank * self.part : (self.groups.shard.rank + 1) * self.part]
            reduced = mine.copy_(self._scattered(self.gradient))
        # Sums commute. The scatter is first, so that these groups reduce 1/shard of the bytes. Two stages meet in
        # `tied` only, and a stage has at most one such unit, so its position in their lists does not matter.
        for group in (self.groups.replicate, self.groups.partial, self.groups.tied):
            if group is not None:
                group.all_reduce(reduced)
        self._reduced = reduced
        return reduced

    @torch.no_grad()
    def hand_over(self) -> None:
        """Moves the reduced (and perhaps clipped) gradient to the optimizer: the master's .grad."""
        reduced, self._reduced = self._reduced, None
        if reduced is not None:
            self.master.grad = host.copy(reduced, self.wide) if self.states_on_host else reduced

    @torch.no_grad()
    def updated(self) -> None:
        """Copies master weights to the weights of all ranks after the optimizer's step, and zeroes gradients."""
        if self._separate_master:
            self.weights.copy_(self.master)
        if self.zero in (1, 2) and self.groups.shard.size > 1:
            # The input is a copy, because the part is a view of the output buffer.
            self.groups.shard.all_gather(self.flat, self.weights.clone())
        self.master.grad = None
        self.gradient.zero_()


class _Input(torch.autograd.Function):
    """Identity on the input of a part with gathered weights whose weight gradient is not part of its backward pass.

    The gradient of the input is the last result of that backward pass, and marks its end.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, units: list[Weights]) -> Tensor:
        ctx.units = units
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        for unit in ctx.units:
            unit.release()
        return grads[0], None


class Gatherer:
    """Runs each part of a model with gathered weights, and gathers them again before its backward pass."""

    def __init__(self, units_of: dict[nn.Module, list[Weights]]) -> None:
        self.units_of = units_of

    def __call__(self, module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        units = [unit for unit in self.units_of[module] if unit.zero == 3]
        for unit in units:
            unit.gather()
        # Frozen weights have no gradient. The gradient of tied embeddings completes with the embedding's part, which
        # needs no row, so the head's weights do not wait for it.
        without = [unit for unit in units if not isinstance(unit, Unit) or unit.is_token_table]
        if without and x.requires_grad:
            x = _Input.apply(x, without)  # type: ignore[no-untyped-call]
        out = function(x)
        for unit in units:
            unit.release()
        # The backward pass of the part starts with the gradient of the output, so the weights are gathered before they
        # are needed. A table that is only looked up needs no row for its gradient.
        if units and out.requires_grad and getattr(module, "reads_again", True):
            out.register_hook(lambda grad: self._again(units))  # type: ignore[no-untyped-call]
        return out

    @staticmethod
    def _again(units: list[Weights]) -> None:
        for unit in units:
            unit.gather()


def gradient_norm(units: Sequence[Unit], parts: Sequence[Tensor], world: Group, device: torch.device) -> float:
    """Norm of the gradient of the whole model. Every element counts once for any number of copies.

    A stage may have no units.
    """
    # In float64, like the square of each part. One sum over the world makes all ranks clip by the same number.
    total = torch.zeros(1, dtype=torch.float64, device=device)
    for unit, part in zip(units, parts, strict=True):
        total += squared_norm(part) / unit.groups.copies
    return float(world.all_reduce(total).sqrt().item())


def squared_norm(part: Tensor) -> Tensor:
    """Sum of squares in float64.

    A GPU sums in a tree, for which fp32 suffices. A CPU sums long rows, and fp32 is off by 0.5 % for 2^26 elements.
    torch copies to float64 before the sum. A unit can have gigabytes, so pieces are summed one by one.
    """
    if part.is_cuda:
        norms = torch.linalg.vector_norm(part).double()[None]
    else:
        norms = torch.stack([torch.linalg.vector_norm(piece, dtype=torch.float64)
                             for piece in torch.split(part, _NORM_PIECE)])  # fmt: skip
    return torch.dot(norms, norms)
