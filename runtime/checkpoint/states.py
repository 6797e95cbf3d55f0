"""The states that a rank holds, as boxes of whole tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ..job import Job
from ..model.block import named_splits
from ..model.decoder import DecoderChunk
from ..model.initial_weights import same_weight
from ..parallel.sharding import Unit
from ..status import Status
from ..trainer import Named, Trainer
from .slices import Piece, boxes


class States(ABC):
    """The state of a run that this rank saves and resumes."""

    job: Job
    device: torch.device
    status: Status

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """Boxes of all that this rank holds. All ranks must call it after the same step."""

    @abstractmethod
    def make(self, step: int) -> None:
        """Creates the tensors that the pieces after step `step` fill."""

    @abstractmethod
    def loaded(self, step: int) -> None:
        """Continues after step `step`, whose pieces were filled. All ranks must call it."""

    @abstractmethod
    def digests(self) -> Mapping[str, str]:
        """Name -> digest of each file of data, as `Source.digests`."""


class TrainerStates(States):
    """The states of one trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.job, self.device = trainer, trainer.job, trainer.device
        self.status = trainer.mesh["world"].status

    def pieces(self) -> Iterator[Piece]:
        return pieces(self.trainer)

    def make(self, step: int) -> None:
        make_states(self.trainer)
        self.trainer.exchange.expect(step)

    def loaded(self, step: int) -> None:
        go_on(self.trainer, step)

    def digests(self) -> Mapping[str, str]:
        return self.trainer.source.digests()


def pieces(trainer: Trainer) -> Iterator[Piece]:
    """Master weights and buffers (`weights.NAME`) and states (`exp_avg.NAME`, ...) that this rank holds. All ranks must
    call it after the same step.

    Names of what a replica other than the first has of its own begin with `replica-R.`.
    """
    exchange, tied = trainer.exchange, trainer.job.model.tied_embeddings
    exchange.settle()
    for unit, named in trainer.contents:
        states = trainer.optimizer.state.get(unit.master, {})
        flats = {"weights": unit.master.detach()}
        flats |= {key: value for key, value in states.items() if isinstance(value, Tensor) and key != "step"}
        prefix = _prefix(unit) if exchange.alone else ""
        for kind, flat in flats.items():
            yield from _of_unit(unit, named, prefix + kind, flat, unit.first, tied=tied)
    for state in exchange.states():
        unit, named = trainer.contents[state.unit]
        prefix = _prefix(unit) if state.of_replica else ""
        yield from _of_unit(unit, named, prefix + state.kind, state.flat, state.start, tied=tied)
    yield from _buffers(trainer.chunks)


def _prefix(unit: Unit) -> str:
    replica = unit.groups.replicate.rank
    return f"replica-{replica}." if replica else ""


def weights(trainer: Trainer) -> Iterator[Piece]:
    """Weights in the dtype of training and buffers (`weights.NAME`) that this rank holds. They are filled anew by every
    step."""
    for unit, named in trainer.contents:
        yield from _of_unit(unit, named, "weights", unit.weights, unit.first, tied=trainer.job.model.tied_embeddings)
    yield from _buffers(trainer.chunks)


def weights_of(chunks: Sequence[DecoderChunk]) -> Iterator[Piece]:
    """The same of chunks without a trainer."""
    for chunk in chunks:
        for part, module in chunk.parts():
            for full_name, parameter, split in named_splits(module, part):
                where = [0] * parameter.dim()
                for dim, offset in split.firsts:
                    where[dim] += offset
                name = same_weight(full_name, tied=chunk.spec.tied_embeddings)
                yield Piece(f"weights.{name}", split.shape, tuple(where), parameter.detach())
    yield from _buffers(chunks)


def _buffers(chunks: Sequence[DecoderChunk]) -> Iterator[Piece]:
    for chunk in chunks:
        for name, buffer in chunk.named_buffers():
            yield Piece(f"weights.{name}", tuple(buffer.shape), (0,) * buffer.dim(), buffer, optional=True)


def _of_unit(unit: Unit, named: Named, kind: str, flat: Tensor, first: int, *, tied: bool) -> Iterator[Piece]:
    """The boxes of a tensor whose elements are those of the unit's buffer from `first` on."""
    last, begin = first + flat.numel(), 0
    for full_name, parameter, split in named:
        name = f"{kind}.{same_weight(full_name, tied=tied)}"
        size = parameter.numel()
        start, stop = max(first, begin), min(last, begin + size)
        at = start - first
        for offsets, sizes in boxes(parameter.shape, start - begin, stop - begin):
            length = int(torch.Size(sizes).numel())
            where = list(offsets)
            for dim, offset in split.firsts:
                where[dim] += offset
            yield Piece(name, split.shape, tuple(where), flat[at : at + length].view(sizes))
            at += length
        begin += size


@torch.no_grad()
def make_states(trainer: Trainer) -> None:
    """Creates the optimizer's states by a step without effect, because the first step creates them."""
    # Gradients and learning rate are zero. The rate also scales the weight decay, so that no weight changes.
    groups = trainer.optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for unit in trainer.units:
        unit.master.grad = torch.zeros_like(unit.master)
    for group in groups:
        group["lr"] = 0.0
    trainer.optimizer.step()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for unit in trainer.units:
        unit.master.grad = None


def go_on(trainer: Trainer, updates: int) -> None:
    """Continues after so many steps of the optimizer, whose states were filled."""
    # The number of steps has no parameter's shape and is not saved. The bias correction of AdamW needs it.
    for state in trainer.optimizer.state.values():
        if "step" in state:
            state["step"].fill_(updates)
    # Only master weights were loaded. The weights in the compute dtype are cast from them, as after a step.
    for unit in trainer.units:
        unit.updated()
