"""Runs the passes of one step on one stage: micro-batches through chunks, activations and gradients between stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import split_backward
from .comm import Work
from .mesh import Mesh
from .model import DecoderChunk
from .resharding import Resharding
from .schedules import Action

Batch = Callable[[int], tuple[Tensor, ...]]
_NAMES = {"F": "forward pass", "B": "backward pass", "I": "backward pass of the inputs",
          "W": "backward pass of the weights"}  # fmt: skip


class _Anchor(torch.autograd.Function):
    """Holds on to the graph of an output, but not to the output: it has been sent and is not needed here."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, slot: list[Tensor]) -> Tensor:
        ctx.slot = slot
        return out.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.slot.pop(), None


class _Arrival(torch.autograd.Function):
    """The input of a chunk, which nothing here holds on to: only what saves it for its backward pass."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, given: Tensor, gradient: list[Tensor]) -> Tensor:
        ctx.gradient = gradient
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        ctx.gradient.append(grads[0])
        return None, None, None


@dataclass
class _Flight:
    """A forward pass that waits for its backward pass. gradient: where that leaves the one of its input; None on the
    first chunk."""

    gradient: list[Tensor] | None
    root: Tensor
    slot: list[Tensor] = field(default_factory=list)


class Pipeline:
    """One stage and its chunks. devices: the stage of every chunk of the model; `shapes`: of the activations that each
    of these leaves, [micro batch, seq / (cp x tp), hidden]; arrivals: by chunk of this stage, what brings the
    activations that arrive into the cut of its first layer."""

    def __init__(
        self, mesh: Mesh, chunks: Sequence[DecoderChunk], devices: Sequence[int], actions: Sequence[Action],
        num_micro_batches: int, shapes: Sequence[tuple[int, ...]], tokens_per_step: int,
        arrivals: Mapping[int, Resharding],
    ) -> None:  # fmt: skip
        self.mesh, self.chunks, self.devices, self.actions, self.shapes = mesh, chunks, devices, actions, shapes
        self.arrivals = arrivals
        self.num_micro_batches, self.tokens_per_step = num_micro_batches, tokens_per_step
        self.numbers = [number for number, device in enumerate(devices) if device == mesh.place.stage]
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._late: dict[tuple[int, int], split_backward.Late] = {}
        self._here: dict[tuple[str, int, int], Tensor] = {}  # between two chunks of this stage
        self._sending: list[tuple[Work, Tensor]] = []

    @property
    def splits(self) -> bool:
        """Whether any backward pass of this stage is split."""
        return any(action.kind == "W" for action in self.actions)

    def run(self, batch: Batch) -> Tensor:
        """All passes of a step. Returns this rank's part of the mean loss per token: 0 where the head is not."""
        context = self.chunks[0].context
        total = torch.zeros((), dtype=torch.float64, device=context.device)
        with split_backward.splitting(self.splits):
            for action in self.actions:
                what = f"{_NAMES[action.kind]} of micro-batch {action.micro_batch}, chunk {action.chunk}"
                self.mesh["world"].status.set(what)
                if action.kind == "F":
                    total += self._forward(action, batch)
                elif action.kind == "W":
                    split_backward.make(self._taken(self._late, action))
                else:
                    self._backward(action)
        for work, _ in self._sending:
            self.mesh["pp"].wait(work, "send")
        self._sending.clear()
        for what, left in (("backward pass", self._flights), ("gradients of weights", self._late)):
            if left:
                chunk, micro_batch = next(iter(left))
                raise RuntimeError(f"the schedule has no {what} for micro-batch {micro_batch} of chunk {chunk}")
        return total

    def _taken(self, waiting: dict[tuple[int, int], Any], action: Action) -> Any:
        if action[1:] not in waiting:
            raise RuntimeError(f"{_NAMES[action.kind]} of micro-batch {action.micro_batch}, chunk {action.chunk}: "
                               "nothing waits for it; the schedule has it twice or too early")  # fmt: skip
        return waiting.pop(action[1:])

    def _forward(self, action: Action, batch: Batch) -> Tensor | float:
        chunk = self.chunks[action.chunk]
        tokens, *targets = batch(action.micro_batch)
        gradient: list[Tensor] | None = None
        if chunk.embedding is None:
            gradient = []
            anchor = torch.zeros((), requires_grad=True, device=chunk.context.device)
            tokens = _Arrival.apply(anchor, self._arrived(action), gradient)  # type: ignore[no-untyped-call]
        out = chunk(tokens, *targets)
        del tokens
        if chunk.head is not None:
            loss = out / self.tokens_per_step
            self._flights[action[1:]] = _Flight(gradient, loss)
            found: Tensor = loss.detach().double()
            return found
        slot: list[Tensor] = []
        root: Tensor = _Anchor.apply(out, slot)  # type: ignore[no-untyped-call]
        self._flights[action[1:]] = _Flight(gradient, root, slot)
        self._send(out.detach(), "forward", action)
        return 0.0

    def _arrived(self, action: Action) -> Tensor:
        """The input of a chunk: resharded before it is kept, so that nothing is kept twice."""
        given, way = self._receive("forward", action), self.arrivals.get(action.chunk)
        return given if way is None else way.there(given)

    def _backward(self, action: Action) -> None:
        flight: _Flight = self._taken(self._flights, action)
        if self.chunks[action.chunk].head is None:
            flight.slot.append(self._receive("backward", action))
        root, gradient = flight.root, flight.gradient
        del flight
        with split_backward.put_off() if action.kind == "I" else nullcontext() as late:
            root.backward()  # type: ignore[no-untyped-call]
        if late is not None:
            self._late[action[1:]] = late
        if gradient:
            way, found = self.arrivals.get(action.chunk), gradient.pop()
            self._send(found if way is None else way.back(found), "backward", action)

    def _tag(self, direction: str, sending_chunk: int, micro_batch: int) -> int:
        """Tells the messages between two stages apart; `sending_chunk` counts the chunks of the model."""
        return (sending_chunk * self.num_micro_batches + micro_batch) * 2 + (direction == "backward")

    def _send(self, tensor: Tensor, direction: str, action: Action) -> None:
        number, pp = self.numbers[action.chunk], self.mesh["pp"]
        to = self.devices[number + (1 if direction == "forward" else -1)]
        if to == self.mesh.place.stage:
            self._here[direction, number, action.micro_batch] = tensor
            return
        # What has arrived need not be kept.
        self._sending = [each for each in self._sending if not each[0].is_completed()]
        edge = self.mesh.edges[direction, self.mesh.place.stage, to]
        tensor = tensor.contiguous()
        tag = self._tag(direction, number, action.micro_batch)
        self._sending.append((edge.send(tensor, pp.ranks[to], tag), tensor))

    def _receive(self, direction: str, action: Action) -> Tensor:
        pp, context = self.mesh["pp"], self.chunks[0].context
        sender = self.numbers[action.chunk] - (1 if direction == "forward" else -1)
        source = self.devices[sender]
        if source == self.mesh.place.stage:
            return self._here.pop((direction, sender, action.micro_batch))
        edge = self.mesh.edges[direction, source, self.mesh.place.stage]
        shape = self.shapes[sender if direction == "forward" else self.numbers[action.chunk]]
        into = torch.empty(shape, dtype=context.dtype, device=context.device)
        return edge.receive(into, pp.ranks[source], self._tag(direction, sender, action.micro_batch))
