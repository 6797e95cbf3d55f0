"""Saves and resumes a run under any layout: master weights and optimizer states by parameter.

A save writes into a folder with a temporary name, syncs it, and renames it last. A folder with the name of a checkpoint
is therefore complete, even if a rank dies. All ranks see the same folder; several nodes need a shared file system. The
position in the data and the random numbers need no state: both follow from the seed and the step.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ...errors import InputError
from ..parallel.comm import CommunicationError, backend_reason
from ..status import Status
from ..trainer import Trainer
from .manifest import (
    NAME,
    PARTIAL,
    DamagedError,
    File,
    Manifest,
    check_data,
    check_run,
    folder_name,
    run_of,
    saved_in,
    sync,
)
from .slices import LoadPieces, Piece, SavePieces
from .states import States, TrainerStates


class StorageError(Exception):
    """Raised on all ranks when a rank cannot write or read. Earlier checkpoints are unchanged."""


@dataclass(frozen=True)
class Saved:
    """A written checkpoint."""

    folder: Path  # its final name
    num_bytes: int  # of all its files, of all ranks
    seconds: float  # from the start of the save until it has its name


@dataclass(frozen=True)
class Resumed:
    """The state that a run resumes from."""

    step: int  # number of finished steps
    folder: Path | None  # of the checkpoint; None without a checkpoint
    layout_id: str  # layout of the saving run
    skipped: tuple[str, ...]  # problems of newer, damaged checkpoints


class Checkpoints:
    """The checkpoints of one run in `folder`. The last `keep` of them stay."""

    saving = "saving the checkpoint of step {}"  # status of a rank meanwhile

    def __init__(
        self, states: States | Trainer, folder: Path, keep: int, group: dist.ProcessGroup | None = None,
        status: Status | None = None,
    ) -> None:  # fmt: skip
        """states: of this rank, or its trainer, which then has all of them. group, status: of a thread that saves in
        the background; None: those of the run."""
        self.states = TrainerStates(states) if isinstance(states, Trainer) else states
        self.folder, self.keep, self.group = folder, keep, group
        self.rank, self.status = dist.get_rank(), status or self.states.status
        self.leads = self.rank == 0  # makes and names the folders

    def prepare(self, *, resume: bool) -> None:
        """Makes the folder. Raises InputError if it is not writable, or if it holds checkpoints of another run."""
        if not resume and (existing := saved_in(self.folder)):
            raise InputError(f"{self.folder} already holds {existing[0].name}",
                             hint="`--resume` goes on from it; or save to another folder")  # fmt: skip
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # One probe per rank: all ranks try at once, and one could delete the probe of another.
            probe = self.folder / f"{PARTIAL}probe-{self.rank}"
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as error:
            reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
            raise InputError(f"{self.folder}: cannot save checkpoints: {reason}",
                             hint="choose a folder that all ranks can write to") from None  # fmt: skip

    # ---- saving

    def save(self, step: int) -> Saved:
        """Saves the state after step `step` (1, 2, ...). Raises StorageError on all ranks if one cannot write."""
        return self.store(step, list(self.states.pieces()))

    def store(self, step: int, contents: Sequence[Piece]) -> Saved:
        """Writes the given state of step `step`. Raises the errors of `save`."""
        started = time.perf_counter()
        self.status.set(self.saving.format(step))
        partial = self.folder / (PARTIAL + folder_name(step))
        try:
            # Each `_together` is also a barrier: no rank writes before the folder exists, digests are computed on
            # complete files, and the folder is renamed after the last rank has written.
            self._together(lambda: self._clear(partial))
            self._write(partial, contents)
            digests = self._together(lambda: self._digests(partial))
            files = {name: file for of_rank in digests for name, file in of_rank.items()}
            self._share(partial, digests)
            self._together(lambda: self._publish(partial, step, files))
        except StorageError:
            # The error is raised on all ranks or on none, so that no rank still writes into the deleted folder.
            if self.leads:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        size = sum(file.num_bytes for file in files.values())
        return Saved(self.folder / folder_name(step), size, time.perf_counter() - started)

    def _clear(self, partial: Path) -> None:
        """Removes the folders of interrupted saves."""
        if self.leads:
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
        """The digests of the files of this rank, found by their prefix. Rank 0 also has the index."""
        mine = sorted(partial.glob(f"__{self.rank}_*"))
        return {path.name: File.of(path) for path in [*mine, *([partial / ".metadata"] if self.rank == 0 else [])]}

    def _share(self, partial: Path, digests: Sequence[dict[str, File]]) -> None:
        """Files that ranks exchange: none, since all ranks see one folder."""

    def _publish(self, partial: Path, step: int, files: dict[str, File]) -> None:
        if not self.leads:
            return
        job = self.states.job
        Manifest(step, job.model.name, job.layout_id, job.data, run_of(job), files, self.states.digests(),
                 job.init_from).write(partial)  # fmt: skip
        # The file names reach the disk before the folder gets its final name.
        sync(partial)
        final = self.folder / folder_name(step)
        # Remove a damaged checkpoint of the same step that was skipped: rename cannot replace a folder with files.
        shutil.rmtree(final, ignore_errors=True)
        # Rename is atomic in one file system. A reader sees the whole checkpoint or none, even if this process dies.
        os.rename(partial, final)
        sync(self.folder)  # a power cut could otherwise undo the rename after old checkpoints are deleted
        # This step is the last one, because a run resumes from the old checkpoints until the new one is on disk.
        for old in saved_in(self.folder)[self.keep :]:
            shutil.rmtree(old, ignore_errors=True)

    # ---- resuming

    def resume(self) -> Resumed:
        """Loads the newest intact checkpoint. Raises InputError if none is intact, or if it belongs to another run."""
        self.status.set("looking for a checkpoint")
        # Use the list of rank 0. On a network file system ranks may briefly see different lists, and would then load
        # different checkpoints.
        folders = self._together(lambda: saved_in(self.folder) if self.rank == 0 else [])[0]
        skipped: list[str] = []
        for folder in folders:
            reason = self._damage(folder)
            if reason is None:
                manifest = Manifest.read(folder)
                check_run(manifest, self.states.job, folder)
                digests = self._together(lambda: self.states.digests() if self.rank == 0 else {})[0]
                check_data(manifest, self.states.job, digests, folder)
                self._load(folder, manifest.step)
                return Resumed(manifest.step, folder, manifest.layout_id, tuple(skipped))
            skipped.append(f"{folder.name} is damaged: {reason}")
        if skipped:
            raise InputError(f"{self.folder}: no checkpoint can be read\n" + "\n".join(skipped),
                             hint="start anew in another folder")  # fmt: skip
        return Resumed(0, None, "", ())

    def _damage(self, folder: Path) -> str | None:
        """The problems of the files of a checkpoint. Each rank reads some of the files."""

        def problem() -> str | None:
            try:
                manifest = Manifest.read(folder)
                # One rank reads each file, so that a checkpoint is read once and not once per rank.
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
        self.states.make(step)  # torch's reader fills existing tensors
        try:
            load({}, storage_reader=FileSystemReader(folder), planner=LoadPieces(list(self.states.pieces())))
        except CheckpointException as error:
            raise InputError(f"{folder / NAME} is in order, but: {_first_failure(error)}",
                             hint="move it away: the one before is taken then") from None  # fmt: skip
        except RuntimeError as error:
            raise self._cut_off(error) from error
        self.states.loaded(step)

    # ---- all ranks at once

    def _together(self, function: Callable[[], Any]) -> list[Any]:
        """The results of `function` on all ranks. Raises StorageError on all ranks if it fails on one."""
        # A failure is sent to all ranks and not raised at once. Otherwise the others would wait in the next collective
        # for the failed rank.
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


def _first_failure(error: CheckpointException) -> str:
    rank, failure = next(iter(error.failures.items()))
    return f"rank {rank}: {failure[0]}"
