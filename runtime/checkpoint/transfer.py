"""Moves weights in memory from one layout to another, exactly to the bit.

The boxes of a checkpoint name what each rank holds and needs. Where a save writes a box and a load reads parts of it,
here one rank that holds it sends these parts to each rank that needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.planner import ReadItem

from ..parallel.comm import Group
from .slices import LoadPieces, Piece, SavePieces

_T = TypeVar("_T")


class Transfer:
    """The messages from `held` pieces of all ranks to `needed` ones. All ranks of `world` must construct it at once."""

    def __init__(self, held: Sequence[Piece], needed: Sequence[Piece], world: Group, device: torch.device) -> None:
        """Raises ValueError for a piece that no rank holds, and where held pieces leave a part of a tensor out."""
        self.world, self.device, saver, loader = world, device, SavePieces(held), LoadPieces(needed)
        dealt, metadata = saver.create_global_plan(self._together(saver.create_local_plan()))
        holder = {item.index: rank for rank, plan in enumerate(dealt) for item in plan.items}
        loader.set_up_planner({}, metadata)
        mine: list[ReadItem] = loader.create_local_plan().items
        all_needs = self._together(mine)
        # By rank: views of pieces here, in the order of the items of the receiving rank.
        self._sent = [[_box(saver.lookup_object(item.storage_index), item.storage_offsets, item.lengths)
                       for item in needs if holder[item.storage_index] == world.rank]
                      for needs in all_needs]  # fmt: skip
        self._received = [[_box(loader.lookup_tensor(item.dest_index), item.dest_offsets, item.lengths)
                           for item in mine if holder[item.storage_index] == rank]
                          for rank in range(world.size)]  # fmt: skip

    def _together(self, value: _T) -> list[_T]:
        values: list[_T | None] = [None] * self.world.size
        dist.all_gather_object(values, value, group=self.world.handle)
        return [each for each in values if each is not None]

    @property
    def num_bytes(self) -> int:
        """Bytes that this rank sends to others."""
        return sum(_num_bytes(box) for rank, boxes in enumerate(self._sent) if rank != self.world.rank for box in boxes)

    @property
    def received_bytes(self) -> int:
        """Bytes that others send to this rank."""
        return sum(_num_bytes(box) for rank, boxes in enumerate(self._received) if rank != self.world.rank
                   for box in boxes)  # fmt: skip

    @torch.no_grad()
    def run(self) -> None:
        """Copies the weights that `held` has now into `needed`. All ranks must call it."""
        sent = [_joined([_bytes(box) for box in boxes], self.device) for boxes in self._sent]
        sizes = [sum(map(_num_bytes, boxes)) for boxes in self._received]
        arrived = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        self.world.all_to_all(arrived, torch.cat(sent), sizes, [len(part) for part in sent])
        start = 0
        for box in (box for boxes in self._received for box in boxes):
            part = arrived[start : start + _num_bytes(box)]
            box.copy_(part.clone().view(box.dtype).view(box.shape))  # a copy, because bytes may lie unaligned
            start += len(part)


def _box(tensor: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    for dim, (start, length) in enumerate(zip(offsets, lengths, strict=True)):
        tensor = tensor.narrow(dim, start, length)
    return tensor


def _num_bytes(box: Tensor) -> int:
    return box.numel() * box.element_size()


def _bytes(box: Tensor) -> Tensor:
    return box.detach().contiguous().view(-1).view(torch.uint8)


def _joined(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.empty(0, dtype=torch.uint8, device=device)
