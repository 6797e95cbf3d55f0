"""Writes a checkpoint as a Hugging Face folder: safetensors files with an index, and config.json.

One process reads the checkpoint of any layout, one output file after the other. It holds the tensors of one file, in
fp32 and in the dtype of the export.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from ...cost_models.specs.model import ModelSpec
from ...errors import InputError, MissingExtraError, UnsupportedError
from ..model.experts import CHOICE_BIAS
from .huggingface import sources
from .manifest import DamagedError, Manifest
from .pretrained import CONFIG, tensors_of, weight_shapes
from .safetensors_folder import INDEX, SINGLE
from .slices import LoadPieces, Piece
from .sources import Shape, Source

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_CONFIG_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
# Files that a tokenizer and `generate` read.
_BESIDE = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json",
           "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A box of one of our weights that fills a tensor of theirs, or a part of it."""

    weight: str  # ours
    shape: Shape  # of all of the weight
    offsets: Shape  # where the box starts
    sizes: Shape  # of the box
    source: Source  # its place in theirs


@dataclass(frozen=True)
class Theirs:
    """A tensor to write. Its elements are those of `parts`."""

    name: str
    shape: Shape
    parts: tuple[Part, ...]
    wide: bool = False  # fp32 whatever the others are, as transformers keeps it

    @property
    def elements(self) -> int:
        return torch.Size(self.shape).numel()

    def dtype(self, usual: str) -> torch.dtype:
        return torch.float32 if self.wide else DTYPES[usual]

    def num_bytes(self, usual: str) -> int:
        return self.elements * self.dtype(usual).itemsize


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    folder: Path
    step: int  # of the checkpoint
    dtype: str  # of the weights
    num_tensors: int
    num_bytes: int  # of all tensors
    files: tuple[str, ...]  # of weights


