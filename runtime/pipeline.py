"""Runs the passes of one step on one stage: micro-batches through chunks, activations and gradients between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .comm import Work
from .mesh import Mesh
from .model import DecoderChunk
from .schedules import Action

Batch = Callable[[int], tuple[Tensor, Tensor]]


class _Anchor(torch.autograd.Function):
    """Holds on to the graph of an output, but not to the output: it has been sent and is not needed here."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, slot: list[Tensor]) -> Tensor:
        ctx.slot = slot
        return out.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.slot.pop(), None


@dataclass
class _Flight:
    """A forward pass that waits for its backward pass. input: None on the first chunk."""

    input: Tensor | None
    root: Tensor
    slot: list[Tensor] = field(default_factory=list)


class Pipeline:
    """One stage and its chunks. `shape`: of the activations between stages, [micro batch, seq / (cp x tp), hidden]."""

    def __init__(
        self, mesh: Mesh, chunks: Sequence[DecoderChunk], actions: Sequence[Action], num_micro_batches: int,
        shape: tuple[int, ...], tokens_per_step: int,
    ) -> None:  # fmt: skip
        self.mesh, self.chunks, self.actions, self.shape = mesh, chunks, actions, shape
        self.num_micro_batches, self.tokens_per_step = num_micro_batches, tokens_per_step
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._sending: list[tuple[Work, Tensor]] = []

    def run(self, batch: Batch) -> Tensor:
        """All passes of a step. Returns this rank's part of the mean loss per token: 0 where the head is not."""
        context = self.chunks[0].context
        total = torch.zeros((), dtype=torch.float64, device=context.device)
        for action in self.actions:
            name = "forward" if action.kind == "F" else "backward"
            self.mesh["world"].status.set(f"{name} pass of micro-batch {action.micro_batch}, chunk {action.chunk}")
            if action.kind == "F":
                total += self._forward(action, batch)
            else:
                self._backward(action)
        for work, _ in self._sending:
            self.mesh["pp"].wait(work, "send")
        self._sending.clear()
        return total

    def _forward(self, action: Action, batch: Batch) -> Tensor | float:
        chunk = self.chunks[action.chunk]
        tokens, targets = batch(action.micro_batch)
        given = None if chunk.embedding is not None else self._receive("forward", action)
        out = chunk(tokens if given is None else given.requires_grad_(), targets)
        if chunk.head is not None:
            loss = out / self.tokens_per_step
            self._flights[action[1:]] = _Flight(given, loss)
            found: Tensor = loss.detach().double()
            return found
        slot: list[Tensor] = []
        root: Tensor = _Anchor.apply(out, slot)  # type: ignore[no-untyped-call]
        self._flights[action[1:]] = _Flight(given, root, slot)
        self._send(out.detach(), "forward", action)
        return 0.0

    def _backward(self, action: Action) -> None:
        flight = self._flights.pop(action[1:])
        if self.chunks[action.chunk].head is None:
            flight.slot.append(self._receive("backward", action))
        root, given = flight.root, flight.input
        del flight
        root.backward()  # type: ignore[no-untyped-call]
        if given is not None and given.grad is not None:
            self._send(given.grad, "backward", action)

    def _tag(self, direction: str, sending_chunk: int, micro_batch: int) -> int:
        """Tells the messages of an edge apart; `sending_chunk` counts the sender's own chunks."""
        return (sending_chunk * self.num_micro_batches + micro_batch) * 2 + (direction == "backward")

    def _send(self, tensor: Tensor, direction: str, action: Action) -> None:
        stage, hop = self.mesh.place.stage, 1 if direction == "forward" else -1
        pp = self.mesh["pp"]
        # What has arrived need not be kept.
        self._sending = [each for each in self._sending if not each[0].is_completed()]
        edge = self.mesh.edges[direction, stage]
        tensor = tensor.contiguous()
        tag = self._tag(direction, action.chunk, action.micro_batch)
        self._sending.append((edge.send(tensor, pp.ranks[(stage + hop) % pp.size], tag), tensor))

    def _receive(self, direction: str, action: Action) -> Tensor:
        stage, hop = self.mesh.place.stage, 1 if direction == "forward" else -1
        pp, context = self.mesh["pp"], self.chunks[0].context
        source = (stage - hop) % pp.size
        # From the last stage back to the first (or the other way), the message crosses to the next chunk.
        wraps = (source + hop) != stage
        edge = self.mesh.edges[direction, source]
        into = torch.empty(self.shape, dtype=context.dtype, device=context.device)
        tag = self._tag(direction, action.chunk - hop * wraps, action.micro_batch)
        return edge.receive(into, pp.ranks[source], tag)
