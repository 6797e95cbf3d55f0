"""ZeRO 0-3 (arXiv 1910.02054) over flat buffers: one unit per part of the model and kind of parameter.

All gradients are sums: the loss is divided by the tokens of the whole batch, so nothing is averaged. Per parameter a
rank holds a weight in the compute dtype, a gradient in fp32, and for the optimizer an fp32 copy and its moments. In
fp32 and fp64 training the weight is the copy. Stage 1 shards the optimizer states. Stage 2 also shards the gradient,
which is then reduced after every micro-batch. Stage 3 also shards the weight, which is gathered around its use.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import host
from .comm import Group, Pending
from .reductions import Reductions

_NORM_PIECE = 1 << 20  # elements


@dataclass(frozen=True)
class Groups:
    """The groups that shard and replicate a unit."""

    shard: Group  # ranks with one part of its states each
    replicate: Group  # ranks with the same part and other data
    partial: Group | None  # tp ranks with partial gradients of the same weights
    tied: Group | None  # the stages with copies of the weights: of tied embeddings, the token table, biases of a stack
    copies: int  # ranks in the world with the same gradient shard

    @property
    def copies_in_replica(self) -> int:
        """The number of these in one copy of the model."""
        return self.copies // self.replicate.size


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
        self.first = groups.shard.rank * self.part  # of this rank's part
        self.flat = torch.zeros(self.length, dtype=self.parameters[0].dtype, device=device)
        self._num_bytes = self.flat.untyped_storage().nbytes()
        self._adopt()  # before weights are drawn, so that they are drawn into the buffer and never exist twice
        fill()
        mine = self.flat[self.first : self.first + self.part]
        self.weights = mine.clone() if zero == 3 else mine  # stage 3 frees the buffer, which its part must outlive
        self._arriving: Pending | None = None  # the collective that brings the whole weights
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

    def start_gather(self) -> None:
        """Stage 3: starts to gather the whole weights into the storage that the graph refers to."""
        # The storage is refilled and not replaced, because autograd saved views of it. A resident unit (perhaps tied
        # embeddings) is not gathered twice. All ranks of the group run the same parts, so none is alone in the
        # collective.
        storage = self.flat.untyped_storage()
        if self.zero == 3 and storage.nbytes() == 0:
            storage.resize_(self._num_bytes)
            self._arriving = self.groups.shard.start_all_gather(self.flat, self.weights)

    def gather(self) -> None:
        """Waits for the whole weights: gathered (stage 3), or as the optimizer has updated them on other ranks."""
        self.start_gather()
        self.arrived()

    def arrived(self) -> None:
        """Waits for weights that are on their way."""
        if self._arriving is not None:
            self._arriving.wait()
            self._arriving = None

    def release(self) -> None:
        """Stage 3: frees the whole weights."""
        if self.zero == 3:
            self.arrived()
            self.flat.untyped_storage().resize_(0)


class Unit(Weights):
    """Parameters that train: gathered, reduced and updated as one flat buffer."""

    def __init__(
        self, name: str, parameters: Sequence[nn.Parameter], groups: Groups, zero: int, device: torch.device,
        fill: Callable[[], None], *, states_on_host: bool = False, reductions: Reductions | None = None,
        num_passes: int = 0,
    ) -> None:  # fmt: skip
        """reductions: those that run beside the backward pass; None: this unit's do not.

        num_passes: backward passes of a step, after which the gradients are complete.
        """
        super().__init__(name, parameters, groups, zero, device, fill)
        self._reductions, self.num_passes = reductions, num_passes
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
        self._arrivals = 0  # gradients of parameters in this step
        self._is_reducing = False  # whether the reduction of this step has started
        self.sums_copies = True  # whether copies sum their gradients
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
            unit._arrivals += 1
            if unit._arrivals % len(unit.parameters) == 0:
                unit._all_arrived()

        return take

    def _this_micro_batch(self) -> Tensor:
        if self._whole is None:
            self._whole = torch.zeros(self.length, dtype=self.wide, device=self.gradient.device)
        return self._whole

    def _all_arrived(self) -> None:
        """As many gradients have arrived as a backward pass makes."""
        is_last = self._arrivals == self.num_passes * len(self.parameters)
        if self.zero < 2:
            if is_last and self._reductions is not None:
                self._reductions.add(self._reduced_hops())
            return
        hops = self._scattered(is_last)
        if self._reductions is None:
            _run(hops)
        else:
            self._reductions.add(hops, frees=True)
            # What is scattered must not stay beside the activations of the next micro-batch.
            torch.autograd.Variable._execution_engine.queue_callback(self._reductions.finish)
        self.release()

    def _scattered(self, is_last: bool) -> Iterator[Pending]:
        """Scatters the gradient of a micro-batch and adds it to the sum."""
        whole, self._whole = self._whole, None
        if whole is not None:
            mine = self._part_of(whole)  # in place: a separate part would stay beside `whole`
            yield self.groups.shard.start_reduce_scatter(mine, whole)
            with torch.no_grad():
                self.gradient.add_(mine)
            del mine, whole
        if is_last and self._reductions is not None:
            yield from self._reduced_hops()

    def _reduced_hops(self) -> Iterator[Pending]:
        """Reduces this rank's part over all ranks but those of another stage, in place."""
        self._is_reducing = True
        if self.zero == 1 and self.groups.shard.size > 1:
            yield self.groups.shard.start_reduce_scatter(self._mine(), self.gradient)
        # Sums commute. The scatter is first, so that these groups reduce 1/shard of the bytes.
        for group in (self.groups.replicate if self.sums_copies else None, self.groups.partial):
            if group is not None and group.size > 1:
                yield group.start_all_reduce(self._mine())

    def _mine(self) -> Tensor:
        """This rank's part of the gradient [part]; all of it where it is not sharded."""
        return self._part_of(self.gradient) if self.zero == 1 else self.gradient

    def _part_of(self, whole: Tensor) -> Tensor:
        return whole[self.first : self.first + self.part]

    def reduce(self) -> Tensor:
        """Reduces this rank's part [part] over all ranks after the last micro-batch, unless it is reduced already."""
        if self._reductions is not None:
            self._reductions.finish()
        if not self._is_reducing:
            _run(self._reduced_hops())
        self._reduced = reduced = self._mine()
        # Stages meet here only. All have their units with copies in one order, at most one for each group of stages,
        # so their positions among the other units do not matter.
        if self.groups.tied is not None:
            self.groups.tied.all_reduce(reduced)
        self._arrivals, self._is_reducing = 0, False
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
        self.arrived()
        if self._separate_master:
            self.weights.copy_(self.master)
        if self.zero in (1, 2) and self.groups.shard.size > 1:
            # Beside the parts before this one, which the next step runs. The input is a copy, because the part is a
            # view of the output buffer.
            self._arriving = self.groups.shard.start_all_gather(self.flat, self.weights.clone())
        self.master.grad = None
        self.gradient.zero_()


