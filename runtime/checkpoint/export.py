"""Writes a checkpoint as a Hugging Face folder: safetensors files with an index, and config.json.

One process reads the checkpoint of any layout, one output file after the other. It holds the tensors of one file, in
fp32 and in the dtype of the export.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...cost_models.specs.model import ModelSpec
from ...errors import InputError, MissingExtraError
from ..model.adapters import Adapters
from ..new_folder import new_folder
from ..trainer import DTYPES
from .adapter_export import CONFIG as ADAPTER_CONFIG
from .adapter_export import WEIGHTS, adapter_config, adapter_tensors, check_readable, modules
from .huggingface import copies, sources, stored_predictions
from .manifest import EXPORTED, DamagedError, Manifest
from .pretrained import CONFIG, is_choice_bias, tensors_of, whole_weights
from .safetensors_folder import INDEX, SINGLE
from .saved_weights import Fill, adapters_of, fill_from, fill_merged, saved_factors
from .sources import Shape, Source, put

# Files that a tokenizer and `generate` read.
_BESIDE = ("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json",
           "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A box of one of our weights that fills a tensor of theirs, or a part of it."""

    weight: str  # ours
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
    predictions: int  # modules that predict further tokens, among the weights
    left_out: int  # such modules of the run that the family's files have no names for


def export(
    checkpoint: Path, to: Path, model: ModelSpec, config: Path, *, dtype: str | None, file_bytes: int,
    merge: bool = False, on_file: Callable[[str], None] = lambda name: None,
) -> Exported:  # fmt: skip
    """Writes the weights of one checkpoint folder into the new folder `to`, or its adapters where it has no others.

    model: that of `config`, its config.json; dtype: None for that of the run; file_bytes: size of a file of weights at
    most, unless a single tensor is larger; merge: write the weights with the adapters merged. Raises InputError for a
    damaged checkpoint or a folder that holds files.
    """
    manifest = _whole(checkpoint)
    model = replace(model, mtp_layers=int(manifest.run["model"].get("mtp_layers", 0)))
    adapters = adapters_of(manifest)
    dtype = dtype or str(manifest.run["dtype"])
    if dtype not in EXPORTED:
        raise InputError(f"{checkpoint}: trained in {dtype}", hint="`--dtype fp32`")
    if merge and adapters is None:
        raise InputError(f"--merge: {checkpoint} has no adapters, it has all weights", hint="leave out `--merge`")
    with new_folder(to) as partial:
        if adapters is None or merge:
            fill = (fill_from(checkpoint, manifest, model) if adapters is None
                    else fill_merged(checkpoint, manifest, model, adapters))  # fmt: skip
            sizes, files = _write(partial, tensors(model), dtype, file_bytes, fill, on_file)
            _write_config(config, partial, dtype)
        else:
            model = replace(model, mtp_layers=0)  # predictions have no adapters
            sizes, files = _write_adapters(checkpoint, partial, manifest, model, adapters, dtype)
    predictions = stored_predictions(model)
    return Exported(to, manifest.step, dtype, len(sizes), sum(sizes), files, predictions,
                    model.mtp_layers - predictions)  # fmt: skip


def _whole(checkpoint: Path) -> Manifest:
    """The manifest of a checkpoint. Raises InputError if a file has changed since it was saved."""
    try:
        manifest = Manifest.read(checkpoint)
        for name in manifest.files:
            manifest.check_file(checkpoint, name)
    except DamagedError as error:
        raise InputError(f"{checkpoint} is damaged: {error}", hint="export the checkpoint before it") from None
    return manifest


