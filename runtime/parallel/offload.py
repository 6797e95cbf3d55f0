"""Activations in host memory: what layers save for their backward passes is there from the end of the layer's forward
pass until its backward pass begins. The GPU has that of one layer at a time.

Copies are not hidden behind compute (the stack `meshwright` prices them so). Weights and positions stay where they are.
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
    """One storage that a layer saved: here while the layer runs, else in host memory. It lives as long as what saved it
    does."""

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
    """What one forward pass of a layer saved. It does not keep it."""

    def __init__(self) -> None:
        self.pieces: list[weakref.ref[_Piece]] = []

    def move(self, how: Callable[[_Piece], Any]) -> None:
        for piece in (live for reference in self.pieces if (live := reference()) is not None):
            how(piece)


class _Packed:
    """What the graph has in place of a saved tensor."""

    def __init__(self, layer: _Layer, piece: _Piece, tensor: Tensor) -> None:
        self.layer, self.piece = layer, piece
        self.how = tensor.size(), tensor.stride(), tensor.storage_offset()

    def tensor(self) -> Tensor:
        if self.piece.here is None:
            self.layer.move(_Piece.fetch)  # all that the layer saved: its backward pass begins
        return torch.as_strided(self.piece.fetch(), *self.how)


class Offload:
    """Sends what layers save to the host."""

    def __init__(self) -> None:
        self._staying: set[int] = set()
        self._layer: _Layer | None = None
        self._pieces: dict[tuple[int, torch.dtype], _Piece] = {}

    def stays(self, tensors: Iterable[Tensor]) -> None:
        """These storages are on the device anyway."""
        self._staying.update(address(tensor) for tensor in tensors)

    @contextmanager
    def layer(self) -> Iterator[None]:
        """Around the forward pass of one layer."""
        self._layer = layer = _Layer()
        with torch.autograd.graph.saved_tensors_hooks(self.pack, unpack):
            yield
        self._layer = None
        # Until here each storage was kept, so that no other one could take its address.
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
    """The saved tensor, or what else was put in its place."""
    return packed.tensor() if isinstance(packed, _Packed) else packed


def address(tensor: Tensor) -> int:
    """Of a tensor's storage, without memory too, which has no data_ptr."""
    return int(tensor.untyped_storage()._cdata)