def export(
    checkpoint: Path, to: Path, model: ModelSpec, config: Path, *, dtype: str | None, file_bytes: int,
    on_file: Callable[[str], None] = lambda name: None,
) -> Exported:  # fmt: skip
    """Writes the weights of one checkpoint folder into the new folder `to`.

    model: that of `config`, its config.json; dtype: None for that of the run; file_bytes: size of a file of weights at
    most, unless a single tensor is larger. Raises InputError for a damaged checkpoint or a folder that holds files,
    UnsupportedError.
    """
    manifest = _whole(checkpoint)
    dtype = dtype or str(manifest.run["dtype"])
    if dtype not in DTYPES:
        raise InputError(f"{checkpoint}: trained in {dtype}", hint="`--dtype fp32`")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(f"{to} is there already", hint="name a folder that is new or empty")
    partial = to.with_name(f".partial-{to.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        written = _write(checkpoint, partial, tensors(model), dtype, file_bytes, on_file)
        _write_config(config, partial, dtype)
        if to.exists():
            to.rmdir()
        partial.rename(to)
    except OSError as error:
        raise InputError(f"{to}: {error.strerror or error}", hint="choose a folder with room for the weights") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    size = sum(each.num_bytes(dtype) for each in tensors(model))
    return Exported(to, manifest.step, dtype, len(tensors(model)), size, written)


def _whole(checkpoint: Path) -> Manifest:
    """The manifest of a checkpoint. Raises InputError if a file has changed since it was saved."""
    try:
        manifest = Manifest.read(checkpoint)
        for name in manifest.files:
            manifest.check_file(checkpoint, name)
    except DamagedError as error:
        raise InputError(f"{checkpoint} is damaged: {error}", hint="export the checkpoint before it") from None
    if "lora" in manifest.run:
        raise UnsupportedError(f"{checkpoint} has adapters only: they are not merged into the weights that they adapt",
                               hint="export a run that trains all weights")  # fmt: skip
    return manifest


def tensors(model: ModelSpec) -> list[Theirs]:
    """All tensors of the model's files, in the order of its layers."""
    shapes = weight_shapes(model)
    parts: dict[str, list[Part]] = {}
    whole: dict[str, Shape] = {}
    for ours, source in sources(model).items():
        for index, (name, sizes) in enumerate(tensors_of(source, shapes[ours])):
            first = (index, *(0 for _ in sizes)) if source.per_expert else tuple(0 for _ in sizes)
            box = (1, *sizes) if source.per_expert else sizes
            parts.setdefault(name, []).append(Part(ours, shapes[ours], first, box, source))
            whole[name] = source.whole(sizes)
    return [Theirs(name, whole[name], tuple(each), any(is_choice_bias(part.weight) for part in each))
            for name, each in parts.items()]  # fmt: skip


def is_choice_bias(weight: str) -> bool:
    """Whether one of our weights is a bias of expert choice."""
    return weight.endswith(f".{CHOICE_BIAS}")


def _write(
    checkpoint: Path, to: Path, every: Sequence[Theirs], dtype: str, file_bytes: int, on_file: Callable[[str], None]
) -> tuple[str, ...]:
    """Writes all tensors and the index; returns the names of the files."""
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtraError("runtime", "writing safetensors") from None
    files = list(_files(every, dtype, file_bytes))
    names = [SINGLE] if len(files) == 1 else [
        f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))
    ]  # fmt: skip
    for name, of_file in zip(names, files, strict=True):
        save_file(_read(checkpoint, of_file, dtype), to / name, metadata={"format": "pt"})
        on_file(name)
    if len(files) > 1:
        listed = {each.name: name for name, of_file in zip(names, files, strict=True) for each in of_file}
        total = sum(each.num_bytes(dtype) for each in every)
        index = {"metadata": {"total_size": total}, "weight_map": listed}
        (to / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return tuple(names)


def _files(every: Sequence[Theirs], dtype: str, most: int) -> Iterator[list[Theirs]]:
    """Groups tensors into files of at most `most` bytes; a larger tensor gets a file of its own."""
    of_file: list[Theirs] = []
    for each in every:
        if of_file and sum(before.num_bytes(dtype) for before in of_file) + each.num_bytes(dtype) > most:
            yield of_file
            of_file = []
        of_file.append(each)
    yield of_file


def _read(checkpoint: Path, every: Sequence[Theirs], dtype: str) -> dict[str, Tensor]:
    """Their tensors by name, from the checkpoint's master weights."""
    boxes = {(part.weight, part.offsets): torch.zeros(part.sizes) for each in every for part in each.parts}
    shapes = {part.weight: part.shape for each in every for part in each.parts}
    pieces = [Piece(f"weights.{weight}", shapes[weight], offsets, box, optional=is_choice_bias(weight))
              for (weight, offsets), box in boxes.items()]  # fmt: skip
    try:
        with warnings.catch_warnings():  # torch warns that there is only one process
            warnings.simplefilter("ignore")
            load({}, storage_reader=FileSystemReader(checkpoint), planner=LoadPieces(pieces), no_dist=True)
    except CheckpointException as error:
        raise InputError(f"{checkpoint}: {next(iter(error.failures.values()))[0]}",
                         hint="export with the config.json of the model that was trained") from None  # fmt: skip
    out: dict[str, Tensor] = {}
    for each in every:
        out[each.name] = whole = torch.zeros(each.shape, dtype=each.dtype(dtype))
        for part in each.parts:
            box = boxes[part.weight, part.offsets].to(whole.dtype)
            put(part.source, box[0] if part.source.per_expert else box, whole)
    return out


def put(source: Source, ours: Tensor, theirs: Tensor) -> None:
    """The inverse of `source.take`: copies the elements of ours to their places in theirs, bit by bit."""
    there = source.take(theirs)
    if there.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr():  # a view, which is written through
        there.copy_(ours)
        return
    # `take` permutes elements here. Applied to the index of every element it returns the places that ours come from.
    places = source.take(torch.arange(theirs.numel()).view(theirs.shape))
    theirs.view(-1)[places.flatten()] = ours.flatten()


def _write_config(config: Path, to: Path, dtype: str) -> None:
    """Writes config.json with the dtype of the weights, and copies the tokenizer beside it."""
    document: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    document["dtype" if "dtype" in document else "torch_dtype"] = _CONFIG_DTYPES[dtype]
    (to / CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for name in _BESIDE:
        if (config.parent / name).is_file():
            shutil.copyfile(config.parent / name, to / name)

