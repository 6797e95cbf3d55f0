"""Launchers write copies in memory to disk after a failure; the ranks resume from them. No torch here.

Node 0 picks the newest generation of which the nodes that are there hold all files. Each of them writes its part into
one folder beside the checkpoints, and node 0 gives it the name of a checkpoint when all of it is there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from .manifest import NAME, PARTIAL, DamagedError, Manifest, saved_in, sync

SHARED_MEMORY = Path("/dev/shm")
_POLL_S = 0.05

# Names of the files that a node holds, by generation.
Held = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Pick:
    """A generation, and the files of it that each node writes to disk."""

    name: str  # `step-00000040`
    files: Mapping[int, Sequence[str]]  # by node; each file once

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "files": {str(node): list(names) for node, names in self.files.items()}}

    @classmethod
    def of(cls, orders: Mapping[str, Any]) -> Pick:
        return cls(orders["name"], {int(node): names for node, names in orders["files"].items()})


def copies_folder(checkpoint: str, node_rank: int) -> Path:
    """The folder of a node's copies. Two nodes on one machine have two, as have two runs."""
    digest = hashlib.sha256(f"{os.getuid()} {checkpoint}".encode()).hexdigest()[:12]
    return SHARED_MEMORY / f"meshwright-{digest}-node-{node_rank}"


def check_shared_memory(folder: Path = SHARED_MEMORY) -> None:
    """Raises InputError where this node has no shared memory to write to."""
    problem = "is missing" if not folder.is_dir() else "cannot be written to" if not os.access(folder, os.W_OK) else ""
    if problem:
        raise InputError(f"--copy-every: {folder}, the shared memory of this node, {problem}",
                         hint="mount a tmpfs there, or leave out `--copy-every`")  # fmt: skip


def free_bytes(folder: Path) -> int:
    """Memory that copies in `folder` may take: what its file system and the host have left, and what is in it."""
    volume = os.statvfs(folder.parent)
    available = next((int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines()
                      if line.startswith("MemAvailable:")), volume.f_bavail * volume.f_frsize)  # fmt: skip
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return min(volume.f_bavail * volume.f_frsize, available) + held


def held(folder: str | None) -> dict[str, list[str]]:
    """The files of each complete generation in the memory of this node; files of another size are left out.

    folder: of this node's copies; None: it has none.
    """
    found: dict[str, list[str]] = {}
    for generation in saved_in(Path(folder)) if folder is not None else ():
        try:
            files = Manifest.read(generation).files
        except (DamagedError, InputError):
            continue
        found[generation.name] = sorted(path.name for path in generation.iterdir() if path.name in files
                                        and path.stat().st_size == files[path.name].num_bytes)  # fmt: skip
    return found


def pick(checkpoint: Path, folder: Path, held_by: Mapping[int, Held]) -> Pick | None:
    """The newest whole generation of the nodes in `held_by`; None where there is none newer than the checkpoints.

    folder: the copies of node 0.
    """
    on_disk = next((path.name for path in saved_in(checkpoint)), "")
    for generation in saved_in(folder):
        if generation.name <= on_disk:
            return None
        holders = {name: node for node, of_node in held_by.items() for name in of_node.get(generation.name, ())}
        if generation.name in held_by[0] and set(Manifest.read(generation).files) <= set(holders):
            return Pick(generation.name, {node: sorted(name for name, holder in holders.items() if holder == node)
                                          for node in held_by})  # fmt: skip
    return None


def orders(
    checkpoint: str | None, folder: str | None, held_by: Mapping[int, Held], on_wait: Callable[[str], None]
) -> dict[str, Any]:  # fmt: skip
    """The generation to go on from, for the orders of node 0; empty where the checkpoints on disk are as new.

    Makes the folder on disk that the files go to. Where that fails `on_wait` gets the reason, and there are no orders.
    """
    if checkpoint is None or folder is None or (chosen := pick(Path(checkpoint), Path(folder), held_by)) is None:
        return {}
    partial = Path(checkpoint) / (PARTIAL + chosen.name)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        on_wait(_not_restored(chosen, error.strerror or str(error)))
        return {}
    return {"copy": chosen.as_dict()}


def restore(
    given: Mapping[str, Any], checkpoint: str | None, folder: str | None, node: int, timeout_s: float,
    on_wait: Callable[[str], None],
) -> None:  # fmt: skip
    """Carries out the orders of node 0 for the copies, if any. Where that fails the last checkpoint is taken."""
    if "copy" not in given or checkpoint is None or folder is None:
        return
    chosen = Pick.of(given["copy"])
    try:
        write_part(chosen, Path(checkpoint), Path(folder), node)
        if node != 0:
            return
        done = publish(chosen, Path(checkpoint), Path(folder), timeout_s)
        reason = "" if done else f"other nodes did not write their part within {timeout_s:.0f} s"
    except OSError as error:
        reason = error.strerror or str(error)
    nodes = ", ".join(str(node) for node, names in chosen.files.items() if names)
    on_wait(_not_restored(chosen, reason) if reason
            else f"{chosen.name} is written to {checkpoint} from the memory of node {nodes}")  # fmt: skip


def _not_restored(chosen: Pick, reason: str) -> str:
    return f"{chosen.name}: {reason}; the last checkpoint is taken"


def write_part(chosen: Pick, checkpoint: Path, folder: Path, node: int) -> None:
    """Writes the files of this node. Raises OSError."""
    partial = checkpoint / (PARTIAL + chosen.name)
    for name in chosen.files.get(node, ()):
        unfinished = partial / f"{PARTIAL}{name}"
        with (folder / chosen.name / name).open("rb") as source, unfinished.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        os.replace(unfinished, partial / name)


def publish(chosen: Pick, checkpoint: Path, folder: Path, timeout_s: float) -> bool:
    """Names the folder when all nodes have written. Whether that happened in time. Raises OSError."""
    partial, manifest = checkpoint / (PARTIAL + chosen.name), Manifest.read(folder / chosen.name)
    deadline = time.monotonic() + timeout_s
    while missing := [name for name in manifest.files if not (partial / name).exists()]:
        if time.monotonic() > deadline:
            shutil.rmtree(partial, ignore_errors=True)
            return False
        time.sleep(_POLL_S * min(len(missing), 4))
    shutil.copyfile(folder / chosen.name / NAME, partial / NAME)
    sync(partial / NAME)
    sync(partial)  # the file names reach the disk before the folder gets its final name
    os.rename(partial, checkpoint / chosen.name)
    sync(checkpoint)
    return True
