"""Saves and resumes a run, whatever the layout then and now: master weights and optimizer states by parameter.

A save writes into a folder of another name, syncs it, and renames it last: a folder that is called a checkpoint is a
whole one, whenever a rank died. All ranks see the same folder, on a shared file system where there are several nodes.
Position in the data and random numbers need no state: both follow from the seed and the step.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ...errors import InputError
from ..model.initial_weights import same_weight
from ..parallel.comm import CommunicationError, backend_reason
from ..parallel.sharding import Unit
from ..status import Status
from ..trainer import Named, Trainer
from .manifest import NAME, PARTIAL, DamagedError, File, Manifest, check_run, folder_name, run_of, saved_in
from .slices import LoadPieces, Piece, SavePieces, boxes


class StorageError(Exception):
    """What a rank could not write or read, the same on all ranks; the checkpoints before are as they were."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was written."""

    folder: Path  # its final name
    num_bytes: int  # of all its files, of all ranks
    seconds: float  # from the start of the save until it has its name


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on."""

    step: int  # how many are done
    folder: Path | None  # of the checkpoint; None where there was none
    layout_id: str  # under which it was saved
    skipped: tuple[str, ...]  # newer checkpoints that are damaged, and how


class Checkpoints:
    """The checkpoints of one run in `folder`, of which the last `keep` stay."""

    def __init__(
        self, trainer: Trainer, folder: Path, keep: int, group: dist.ProcessGroup | None = None,
        status: Status | None = None,
    ) -> None:  # fmt: skip
        """group, status: of a thread that saves beside the training; without, those of the run."""
        self.trainer, self.folder, self.keep, self.group = trainer, folder, keep, group
        self.rank, self.status = dist.get_rank(), status or trainer.mesh["world"].status

    def prepare(self, *, resume: bool) -> None:
        """Makes the folder. Raises InputError if nothing can be written there, or if it holds another run's."""
        if not resume and (existing := saved_in(self.folder)):
            raise InputError(f"{self.folder} already holds {existing[0].name}",
                             hint="`--resume` goes on from it; or save to another folder")  # fmt: skip
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # By rank: all try at once, and one could delete the probe of another.
            probe = self.folder / f"{PARTIAL}probe-{self.rank}"
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as error:
            reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
            raise InputError(f"{self.folder}: cannot save checkpoints: {reason}",
                             hint="choose a folder that all ranks can write to") from None  # fmt: skip

    # ---- saving

    def save(self, step: int) -> Saved:
        """After step `step` (1, 2, ...). Raises StorageError on all ranks if any could not write."""
        return self.store(step, list(pieces(self.trainer)))

    def store(self, step: int, contents: Sequence[Piece]) -> Saved:
        """Writes what the run held after step `step`. Raises as `save`."""
        started = time.perf_counter()
        self.status.set(f"saving the checkpoint of step {step}")
        partial = self.folder / (PARTIAL + folder_name(step))
        try:
            # Each `_together` is a barrier as well: nobody writes before the folder is there, digests are taken of
            # files that are complete, and the folder gets its name after the last rank has written.
            self._together(lambda: self._clear(partial))
            self._write(partial, contents)
            digests = self._together(lambda: self._digests(partial))
            files = {name: file for of_rank in digests for name, file in of_rank.items()}
            self._together(lambda: self._publish(partial, step, files))
        except StorageError:
            # Raised on all ranks or on none, so that no rank is still writing into what is deleted.
            if self.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        size = sum(file.num_bytes for file in files.values())
        return Saved(self.folder / folder_name(step), size, time.perf_counter() - started)

    def _clear(self, partial: Path) -> None:
        """Removes the folders of saves that were cut off."""
        if self.rank == 0:
            for partial_save in self.folder.glob(PARTIAL + "*"):
                shutil.rmtree(partial_save, ignore_errors=True)
            partial.mkdir()

    def _write(self, partial: Path, contents: Sequence[Piece]) -> None:
        writer = FileSystemWriter(partial, single_file_per_rank=True, sync_files=True)
        try:
            save({}, storage_writer=writer, planner=SavePieces(contents), process_group=self.group)
        except CheckpointException as error:
            raise StorageError(_first_failure(error)) from None
        except RuntimeError as error:
            raise self._cut_off(error) from error

    def _digests(self, partial: Path) -> dict[str, File]:
        """Of the files of this rank, which its file names start with; rank 0 has the index too."""
        mine = sorted(partial.glob(f"__{self.rank}_*"))
        return {path.name: File.of(path) for path in [*mine, *([partial / ".metadata"] if self.rank == 0 else [])]}

    def _publish(self, partial: Path, step: int, files: dict[str, File]) -> None:
        if self.rank != 0:
            return
        job = self.trainer.job
        Manifest(step, job.model.name, job.layout_id, job.data, run_of(job), files).write(partial)
        # The names in the folder reach the disk before its own name calls it complete.
        _sync(partial)
        final = self.folder / folder_name(step)
        # A damaged one of the same step, that was passed over: rename replaces no folder that has files in it.
        shutil.rmtree(final, ignore_errors=True)
        # Atomic in one file system: whoever looks sees the whole checkpoint or none, whenever this process dies.
        os.rename(partial, final)
        _sync(self.folder)  # else a power cut could take back the new name after old checkpoints are deleted
        # Last: until the new one is on disk, the old ones are what a run would resume from.
        for old in saved_in(self.folder)[self.keep :]:
            shutil.rmtree(old, ignore_errors=True)

    # ---- resuming

    def resume(self) -> Resumed:
        """Loads the newest checkpoint that is whole. Raises InputError if none is, or if it is of another run."""
        self.status.set("looking for a checkpoint")
        # As rank 0 sees it: on a network file system ranks may see different lists for a moment, and would then load
        # different checkpoints.
        folders = self._together(lambda: saved_in(self.folder) if self.rank == 0 else [])[0]
        skipped: list[str] = []
        for folder in folders:
            reason = self._damage(folder)
            if reason is None:
                manifest = Manifest.read(folder)
                check_run(manifest, self.trainer.job, folder)
                self._load(folder, manifest.step)
                return Resumed(manifest.step, folder, manifest.layout_id, tuple(skipped))
            skipped.append(f"{folder.name} is damaged: {reason}")
        if skipped:
            raise InputError(f"{self.folder}: no checkpoint can be read\n" + "\n".join(skipped),
                             hint="start anew in another folder")  # fmt: skip
        return Resumed(0, None, "", ())

    def _damage(self, folder: Path) -> str | None:
        """What is wrong with the files of a checkpoint; each rank reads some of them."""

        def problem() -> str | None:
            try:
                manifest = Manifest.read(folder)
                # Every file is read by one rank: a checkpoint of a large model is read once, not once per rank.
                for name in sorted(manifest.files)[self.rank :: dist.get_world_size()]:
                    manifest.check_file(folder, name)
            except DamagedError as error:
                return str(error)
            except InputError:  # a newer format: `resume` refuses it on all ranks
                return None
            return None

        return next((reason for reason in self._together(problem) if reason is not None), None)

    def _load(self, folder: Path, step: int) -> None:
        self.status.set(f"loading the checkpoint of step {step}")
        _make_states(self.trainer)  # torch's reader fills tensors that are there
        try:
            load({}, storage_reader=FileSystemReader(folder), planner=LoadPieces(list(pieces(self.trainer))))
        except CheckpointException as error:
            raise InputError(f"{folder / NAME} is in order, but: {_first_failure(error)}",
                             hint="move it away: the one before is taken then") from None  # fmt: skip
        except RuntimeError as error:
            raise self._cut_off(error) from error
        # The number of steps is no tensor of a parameter's shape and is not saved; bias correction of AdamW needs it.
        for state in self.trainer.optimizer.state.values():
            if "step" in state:
                state["step"].fill_(step)
        # Only master weights were loaded: the weights in the compute dtype follow from them, as after a step.
        for unit in self.trainer.units:
            unit.updated()

    # ---- all ranks at once

    def _together(self, function: Callable[[], Any]) -> list[Any]:
        """What `function` returns on every rank. Raises StorageError on all if it failed on one."""
        # A failure is sent to all instead of raised at once: the others would wait in the next collective for a rank
        # that does not come.
        result: tuple[str | None, Any]
        try:
            result = None, function()
        except OSError as error:
            result = f"{error.strerror or error}: {error.filename}" if error.filename else str(error), None
        results: list[Any] = [None] * dist.get_world_size()
        try:
            dist.all_gather_object(results, result, group=self.group)
        except RuntimeError as error:
            raise self._cut_off(error) from error
        for rank, (failed, _) in enumerate(results):
            if failed is not None:
                raise StorageError(f"rank {rank}: {failed}")
        return [value for _, value in results]

    def _cut_off(self, error: RuntimeError) -> CommunicationError:
        message = f"{self.status.doing}: {backend_reason(error)}"
        self.status.fail(message)
        return CommunicationError(message)


