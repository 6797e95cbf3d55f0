"""Activation offload: saved tensors of a layer are in host memory between its forward and its backward pass.

The GPU holds the saved tensors of one layer at a time.

Copies do not overlap with compute (the stack `meshwright` prices them so). Weights and positions stay on the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from . import host


class _Piece:
    """One saved storage of a layer: on the device while the layer runs, otherwise in host memory.

    It lives as long as the saved tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        length = tensor.untyped_storage().nbytes() // tensor.element_size()
        self.device = tensor.device
        self.here: Tensor | None = torch.as_strided(tensor.detach(), (length,), (1,), 0)
        self.there: Tensor | None = None

    def send(self) -> None:
        if self.here is not None:
            self.there, self.here = host.copy(self.here, self.here.dtype), None

    def fetch(self) -> Tensor:
        if self.here is None and self.there is not None:
            self.here, self.there = self.there.to(self.device, copy=True), None
        if self.here is None:
            raise RuntimeError("an offloaded tensor is neither here nor there")
        return self.here


class _Layer:
    """The storages saved by one forward pass of a layer, without strong references."""

    def __init__(self) -> None:
        self.pieces: list[weakref.ref[_Piece]] = []

    def move(self, how: Callable[[_Piece], Any]) -> None:
        for piece in (live for reference in self.pieces if (live := reference()) is not None):
            how(piece)


class _Packed:
    """The placeholder of a saved tensor in the graph."""

    def __init__(self, layer: _Layer, piece: _Piece, tensor: Tensor) -> None:
        self.layer, self.piece = layer, piece
        self.how = tensor.size(), tensor.stride(), tensor.storage_offset()

    def tensor(self) -> Tensor:
        if self.piece.here is None:
            self.layer.move(_Piece.fetch)  # all saved tensors of the layer, whose backward pass begins
        return torch.as_strided(self.piece.fetch(), *self.how)


class Offload:
    """Sends the saved tensors of layers to the host."""

    def __init__(self) -> None:
        self._staying: set[int] = set()
        self._layer: _Layer | None = None
        self._pieces: dict[tuple[int, torch.dtype], _Piece] = {}

    def stays(self, tensors: Iterable[Tensor]) -> None:
        """Excludes storages that stay on the device anyway."""
        self._staying.update(address(tensor) for tensor in tensors)

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Context around the forward pass of one layer."""
        self._layer = layer = _Layer()
        with torch.autograd.graph.saved_tensors_hooks(self.pack, unpack):
            yield
        self._layer = None
        # Each storage was kept until here, so that no other one could take its address.
        self._pieces.clear()
        layer.move(_Piece.send)

    def pack(self, tensor: Tensor) -> Any:
        if self._layer is None or address(tensor) in self._staying:
            return tensor
        key = address(tensor), tensor.dtype
        if key not in self._pieces:
            self._pieces[key] = _Piece(tensor)
            self._layer.pieces.append(weakref.ref(self._pieces[key]))
        return _Packed(self._layer, self._pieces[key], tensor)


def unpack(packed: Any) -> Any:
    """The saved tensor, or another object that was saved in its place."""
    return packed.tensor() if isinstance(packed, _Packed) else packed


def address(tensor: Tensor) -> int:
    """Key of a tensor's storage, also for storages without memory, which have no data_ptr."""
    return int(tensor.untyped_storage()._cdata)
