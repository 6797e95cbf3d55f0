"""Runs each part of a model with whole weights. Sharded weights of the next layer are gathered beside this one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .sharding import Unit, Weights


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
    """Runs each part of a model with gathered weights, and gathers them again before its backward pass.

    layers: the layers among the parts, in order. The gather of the next layer runs beside a layer, in both directions,
    so that the weights of two layers are whole at a time, as in the memory model.
    """

    def __init__(self, units_of: dict[nn.Module, list[Weights]], layers: Collection[nn.Module] = ()) -> None:
        self.units_of = units_of
        self._next = dict(pairwise(layers))
        self._previous = {after: before for before, after in self._next.items()}

    def __call__(self, module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        for unit in self.units_of[module]:
            unit.gather()
        units = [unit for unit in self.units_of[module] if unit.zero == 3]
        # Frozen weights have no gradient. The gradient of tied embeddings completes with the embedding's part, which
        # needs no row, so the head's weights do not wait for it.
        without = [unit for unit in units if not isinstance(unit, Unit) or unit.is_token_table]
        if without and x.requires_grad:
            x = _Input.apply(x, without)  # type: ignore[no-untyped-call]
        self._prefetch(self._next.get(module))
        out = function(x)
        for unit in units:
            unit.release()
        # The backward pass of the part starts with the gradient of the output, so the weights are gathered before they
        # are needed. A table that is only looked up needs no row for its gradient.
        if units and out.requires_grad and getattr(module, "reads_again", True):
            out.register_hook(lambda grad: self._again(module, units))  # type: ignore[no-untyped-call]
        return out

    def _again(self, module: nn.Module, units: list[Weights]) -> None:
        for unit in units:
            unit.gather()
        self._prefetch(self._previous.get(module))

    def _prefetch(self, module: nn.Module | None) -> None:
        for unit in self.units_of[module] if module is not None else ():
            unit.start_gather()