def pieces(trainer: Trainer) -> Iterator[Piece]:
    """Master weights (`weights.NAME`) and the optimizer's states (`exp_avg.NAME`, ...) that this rank holds."""
    for unit, named in trainer.contents:
        states = trainer.optimizer.state.get(unit.master, {})
        flats = {"weights": unit.master.detach()}
        flats |= {key: value for key, value in states.items() if isinstance(value, Tensor) and key != "step"}
        for kind, flat in flats.items():
            yield from _of_unit(unit, named, kind, flat, tied=trainer.job.model.tied_embeddings)


def _of_unit(unit: Unit, named: Named, kind: str, flat: Tensor, *, tied: bool) -> Iterator[Piece]:
    first, last = unit.groups.shard.rank * unit.part, (unit.groups.shard.rank + 1) * unit.part
    begin = 0
    for full_name, parameter, split in named:
        name = f"{kind}.{same_weight(full_name, tied=tied)}"
        size = parameter.numel()
        start, stop = max(first, begin), min(last, begin + size)
        at = start - first
        for offsets, sizes in boxes(parameter.shape, start - begin, stop - begin):
            length = int(torch.Size(sizes).numel())
            where = list(offsets)
            for dim, offset in split.firsts:
                where[dim] += offset
            yield Piece(name, split.shape, tuple(where), flat[at : at + length].view(sizes))
            at += length
        begin += size


@torch.no_grad()
def _make_states(trainer: Trainer) -> None:
    """The optimizer's states, by a step that changes nothing: they come with the first step only."""
    # Of gradients that are zero, at a rate of zero: weight decay is scaled by the rate, too, so that no weight changes.
    groups = trainer.optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for unit in trainer.units:
        unit.master.grad = torch.zeros_like(unit.master)
    for group in groups:
        group["lr"] = 0.0
    trainer.optimizer.step()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate
    for unit in trainer.units:
        unit.master.grad = None


def _first_failure(error: CheckpointException) -> str:
    rank, failure = next(iter(error.failures.items()))
    return f"rank {rank}: {failure[0]}"


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
