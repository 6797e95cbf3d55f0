"""The manifest of a checkpoint folder: step, run, and a digest of every file. No torch here.

A folder `step-00000010` is complete, because it gets its name after all its files are on disk. The prefix `.partial`
marks an unfinished save. Size and digest reveal a file that changed later.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...cost_models.specs.documents import spec_to_dict
from ...cost_models.specs.model import ModelSpec
from ...errors import InputError
from ...planner.document.base import rounded
from ..job import Job
from .folder_lock import NAME as LOCK

FORMAT_VERSION = "1.1"
NAME = "manifest.json"
PARTIAL = ".partial-"
EXPORTED = ("bf16", "fp32")  # dtypes of exported weights
_BLOCK = 1 << 20
# Name and source of a model, which do not affect weights.
_WORDS = ("name", "family", "source", "assumed", "max_positions", "dropout")


class DamagedError(Exception):
    """Raised for an unreadable checkpoint, with the reason."""


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
    """The manifest of a checkpoint."""

    step: int  # number of finished steps
    model: str  # its name, for messages
    layout_id: str  # layout of the saving run
    data: str  # data of the saving run
    run: Mapping[str, Any]  # fields that must be equal on resume (`run_of`)
    files: Mapping[str, File]  # by name in the folder, all but the manifest
    data_files: Mapping[str, str] = field(default_factory=dict)  # name -> digest of each file of tokens
    init_from: str | None = None  # Hugging Face folder of the initial weights; None: drawn from the seed

    def write(self, folder: Path) -> None:
        """Writes the manifest into `folder` and syncs it to disk."""
        document = {"format_version": FORMAT_VERSION, "kind": "checkpoint", "meshwright": __version__, **asdict(self)}
        with (folder / NAME).open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(document, indent=1, sort_keys=True) + "\n")
            stream.flush()
            # The later rename must not reach the disk before these files.
            os.fsync(stream.fileno())

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads a manifest. Raises DamagedError, and InputError for a newer format, which is not skipped."""
        try:
            document = json.loads((folder / NAME).read_text(encoding="utf-8"))
            version = str(document["format_version"])
            if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
                raise InputError(f"{folder}: checkpoint format {version}, this version reads {FORMAT_VERSION}",
                                 hint="resume with the version of meshwright that wrote it")  # fmt: skip
            sizes = document["files"].items()
            files = {name: File(int(entry["num_bytes"]), str(entry["sha256"])) for name, entry in sizes}
            model, layout_id, data = (str(document[name]) for name in ("model", "layout_id", "data"))
            return cls(int(document["step"]), model, layout_id, data, dict(document["run"]), files,
                       dict(document.get("data_files", {})), document.get("init_from"))  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{NAME}: {type(error).__name__}: {error}") from None

    def check_file(self, folder: Path, name: str) -> None:
        """Raises DamagedError if the file differs from the saved one."""
        expected = self.files[name]
        try:
            size = (folder / name).stat().st_size
            if size != expected.num_bytes:
                raise DamagedError(f"{name} has {size:,} bytes instead of {expected.num_bytes:,}")
            if File.of(folder / name) != expected:
                raise DamagedError(f"{name} is not what was saved: its SHA-256 differs")
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror or error}") from None


