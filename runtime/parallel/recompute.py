"""Recomputation in the backward pass: whole layers, core attention, expert blocks, outputs of norms, activations and
the up projections of latent attention.

Whole regions run under torch's checkpoint. The output of a norm or activation is also the saved input of the next
product, and a checkpoint of both would recompute the product. Its saved copies are therefore replaced by a recipe that
recomputes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .offload import Offload, address, unpack

Function = Callable[..., Tensor]
_Result = TypeVar("_Result", Tensor, tuple[Tensor, ...])


class _Recipe:
    """A recipe that recomputes tensors once for all their uses and frees them with the last use.

    inputs: in packed form, because other recipes may recompute them.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], inputs: tuple[Any, ...]) -> None:
        self.function, self.inputs = function, inputs
        self.users, self.made = 0, None

    made: tuple[Tensor, ...] | None

    def cook(self, index: int) -> Tensor:
        if self.made is None:
            with torch.no_grad():
                self.made = self.function(*map(_unpack, self.inputs))
        self.users -= 1
        made = self.made[index]
        if self.users <= 0:
            self.made = None
        return made


class Recompute:
    """The recomputed part of a layer: `modules` of layouts.MODULES (attn, norm, act, moe, ...), or all (`entire`).

    offload: the offload of the saved tensors; None: they stay on the device.
    """

    def __init__(
        self, modules: tuple[str, ...] = (), *, entire: bool = False, offload: Offload | None = None
    ) -> None:
        self.modules, self.entire, self.offload = frozenset(modules), entire, offload
        self._recipes: dict[int, tuple[Tensor, _Recipe, int]] = {}

    def region(self, module: str, function: Function, *inputs: Tensor) -> Tensor:
        """`function(*inputs)`. If `module` is recomputed, only inputs and output are kept."""
        if module not in self.modules:
            return function(*inputs)
        return whole(function, *inputs)

    def inside(self, module: str) -> Recompute:
        """The recomputation inside a region: none if `module` is recomputed, because nothing is kept there."""
        return Recompute() if module in self.modules else self

    def output(self, module: str, function: Function, *inputs: Tensor) -> Tensor:
        """`function(*inputs)`. If `module` is recomputed, users of the output save its recipe."""
        return self.outputs(module, lambda *tensors: (function(*tensors),), *inputs)[0]

    def outputs(self, module: str, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """The same for several outputs, which are recomputed together."""
        outputs = function(*inputs)
        if module in self.modules:
            recipe = _Recipe(function, tuple(map(self._pack, inputs)))
            # Each tensor is kept until the layer ends, so that no other tensor can take its address.
            self._recipes.update({address(out): (out, recipe, index) for index, out in enumerate(outputs)})
        return outputs

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Around the forward pass of one layer."""
        if not self.modules & {"norm", "act", "mla"}:
            yield
            return
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
            yield
        self._recipes.clear()

    def _pack(self, tensor: Tensor) -> Any:
        entry = self._recipes.get(address(tensor))
        if entry is None:
            return tensor if self.offload is None else self.offload.pack(tensor)
        _, recipe, index = entry
        recipe.users += 1
        return recipe, index, tensor.size(), tensor.stride(), tensor.storage_offset()


def _unpack(packed: Any) -> Tensor:
    if not isinstance(packed, tuple):
        tensor: Tensor = unpack(packed)
        return tensor
    recipe, index, size, stride, offset = packed
    return torch.as_strided(recipe.cook(index), size, stride, offset)


def whole(function: Callable[..., _Result], *inputs: Tensor) -> _Result:
    """`function(*inputs)`, one tensor or several, with only the inputs kept. Layers draw no random numbers."""
    result: _Result = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result
