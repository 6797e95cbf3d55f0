"""Runs the passes of one step on one stage, and sends activations and gradients between stages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.decoder import DecoderChunk
from . import split_backward
from .comm import Group, Work
from .mesh import Mesh
from .reductions import Reductions
from .resharding import Resharding
from .schedules import Action

Batch = Callable[[int], tuple[Tensor, ...]]
# Receives posted while a stage computes on another message, because a sender (and gloo) waits for a posted receive. In
# 1F1B they are the next one of each direction. The memory model counts them (StackSpec.messages_ahead).
AHEAD = 2
_NAMES = {"F": "forward pass", "B": "backward pass", "I": "backward pass of the inputs",
          "W": "backward pass of the weights"}  # fmt: skip


class _Anchor(torch.autograd.Function):
    """Keeps the graph of an output but not the output, which has been sent and is not needed here."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, slot: list[Tensor]) -> Tensor:
        ctx.slot = slot
        return out.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.slot.pop(), None


class _Arrival(torch.autograd.Function):
    """The input of a chunk. Only the graph keeps it, for its backward pass."""

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
    """A forward pass that waits for its backward pass.

    gradient: the slot for the gradient of its input; None on the first chunk.
    """

    gradient: list[Tensor] | None
    root: Tensor
    slot: list[Tensor] = field(default_factory=list)


class _Message(NamedTuple):
    """A message that a pass of this stage needs. `chunk` of the model sends it."""

    direction: str
    chunk: int
    micro_batch: int


class _Posted(NamedTuple):
    """A posted receive and its buffer."""

    message: _Message
    group: Group
    work: Work
    into: Tensor