def sync(path: Path) -> None:
    """Waits until a file or the names in a folder are on disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def saved_in(folder: Path) -> list[Path]:
    """The complete checkpoints in `folder`, newest first; none if the folder does not exist."""
    return sorted(folder.glob("step-" + "[0-9]" * 8), reverse=True)


def newest(folder: Path) -> tuple[Path, Manifest]:
    """The newest complete checkpoint in the folder of a run, or `folder` itself if it is a checkpoint.

    Raises InputError if there is none or if its manifest is damaged.
    """
    if not (folder / NAME).is_file():
        if not saved_in(folder):
            raise InputError(f"{folder} has no checkpoint", hint="`launch --checkpoint DIR` saves them there")
        folder = saved_in(folder)[0]
    try:
        return folder, Manifest.read(folder)
    except DamagedError as error:
        raise InputError(f"{folder} is damaged: {error}", hint="name the checkpoint before it") from None


def check_resumable(folder: Path) -> None:
    """Raises InputError if `folder` has files but no checkpoint of ours to resume from.

    An empty folder passes, because a job that always starts with `--resume` has no checkpoint the first time.
    """
    if not folder.exists():
        raise InputError(f"{folder}: no such folder", hint="leave out `--resume` to start anew and make the folder")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, not the folder of a run's checkpoints",
                         hint="give the folder that holds `step-00000100` and the like")  # fmt: skip
    if (folder / NAME).exists():
        raise InputError(f"{folder} is one checkpoint, not the folder of a run's checkpoints",
                         hint=f"`--checkpoint {folder.parent}`")  # fmt: skip
    names = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    ours = ("step-", PARTIAL, "plan-")  # a run that lost a node keeps its plan there
    if names and not any(name.startswith(ours) for name in names):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise InputError(f"{folder} has no checkpoint of meshwright; it has {shown}",
                         hint="leave out `--resume` to train from new weights and save there")  # fmt: skip


def run_of(job: Job) -> dict[str, Any]:
    """The settings that determine the weights after each step under any layout, as JSON."""
    run: dict[str, Any] = {
        "model": model_fields(job.model), "seq_len": job.seq_len, "global_batch": job.global_batch,
        "optimizer": job.optimizer, "dtype": job.dtype, "seed": job.seed,
    }  # fmt: skip
    if job.shuffle:
        run["shuffle"] = True
    if job.end_token is not None:
        run["end_token"] = job.end_token
    if job.images is not None:
        run |= {"images": vars(job.images), "freezes_tower": job.freezes_tower}
    if job.adapters is not None:
        run["lora"] = {**vars(job.adapters), "targets": sorted(job.adapters.targets)}
    if job.technique is not None:
        run["technique"] = {job.technique[0]: job.technique[1], "replicas": job.num_replicas}
        if job.warmup_steps:
            run["technique"]["warmup_steps"] = job.warmup_steps
    run |= job.objective
    if job.init_digest is not None and (job.adapters is not None or job.freezes_tower):
        run["init_digest"] = job.init_digest  # frozen weights are in no checkpoint
    plain: dict[str, Any] = json.loads(json.dumps(run))
    return plain


def check_run(manifest: Manifest, job: Job, folder: Path) -> None:
    """Raises InputError that names every difference between the saved run and the resuming run."""
    unequal = differences(manifest.run, run_of(job))
    if not unequal:
        return
    if "algorithm" in unequal:  # from which the rest of the objective follows
        unequal = {name: both for name, both in unequal.items()
                 if name == "algorithm" or name.partition(".")[0] not in job.objective}  # fmt: skip
    fields = list(unequal)
    lines = [f"{name}: {saved} in the checkpoint, {now} now" for name, (saved, now) in unequal.items()]
    if any(name.startswith("model.") for name in fields):
        what, hint = f"another model ({manifest.model}, not {job.model.name})", "give the plan of that model"
    else:
        what, hint = "another run", "its steps would not continue the saved ones; start anew in another folder"
    if fields == ["seed"]:
        hint = f"`--seed {unequal['seed'][0]}`"
    if fields == ["init_digest"]:
        hint = f"`--init-from {manifest.init_from or 'FOLDER'}`, the weights that the run froze"
    raise InputError(f"{folder} was saved by {what}:\n" + "\n".join(lines), hint=hint)


def check_data(manifest: Manifest, job: Job, files: Mapping[str, str], folder: Path) -> None:
    """Raises InputError if files of the same `--data` differ from those of the checkpoint. Other data is allowed."""
    if manifest.data != job.data or not manifest.data_files:
        return
    changed = [f"{name}: {'removed' if now == 'none' else 'added' if before == 'none' else 'changed'}"
               for name, (before, now) in differences(manifest.data_files, files).items()]  # fmt: skip
    if changed:
        raise InputError(f"{job.data} is not the data that {folder} was trained on:\n" + "\n".join(changed),
                         hint="restore the files, or give new data under another name")  # fmt: skip


def model_fields(model: ModelSpec) -> dict[str, Any]:
    """The fields of a model that its weights depend on, with the digits that a plan keeps of them."""
    plain: dict[str, Any] = json.loads(json.dumps(spec_to_dict(model)))
    return {key: rounded(value) for key, value in plain.items() if key not in _WORDS}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted name -> both values of every field in which two documents differ; `none` for a missing field."""
    ones, others = dict(_leaves(one)), dict(_leaves(other))
    return {name: (ones.get(name, "none"), others.get(name, "none"))
            for name in {**ones, **others} if ones.get(name) != others.get(name)}  # fmt: skip


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield prefix, value
        return
    for key, item in items:
        yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))
