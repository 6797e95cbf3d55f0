"""Recomputation in the backward pass: whole layers, core attention, expert blocks, outputs of norms and activations.

Whole regions run under torch's checkpoint. A norm or activation output is also the input that the next product saves;
checkpointing the two together would redo the product. So its saved copies are replaced by the recipe to make it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Function = Callable[..., Tensor]


class _Recipe:
    """How to make a tensor again; made once for all that saved it, freed with the last of them."""

    def __init__(self, function: Function, inputs: tuple[Tensor, ...]) -> None:
        self.function, self.inputs = function, inputs
        self.users, self.made = 0, None

    made: Tensor | None

    def cook(self) -> Tensor:
        if self.made is None:
            with torch.no_grad():
                self.made = self.function(*self.inputs)
        self.users -= 1
        made = self.made
        if self.users <= 0:
            self.made = None
        return made


class Recompute:
    """What a layer drops: `modules` out of layouts.MODULES (attn, norm, act, moe)."""

    def __init__(self, modules: tuple[str, ...] = ()) -> None:
        self.modules = frozenset(modules)
        self._recipes: dict[int, tuple[Tensor, _Recipe]] = {}

    def region(self, module: str, function: Function, *inputs: Tensor) -> Tensor:
        """`function(*inputs)`; where `module` is dropped, only inputs and output are kept."""
        if module not in self.modules:
            return function(*inputs)
        return whole(function, *inputs)

    def output(self, module: str, function: Function, *inputs: Tensor) -> Tensor:
        """`function(*inputs)`; where `module` is dropped, what saves the output saves how to make it instead."""
        out = function(*inputs)
        if module in self.modules:
            # The tensor is kept until the layer ends, so that no other one can take its address.
            self._recipes[_address(out)] = out, _Recipe(function, inputs)
        return out

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Around the forward pass of one layer."""
        if not self.modules & {"norm", "act"}:
            yield
            return
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
            yield
        self._recipes.clear()

    def _pack(self, tensor: Tensor) -> Any:
        found = self._recipes.get(_address(tensor))
        if found is None:
            return tensor
        recipe = found[1]
        recipe.users += 1
        return recipe, tensor.size(), tensor.stride(), tensor.storage_offset()


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    recipe, size, stride, offset = packed
    return torch.as_strided(recipe.cook(), size, stride, offset)


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # of tensors without memory too, which have no data_ptr


def whole(function: Function, *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, keeping the inputs only. Nothing in a layer draws random numbers."""
    result: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result