def _run(hops: Iterator[Pending]) -> None:
    for pending in hops:
        pending.wait()


def gradient_norm(units: Sequence[Unit], parts: Sequence[Tensor], among: Group, device: torch.device) -> float:
    """Norm of the gradient of the whole model. Every element counts once for any number of copies.

    among: all ranks or, where replicas have gradients of their own, those of one. A stage may have no units.
    """
    # In float64, like the square of each part. One sum over all ranks makes them clip by the same number.
    total = torch.zeros(1, dtype=torch.float64, device=device)
    for unit, part in zip(units, parts, strict=True):
        total += squared_norm(part) / (unit.groups.copies if unit.sums_copies else unit.groups.copies_in_replica)
    return float(among.all_reduce(total).sqrt().item())


def squared_norm(part: Tensor) -> Tensor:
    """Sum of squares in float64.

    A GPU sums in a tree, for which fp32 suffices. A CPU sums long rows, and fp32 is off by 0.5 % for 2^26 elements.
    torch copies to float64 before the sum. A unit can have gigabytes, so pieces are summed one by one.
    """
    if part.device.type != "cpu":  # a trace of memory has no values to sum
        norms = torch.linalg.vector_norm(part).double()[None]
    else:
        norms = torch.stack([torch.linalg.vector_norm(piece, dtype=torch.float64)
                             for piece in torch.split(part, _NORM_PIECE)])  # fmt: skip
    return torch.dot(norms, norms)
