"""Saves during training: training waits until a checkpoint is on disk, or only for a copy of the states.

In the background a thread writes the copy. It has its own process group, because collectives of two threads on one
group would mix. At most one save runs at a time, because the next save reuses the memory of the copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ..failures import RunFailed
from ..report import Event, not_saved_line
from ..status import Status
from ..trainer import Trainer
from .checkpoint import Checkpoints, Saved, StorageError
from .slices import Piece
from .states import States


class Saver:
    """Saves a run's checkpoints. `behind`: while training continues.

    The result of a save is an event, `checkpoint` or `not_saved`. A failed save does not stop training.
    """

    def __init__(self, states: States | Trainer, folder: Path, keep: int, *, behind: bool, timeout_s: float) -> None:
        """All ranks must construct it at the same time."""
        self._checkpoints = Checkpoints(states, folder, keep)
        self.unsaved: Event | None = None  # of the last save, where it failed
        self._behind: _Behind | None = None
        if behind:
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
            status = Status(rank=dist.get_rank())  # the run's status describes training
            self._behind = _Behind(Checkpoints(states, folder, keep, group, status))

    def save(self, step: int) -> list[Event]:
        """Saves after step `step` (1, 2, ...). Raises CommunicationError."""
        if self._behind is not None:
            return self._noted(self._behind.save(step))
        return self._noted([_event(step, lambda: self._checkpoints.save(step))])

    def after(self, step: int, *, due: bool) -> list[Event]:
        """Saves after step `step` if it is due; else the event of a finished background save. Raises
        CommunicationError."""
        return self.save(step) if due else self.finished()

    def finished(self, *, wait: bool = False) -> list[Event]:
        """The event of a finished background save, once. wait: wait for its end. Raises CommunicationError."""
        return self._noted(self._behind.finished(wait=wait)) if self._behind is not None else []

    def _noted(self, events: list[Event]) -> list[Event]:
        for event in events:
            self.unsaved = event if event["event"] == "not_saved" else None
        return events

    def check_saved(self) -> None:
        """Raises RunFailed where the last save failed."""
        if self.unsaved is not None:
            raise RunFailed(not_saved_line(self.unsaved), hint="training since the last checkpoint is lost")


class _Behind:
    """Writes copies in a thread."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._copies: dict[object, Tensor] = {}
        self._under_way: tuple[int, float, Future[Saved]] | None = None

    def save(self, step: int) -> list[Event]:
        started = time.perf_counter()
        before = self.finished(wait=True)  # one save at a time: its thread reads the copy that the next lines overwrite
        copied = self._copy()
        waited_s = time.perf_counter() - started
        self._under_way = step, waited_s, self._thread.submit(self._checkpoints.store, step, copied)
        return before

    def finished(self, *, wait: bool) -> list[Event]:
        if self._under_way is None or not (wait or self._under_way[2].done()):
            return []
        (step, waited_s, saved), self._under_way = self._under_way, None
        return [{**_event(step, saved.result), "waited_s": waited_s}]

    def _copy(self) -> list[Piece]:
        """The states in host memory, which every save reuses. The memory is pinned for states of a GPU."""
        copied = []
        for piece in self._checkpoints.states.pieces():
            tensor = piece.tensor
            if piece.index not in self._copies:
                self._copies[piece.index] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            to = self._copies[piece.index].copy_(tensor, non_blocking=True)
            copied.append(replace(piece, tensor=to))
        # The copies above are asynchronous, and the next step changes their sources.
        if self._checkpoints.states.device.type == "cuda":
            torch.cuda.synchronize(self._checkpoints.states.device)
        return copied


def _event(step: int, save: Callable[[], Saved]) -> Event:
    try:
        saved = save()
    except StorageError as error:
        return {"event": "not_saved", "step": step, "reason": str(error)}
    return {"event": "checkpoint", "step": step, "folder": str(saved.folder), "num_bytes": saved.num_bytes,
            "seconds": saved.seconds}  # fmt: skip