class Pipeline:
    """One stage and its chunks.

    devices: the stage of every chunk of the model. shapes: the output shape of every chunk, [micro batch,
    seq / (cp x tp), hidden]. arrivals: chunk of this stage -> resharding of arriving activations for its first layer.
    reductions: those of gradients; None: none runs beside the passes.
    """

    def __init__(
        self, mesh: Mesh, chunks: Sequence[DecoderChunk], devices: Sequence[int], actions: Sequence[Action],
        num_micro_batches: int, shapes: Sequence[tuple[int, ...]], tokens_per_step: int,
        arrivals: Mapping[int, Resharding], reductions: Reductions | None = None,
    ) -> None:  # fmt: skip
        self.mesh, self.chunks, self.devices, self.actions, self.shapes = mesh, chunks, devices, actions, shapes
        self.arrivals, self.reductions = arrivals, reductions or Reductions()
        self.num_micro_batches, self.tokens_per_step = num_micro_batches, tokens_per_step
        self.numbers = [number for number, device in enumerate(devices) if device == mesh.coords.stage]
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._late: dict[tuple[int, int], split_backward.Late] = {}
        self._here: dict[_Message, Tensor] = {}  # messages between two chunks of this stage
        self._sending: list[tuple[Work, Tensor]] = []  # each with the tensor that must live until it is sent
        self._posted: deque[_Posted] = deque()
        self._to_post: Iterator[_Message] = iter(())

    @property
    def splits(self) -> bool:
        """Whether any backward pass of this stage is split."""
        return any(action.kind == "W" for action in self.actions)

    def run(self, batch: Batch) -> Tensor:
        """Runs all passes of a step. Returns this rank's part of the mean loss per token: 0 without the head."""
        with split_backward.splitting(self.splits):
            return self._run(self.actions, batch)

    def drop(self) -> None:
        """Forgets the passes of a step that a forward pass has ended by an error, on a pipeline of one stage."""
        self._flights.clear()

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> Tensor:
        """Runs the forward passes of a step, in the same order. Returns what `run` returns."""
        return self._run([action for action in self.actions if action.kind == "F"], batch)

    def _run(self, actions: Sequence[Action], batch: Batch) -> Tensor:
        context = self.chunks[0].context
        # In float64, because losses of many micro-batches and ranks are summed and a check compares them to 12 digits.
        total = torch.zeros((), dtype=torch.float64, device=context.device)
        self._to_post = self._messages(actions)
        self._post_receives(AHEAD)
        for action in actions:
            what = f"{_NAMES[action.kind]} of micro-batch {action.micro_batch}, chunk {action.chunk}"
            self.mesh["world"].status.set(what)
            if action.kind == "F":
                total += self._forward(action, batch)
            elif action.kind == "W":
                split_backward.make(self._taken(self._late, action))
            else:
                self._backward(action)
            self.reductions.after_pass()
        # Wait only here: a stage that waited after each send would stop until its neighbour posts the receive. Messages
        # keep the stages in order, so no barrier is needed between steps. All sends must be complete, because the next
        # step uses the same tags.
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
        del tokens  # only the graph keeps the arrived tensor, if it needs it
        if chunk.head is not None:
            loss = out / self.tokens_per_step  # tokens of the whole batch, so that all reductions of gradients are sums
            if torch.is_grad_enabled():
                self._flights[action[1:]] = _Flight(gradient, loss)
            mean: Tensor = loss.detach().double()
            return mean
        if torch.is_grad_enabled():
            slot: list[Tensor] = []
            root: Tensor = _Anchor.apply(out, slot)  # type: ignore[no-untyped-call]
            self._flights[action[1:]] = _Flight(gradient, root, slot)
        self._send(out.detach(), "forward", action)
        return 0.0

    def _arrived(self, action: Action) -> Tensor:
        """The input of a chunk. It is resharded before it is kept, so that only one copy is kept."""
        given, resharding = self._receive(action), self.arrivals.get(action.chunk)
        return given if resharding is None else resharding.there(given)

    def _backward(self, action: Action) -> None:
        flight: _Flight = self._taken(self._flights, action)
        # The gradient bypasses autograd: the root of the graph is a scalar, whose backward pass takes the gradient from
        # the slot. No reference to it remains after use.
        if self.chunks[action.chunk].head is None:
            flight.slot.append(self._receive(action))
        root, gradient = flight.root, flight.gradient
        del flight
        with nullcontext() if gradient is None else self.reductions.put_off():
            with split_backward.put_off() if action.kind == "I" else nullcontext() as late:
                root.backward()  # type: ignore[no-untyped-call]
            if late is not None:
                self._late[action[1:]] = late
            if gradient:
                resharding, grad_input = self.arrivals.get(action.chunk), gradient.pop()
                grad_input = grad_input if resharding is None else resharding.back(grad_input)
                self._send(grad_input, "backward", action)

    def _before(self, action: Action) -> _Message:
        """The tensor that a pass takes from the previous or next chunk."""
        direction, step = ("forward", -1) if action.kind == "F" else ("backward", 1)
        return _Message(direction, self.numbers[action.chunk] + step, action.micro_batch)

    def _messages(self, actions: Sequence[Action]) -> Iterator[_Message]:
        """The messages that this stage needs for its passes, in their order."""
        for action in actions:
            chunk = self.chunks[action.chunk]
            if action.kind == "W" or (chunk.embedding if action.kind == "F" else chunk.head) is not None:
                continue
            message = self._before(action)
            if self.devices[message.chunk] != self.mesh.coords.stage:
                yield message

    def _tag(self, message: _Message) -> int:
        """A tag that is unique among the messages between two stages."""
        return (message.chunk * self.num_micro_batches + message.micro_batch) * 2 + (message.direction == "backward")

    def _send(self, tensor: Tensor, direction: str, action: Action) -> None:
        message, pp = _Message(direction, self.numbers[action.chunk], action.micro_batch), self.mesh["pp"]
        to = self.devices[message.chunk + (1 if direction == "forward" else -1)]
        if to == self.mesh.coords.stage:
            self._here[message] = tensor
            return
        # Arrived messages are removed.
        self._sending = [sending for sending in self._sending if not sending[0].is_completed()]
        edge = self.mesh.edges[direction, self.mesh.coords.stage, to]
        self._sending.append(edge.send(tensor, pp.ranks[to], self._tag(message)))

    def _receive(self, action: Action) -> Tensor:
        message = self._before(action)
        if self.devices[message.chunk] == self.mesh.coords.stage:
            return self._here.pop(message)
        self._post_receives(AHEAD + 1)  # the needed one is posted already; AHEAD remain during this pass
        posted = self._posted.popleft()
        # Receives are posted in the order of the passes. A mismatch is a bug of this file; training on the wrong
        # activations would go unnoticed.
        if posted.message != message:
            raise RuntimeError(f"this stage asked for {posted.message} where its next pass needs {message}")
        posted.group.wait(posted.work, f"receive from rank {self.mesh['pp'].ranks[self.devices[message.chunk]]}")
        return posted.into

    def _post_receives(self, number: int) -> None:
        """Posts receives until `number` of them are open."""
        context, pp = self.chunks[0].context, self.mesh["pp"]
        for message in islice(self._to_post, number - len(self._posted)):
            source = self.devices[message.chunk]
            group = self.mesh.edges[message.direction, source, self.mesh.coords.stage]
            shape = self.shapes[message.chunk - (message.direction == "backward")]
            into = torch.empty(shape, dtype=context.dtype, device=context.device)
            work = group.receive(into, pp.ranks[source], self._tag(message))
            self._posted.append(_Posted(message, group, work, into))
