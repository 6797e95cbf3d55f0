"""What a checkpoint folder says of itself: step, run, and a digest of every file. No torch here.

A folder `step-00000010` is complete, since it gets its name only after everything in it is on disk; `.partial` in front
of a name means that a save has not ended. A file that has changed since then shows in its size or digest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...cost_models.specs.documents import spec_to_dict
from ...errors import InputError
from ..job import Job

FORMAT_VERSION = "1.0"
NAME = "manifest.json"
PARTIAL = ".partial-"
_BLOCK = 1 << 20
# What a model is called and where that is from; no weight depends on it.
_WORDS = ("name", "family", "source", "assumed", "max_positions", "dropout")


class DamagedError(Exception):
    """A checkpoint that cannot be read, and why."""


@dataclass(frozen=True)
class File:
    """A file of a checkpoint."""

    num_bytes: int  # its size
    sha256: str  # of all of it, hexadecimal

    @classmethod
    def of(cls, path: Path) -> File:
        """Reads the whole file."""
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
                size += len(block)
        return cls(size, digest.hexdigest())


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    step: int  # how many were done
    model: str  # its name, for messages
    layout_id: str  # under which it was saved
    data: str  # on which it was saved
    run: Mapping[str, Any]  # what must be equal to go on (`run_of`)
    files: Mapping[str, File]  # by name in the folder, all but the manifest

    def write(self, folder: Path) -> None:
        """Into `folder`, and on disk when this returns."""
        document = {"format_version": FORMAT_VERSION, "kind": "checkpoint", "meshwright": __version__, **asdict(self)}
        with (folder / NAME).open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(document, indent=1, sort_keys=True) + "\n")
            stream.flush()
            # The rename that follows must not reach the disk before what it promises.
            os.fsync(stream.fileno())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises DamagedError; InputError for a newer format, which an older one must not stand in for."""
        try:
            document = json.loads((folder / NAME).read_text(encoding="utf-8"))
            version = str(document["format_version"])
            if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
                raise InputError(f"{folder}: checkpoint format {version}, this version reads {FORMAT_VERSION}",
                                 hint="resume with the version of meshwright that wrote it")  # fmt: skip
            sizes = document["files"].items()
            files = {name: File(int(entry["num_bytes"]), str(entry["sha256"])) for name, entry in sizes}
            model, layout_id, data = (str(document[name]) for name in ("model", "layout_id", "data"))
            return cls(int(document["step"]), model, layout_id, data, dict(document["run"]), files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{NAME}: {type(error).__name__}: {error}") from None

    def check_file(self, folder: Path, name: str) -> None:
        """Raises DamagedError if the file is not the one that was saved."""
        expected = self.files[name]
        try:
            size = (folder / name).stat().st_size
            if size != expected.num_bytes:
                raise DamagedError(f"{name} has {size:,} bytes instead of {expected.num_bytes:,}")
            if File.of(folder / name) != expected:
                raise DamagedError(f"{name} is not what was saved: its SHA-256 differs")
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror or error}") from None


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def saved_in(folder: Path) -> list[Path]:
    """The complete checkpoints in `folder`, newest first; none if there is no such folder."""
    return sorted(folder.glob("step-" + "[0-9]" * 8), reverse=True)


def check_resumable(folder: Path) -> None:
    """Raises InputError where a run that is to go on from a checkpoint in `folder` would find none of ours.

    An empty folder passes: a job that is always started with `--resume` has nothing there the first time.
    """
    if not folder.exists():
        raise InputError(f"{folder}: no such folder", hint="without `--resume` a run starts anew and makes it")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not the folder of a run's checkpoints",
                         hint="give the folder that holds `step-00000100` and the like")  # fmt: skip
    if (folder / NAME).exists():
        raise InputError(f"{folder} is one checkpoint, not the folder of a run's checkpoints",
                         hint=f"`--checkpoint {folder.parent}`")  # fmt: skip
    names = sorted(path.name for path in folder.iterdir())
    if names and not any(name.startswith(("step-", PARTIAL)) for name in names):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise InputError(f"{folder} has no checkpoint of meshwright; it has {shown}",
                         hint="leave out `--resume` to train from new weights and save there")  # fmt: skip


def run_of(job: Job) -> dict[str, Any]:
    """What decides the weights after each step, whatever the layout, as JSON has it."""
    model = {key: value for key, value in spec_to_dict(job.model).items() if key not in _WORDS}
    run: dict[str, Any] = {
        "model": model, "seq_len": job.seq_len, "global_batch": job.global_batch, "optimizer": job.optimizer,
        "dtype": job.dtype, "seed": job.seed,
    }  # fmt: skip
    if job.adapters is not None:
        run["lora"] = {**vars(job.adapters), "targets": sorted(job.adapters.targets)}
    plain: dict[str, Any] = json.loads(json.dumps(run))
    return plain


def check_run(manifest: Manifest, job: Job, folder: Path) -> None:
    """Raises InputError that names every difference between what was saved and what is to go on."""
    saved, now = dict(_leaves(manifest.run)), dict(_leaves(run_of(job)))
    fields = [name for name in {**saved, **now} if saved.get(name) != now.get(name)]
    if not fields:
        return
    differences = [
        f"{name}: {saved.get(name, 'none')} in the checkpoint, {now.get(name, 'none')} now" for name in fields
    ]
    if any(name.startswith("model.") for name in fields):
        what, hint = f"another model ({manifest.model}, not {job.model.name})", "give the plan of that model"
    else:
        what, hint = "another run", "its steps would not follow from those before; start anew in another folder"
    if fields == ["seed"]:
        hint = f"`--seed {saved['seed']}`"
    raise InputError(f"{folder} was saved by {what}:\n" + "\n".join(differences), hint=hint)


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield prefix, value
        return
    for key, item in items:
        yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))
