"""What torch keeps for the backward pass."""

from __future__ import annotations

import torch


class KeptBytes:
    """Bytes that the backward pass keeps beside weights, each storage once: hooks for `saved_tensors_hooks`."""

    def __init__(self, *modules: torch.nn.Module) -> None:
        self._weights = {p.untyped_storage().data_ptr() for module in modules for p in module.parameters()}
        self._kept: dict[int, int] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def num_bytes(self) -> int:
        return sum(self._kept.values())
