"""Maps the flat buffers of a rank to boxes of whole parameters, as torch.distributed.checkpoint expects.

A rank holds a run of elements of (its tensor-parallel part of) a parameter. A run is not a box, so it is cut into the
rest of a row, whole rows, and the start of a row. Any layout can then read a checkpoint of any other.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load

Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, sizes


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Boxes of the elements start..stop of a row-major tensor of `shape`, in order. Each box is one run."""
    if start >= stop:
        return
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # whole rows
    if start % row:
        inside = (start // row) * row
        for offsets, sizes in boxes(shape[1:], start - inside, min(stop, inside + row) - inside):
            yield (start // row, *offsets), (1, *sizes)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    if stop % row and last >= first:
        for offsets, sizes in boxes(shape[1:], 0, stop % row):
            yield (last, *offsets), (1, *sizes)


@dataclass(frozen=True)
class Piece:
    """A box of a whole tensor, and the memory of its elements on this rank."""

    name: str  # the whole tensor: `weights.NAME`, `exp_avg.NAME`, ...
    shape: tuple[int, ...]  # shape of the whole tensor
    offsets: tuple[int, ...]  # start of the box per dim
    tensor: Tensor  # [sizes of the box], a view of the flat buffer
    optional: bool = False  # checkpoints of older versions lack it: its elements stay

    @property
    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(self.offsets), self.tensor.size())

    @property
    def index(self) -> MetadataIndex:
        return MetadataIndex(self.name, torch.Size(self.offsets))


class SavePieces(DefaultSavePlanner):
    """Writes pieces. One rank writes a piece that several ranks hold."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._pieces = {piece.index: piece for piece in pieces}

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([
            WriteItem(index, WriteItemType.SHARD, tensor_data=TensorWriteData(
                piece.chunk, TensorProperties.create_from_tensor(piece.tensor), torch.Size(piece.shape)))
            for index, piece in self._pieces.items()
        ])  # fmt: skip
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._pieces[index].tensor


class LoadPieces(DefaultLoadPlanner):
    """Fills pieces from the saved boxes. Raises ValueError for a missing tensor that is not optional."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._pieces = {piece.index: piece for piece in pieces}

    def create_local_plan(self) -> LoadPlan:
        by_name: dict[str, list[ChunkStorageMetadata]] = {}
        there = self.metadata.state_dict_metadata if self.metadata is not None else {}
        for piece in self._pieces.values():
            if piece.optional and piece.name not in there:
                continue
            by_name.setdefault(piece.name, []).append(piece.chunk)
        items: list[Any] = []
        for name, chunks in by_name.items():
            saved = there.get(name)
            if not isinstance(saved, TensorStorageMetadata):
                raise ValueError(f"the checkpoint has no tensor {name}")
            items += create_read_items_for_chunk_list(name, saved, chunks)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self._pieces[index].tensor


def load_alone(checkpoint: Path, pieces: Sequence[Piece]) -> None:
    """Fills pieces in one process, without a process group. Raises CheckpointException."""
    with warnings.catch_warnings():  # torch warns that there is only one process
        warnings.simplefilter("ignore")
        load({}, storage_reader=FileSystemReader(checkpoint), planner=LoadPieces(pieces), no_dist=True)
