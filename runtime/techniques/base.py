"""The exchange of replicas: the interface of techniques, and plain data parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..job import Job
from ..optimizer import clip_
from ..parallel.comm import Group
from ..parallel.mesh import Mesh
from ..parallel.pipeline import Batch, Pipeline
from ..parallel.sharding import Unit, gradient_norm


class Trained(Protocol):
    """The parts of a trainer that exchanges use."""

    job: Job
    mesh: Mesh
    device: torch.device
    optimizer: torch.optim.Optimizer
    pipeline: Pipeline

    @property
    def units(self) -> list[Unit]:
        """Flat buffers of parameters that train."""

    def batch(self, index: int) -> Batch:
        """This rank's micro-batches of step `index`."""

    def share(self, index: int, part: int) -> Batch:
        """The micro-batches of step `index` that the dp ranks `part` have."""


@dataclass(frozen=True)
class State:
    """A tensor of a technique that a checkpoint keeps, beside the optimizer's states of a unit."""

    kind: str  # its name in checkpoints is `KIND.PARAMETER`
    unit: int  # index of the unit
    flat: Tensor  # of the unit's parameters from `start` on
    start: int  # in the unit's flat buffer
    of_replica: bool  # whether every replica has its own
    on_host: bool = False  # whether it is in host memory


class Exchange:
    """How replicas exchange. This class itself is plain data parallelism: they sum their gradients in every step."""

    alone = False  # whether replicas have weights of their own between two exchanges
    on_gpu = True  # whether it runs on GPUs
    traceable = True  # whether a dry run of one rank alone does what it does among others

    def __init__(self, trainer: Trained, knobs: Mapping[str, float]) -> None:
        """All ranks must construct it at the same time."""
        self.trainer, self.knobs, self.units = trainer, knobs, trainer.units
        self.index = 0  # of the step
        self.scales: list[Group] = []  # of messages beside those that the ledger counts

    @property
    def world(self) -> Group:
        return self.trainer.mesh["world"]

    def begin(self, index: int) -> None:
        """Prepares step `index` (0, 1, ...)."""
        self.index = index

    def loss(self) -> Tensor:
        """Runs the forward and backward passes of the step. Returns this rank's part of the loss [1]."""
        return self.trainer.pipeline.run(self.trainer.batch(self.index))

    def clip(self, parts: Sequence[Tensor]) -> float:
        """Clips reduced gradients, one of each unit. Returns their norm before."""
        norm = gradient_norm(self.units, parts, self.world, self.trainer.device)
        clip_(parts, norm, self.trainer.job.clip)
        return norm

    def optimize(self) -> None:
        """Updates the optimizer's weights from its gradients."""
        self.trainer.optimizer.step()

    def exchange(self) -> None:
        """Changes the optimizer's weights after that, before all ranks get them."""

    def total(self, loss_and_stop: Tensor) -> Tensor:
        """The sum over all ranks."""
        return self.world.all_reduce(loss_and_stop)

    def sent_bytes(self) -> tuple[float, float]:
        """Bytes that this rank has sent its copies: those that the ledger counts, and scales beside them."""
        groups = {id(unit.groups.replicate): unit.groups.replicate for unit in self.units}
        return sum(group.sent_bytes for group in groups.values()), sum(group.sent_bytes for group in self.scales)

    def share_in_time(self) -> float:
        """The share of the steps in which this rank sends what the ledger counts."""
        return 1.0

    def settle(self) -> None:
        """Waits for messages that run beside the following steps. All ranks must call it after the same step."""

    def states(self) -> Iterator[State]:
        """All that a run needs to go on exactly, beside weights and the optimizer's states."""
        return iter(())

    def expect(self, done: int) -> None:
        """Makes room for states of a checkpoint after `done` steps that are not always there."""


class Alone(Exchange):
    """Replicas that train alone and exchange weights after some steps."""

    alone = True

    def __init__(self, trainer: Trained, knobs: Mapping[str, float]) -> None:
        super().__init__(trainer, knobs)
        self.period, self.replica = int(knobs["period"]), trainer.mesh.replica(trainer.job.layout)
        self.masters = [unit.master.detach() for unit in self.units]  # weights, [part] of each unit
        for unit in self.units:
            unit.sums_copies = False

    @torch.no_grad()
    def clip(self, parts: Sequence[Tensor]) -> float:
        for unit, part in zip(self.units, parts, strict=True):
            part.mul_(unit.groups.replicate.size)  # the mean over the tokens of this replica, not a part of that of all
        norm = gradient_norm(self.units, parts, self.replica, self.trainer.device)
        clip_(parts, norm, self.trainer.job.clip)
        return norm

    def copies(self) -> list[Tensor]:
        """The weights of now, as outer weights."""
        return [master.clone() for master in self.masters]

    def zeros(self) -> list[Tensor]:
        return [torch.zeros_like(master) for master in self.masters]

    def of_units(
        self, kind: str, flats: Sequence[Tensor], *, of_replica: bool = False, on_host: bool = False
    ) -> Iterator[State]:
        """States with a tensor [part] for each unit."""
        for index, (unit, flat) in enumerate(zip(self.units, flats, strict=True)):
            yield State(kind, index, flat, unit.first, of_replica, on_host)


def scales_of(group: Group) -> Group:
    """The same ranks, for messages beside those that the ledger counts."""
    return Group(f"{group.axis}, scales", group.ranks, group.ranks[group.rank], group.handle, group.status)