def tensors(model: ModelSpec) -> list[Theirs]:
    """All tensors of the model's files, in the order of its layers."""
    shapes = {name: weight.shape for name, weight in whole_weights(model).items()}
    parts: dict[str, list[Part]] = {}
    whole: dict[str, Shape] = {}
    repeated = [(ours, Source(theirs)) for theirs, ours in copies(model).items()]
    for ours, source in (*sources(model).items(), *repeated):
        for index, (name, sizes) in enumerate(tensors_of(source, shapes[ours])):
            first = (index, *(0 for _ in sizes)) if source.per_expert else tuple(0 for _ in sizes)
            box = (1, *sizes) if source.per_expert else sizes
            parts.setdefault(name, []).append(Part(ours, first, box, source))
            whole[name] = source.whole(sizes)
    return [Theirs(name, whole[name], tuple(each), any(is_choice_bias(part.weight) for part in each))
            for name, each in parts.items()]  # fmt: skip


def _write(
    to: Path, every: Sequence[Theirs], dtype: str, file_bytes: int, fill: Fill, on_file: Callable[[str], None]
) -> tuple[list[int], tuple[str, ...]]:
    """Writes all tensors and the index; returns the bytes of each tensor and the names of the files."""
    files = list(_files(every, dtype, file_bytes))
    names = [SINGLE] if len(files) == 1 else [
        f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))
    ]  # fmt: skip
    for name, of_file in zip(names, files, strict=True):
        _save(_read(of_file, dtype, fill), to / name)
        on_file(name)
    sizes = [each.num_bytes(dtype) for each in every]
    if len(files) > 1:
        listed = {each.name: name for name, of_file in zip(names, files, strict=True) for each in of_file}
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": listed}
        (to / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return sizes, tuple(names)


def _write_adapters(
    checkpoint: Path, to: Path, manifest: Manifest, model: ModelSpec, adapters: Adapters, dtype: str
) -> tuple[list[int], tuple[str, ...]]:
    """Writes a folder for peft; returns the bytes of each tensor and the name of the file."""
    if manifest.init_from is None:
        raise InputError(f"{checkpoint}: the run drew the frozen weights, so no folder has them for peft",
                         hint="`--merge` writes them with the adapters merged")  # fmt: skip
    every = modules(model, adapters)
    check_readable(model, every)
    ours = saved_factors(checkpoint, model, adapters, [weight for each in every for weight, _ in each.parts])
    factors = adapter_tensors(every, ours, DTYPES[dtype])
    _save(factors, to / WEIGHTS)
    (to / ADAPTER_CONFIG).write_text(adapter_config(model, adapters, manifest.init_from), encoding="utf-8")
    return [factor.nbytes for factor in factors.values()], (WEIGHTS,)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtraError("runtime", "writing safetensors") from None
    save_file(tensors, path, metadata={"format": "pt"})


def _files(every: Sequence[Theirs], dtype: str, most: int) -> Iterator[list[Theirs]]:
    """Groups tensors into files of at most `most` bytes; a larger tensor gets a file of its own."""
    of_file: list[Theirs] = []
    for each in every:
        if of_file and sum(before.num_bytes(dtype) for before in of_file) + each.num_bytes(dtype) > most:
            yield of_file
            of_file = []
        of_file.append(each)
    yield of_file


def _read(every: Sequence[Theirs], dtype: str, fill: Fill) -> dict[str, Tensor]:
    """Their tensors by name, from weights in fp32."""
    boxes = {(part.weight, part.offsets): torch.zeros(part.sizes) for each in every for part in each.parts}
    fill(boxes)
    out: dict[str, Tensor] = {}
    for each in every:
        out[each.name] = whole = torch.zeros(each.shape, dtype=each.dtype(dtype))
        for part in each.parts:
            box = boxes[part.weight, part.offsets].to(whole.dtype)
            put(part.source, box[0] if part.source.per_expert else box, whole)
    return out


def _write_config(config: Path, to: Path, dtype: str) -> None:
    """Writes config.json with the dtype of the weights, and copies the tokenizer beside it."""
    document: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    document["dtype" if "dtype" in document else "torch_dtype"] = str(DTYPES[dtype]).removeprefix("torch.")
    (to / CONFIG).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for name in _BESIDE:
        if (config.parent / name).is_file():
            shutil.copyfile(config.parent / name, to / name)
