"""Copies of the states in the memory of two nodes, between the checkpoints on disk.

Each rank writes its files of a checkpoint into shared memory of its node, and sends them to the rank with its number on
the next node. So a node holds the files of two nodes, and any node can be lost without its copies. Two generations
stay: while one is written, the one before it is complete on all nodes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import InputError
from ..report import Event
from ..trainer import Trainer
from .checkpoint import Checkpoints, Saved, StorageError
from .manifest import File, folder_name, saved_in
from .restore_copies import free_bytes
from .slices import Piece, SavePieces
from .states import pieces

GENERATIONS = 2
_MOMENTS = {"adamw": 2, "sgd": 1}  # states beside the weights, each as large
# torch.save writes each box as an archive: 1,100 to 1,500 bytes beside its elements (torch 2.13), and the index of the
# checkpoint has about 300 for each. On nodes with real models neither matters.
_BYTES_OF_A_BOX = 2048
_MESSAGE_BYTES = 1 << 28


@dataclass(frozen=True)
class Room:
    """Memory of a node for the copies, bytes."""

    node: int
    own: int  # files of its ranks, one generation
    received: int  # files of the node before it
    free: int  # shared memory that is left

    @property
    def needed(self) -> int:
        return GENERATIONS * (self.own + self.received)


class MemoryCopies(Checkpoints):
    """The copies of this rank and of the one before it in `folder`, which the ranks of a node share."""

    saving = "copying the states of step {} to memory"

    def __init__(self, trainer: Trainer, folder: Path, *, timeout_s: float, done: int) -> None:
        """All ranks must construct it at the same time. done: finished steps; copies of later steps are removed."""
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        super().__init__(trainer, folder, GENERATIONS, group)
        self.trainer = trainer
        self.node, local = int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])  # of torchrun
        self.places: list[tuple[int, int]] = self._together(lambda: (self.node, local))
        self.num_nodes, self.leads = 1 + max(node for node, _ in self.places), local == 0
        self.following, self.previous = (self.places.index(((self.node + way) % self.num_nodes, local))
                                         for way in (1, -1))  # fmt: skip
        if self.leads:  # after a restart from an older state a node may hold a newer generation that others lack
            for newer in saved_in(folder):
                if newer.name > folder_name(done):
                    shutil.rmtree(newer, ignore_errors=True)

    def check_room(self) -> Room:
        """The node with the least memory to spare. Raises InputError, on all ranks, where the copies do not fit."""
        sizes, free = self._sizes(), self._together(lambda: free_bytes(self.folder))
        of_node = [sum(size for size, (where, _) in zip(sizes, self.places, strict=True) if where == node)
                   for node in range(self.num_nodes)]  # fmt: skip
        rooms = [Room(node, of_node[node], of_node[node - 1], free[self.places.index((node, 0))])
                 for node in range(self.num_nodes)]  # fmt: skip
        tightest = min(rooms, key=lambda room: room.free - room.needed)
        if tightest.free < tightest.needed:
            raise InputError(_too_small(tightest, self.folder.parent), hint="a larger shared memory (`docker run "
                             "--shm-size`), more nodes, or leave out `--copy-every`")  # fmt: skip
        return tightest

    def _sizes(self) -> list[int]:
        """Bytes that each rank will write: weights as planned by torch, states of the optimizer as large as they, and
        states of a technique."""
        kept, kinds = list(pieces(self.trainer)), 1 + _MOMENTS[self.trainer.job.optimizer]
        weights = self._written([piece for piece in kept if _kind(piece.name) == "weights"])
        own = {state.kind for state in self.trainer.exchange.states()}
        if not own:
            return [kinds * size for size in weights]
        others = self._written([piece for piece in kept if _kind(piece.name) in own])
        return [kinds * size + other for size, other in zip(weights, others, strict=True)]

    def _written(self, kept: list[Piece]) -> list[int]:
        """Bytes of these pieces that each rank will write."""
        dealt, _ = SavePieces([]).create_global_plan(self._together(SavePieces(kept).create_local_plan))
        return [sum((item.tensor_storage_size() or 0) + _BYTES_OF_A_BOX for item in plan.items) for plan in dealt]

    def copy(self, step: int) -> Event:
        """Copies the states after step `step`. A copy that fails does not stop training. Raises CommunicationError."""
        try:
            saved: Saved = self.save(step)
        except StorageError as error:
            if self.leads:  # a node may have named it before another failed
                shutil.rmtree(self.folder / folder_name(step), ignore_errors=True)
            return {"event": "not_copied", "step": step, "reason": str(error)}
        return {"event": "copy", "step": step, "num_bytes": saved.num_bytes, "seconds": saved.seconds}

    def _clear(self, partial: Path) -> None:
        """Also removes the older generation: every rank has finished the newer one, since it has trained since."""
        if self.leads:
            self.folder.mkdir(parents=True, exist_ok=True)
            for older in saved_in(self.folder)[GENERATIONS - 1 :]:
                shutil.rmtree(older)
        super()._clear(partial)

    def _share(self, partial: Path, digests: Sequence[dict[str, File]]) -> None:
        """Sends this rank's files to the next node and receives those of the node before."""
        self.status.set("sending copies to the next node")
        mine, theirs = digests[self.rank], digests[self.previous]
        # Reserve the memory on all ranks before the first message: a page that is missing later would kill the rank.
        self._together(lambda: _reserve(partial, theirs))
        self._together(lambda: self._exchange(partial, mine, theirs))

    def _exchange(self, partial: Path, mine: dict[str, File], theirs: dict[str, File]) -> None:
        try:
            messages = [dist.isend(part, self.following, self.group) for part in _mapped(partial, mine)]
            messages += [dist.irecv(part, self.previous, self.group) for part in _mapped(partial, theirs)]
            for message in messages:
                if message is not None:
                    message.wait()
        except RuntimeError as error:
            raise self._cut_off(error) from error


def _kind(name: str) -> str:
    """`weights` of `replica-1.weights.NAME`."""
    return re.sub(r"replica-\d+\.", "", name, count=1).partition(".")[0]


def _too_small(room: Room, where: Path) -> str:
    own, received, needed, free = (f"{size / 2**20:,.1f}" for size in (room.own, room.received, room.needed, room.free))
    return (f"--copy-every: node {room.node} needs {GENERATIONS} x ({own} of its own + {received} of the node before "
            f"it) = {needed} MiB, {where} has {free} MiB free")  # fmt: skip


def _reserve(folder: Path, files: dict[str, File]) -> None:
    """Makes files of these sizes. Raises OSError where the memory is too small."""
    for name, file in files.items():
        with (folder / name).open("wb") as stream:
            if file.num_bytes:
                os.posix_fallocate(stream.fileno(), 0, file.num_bytes)


def _mapped(folder: Path, files: dict[str, File]) -> Iterator[Tensor]:
    """The bytes of files in memory, by name, in messages of at most 256 MiB."""
    for name, file in sorted(files.items()):
        if file.num_bytes:
            whole = torch.from_file(str(folder / name), shared=True, size=file.num_bytes, dtype=torch.uint8)
            yield from torch.split(whole, _MESSAGE_BYTES)
