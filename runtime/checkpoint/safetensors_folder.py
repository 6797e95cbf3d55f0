"""Finds the tensors of a folder of safetensors files, and the problems of the files. The files are memory-mapped.

A folder has `model.safetensors`, or an index and the files that it names (transformers 5.24:
SAFE_WEIGHTS_NAME and SAFE_WEIGHTS_INDEX_NAME).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import FieldProblem, InputError, MissingExtraError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Names of get_dtype() of safetensors; all others are integers or 8-bit floats.
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_AS_SAFETENSORS = "load it in transformers and `save_pretrained` it, which writes safetensors"
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A tensor in a header."""

    file: Path
    shape: Shape
    dtype: str  # name in safetensors


class TensorFolder:
    """The tensors of a folder of safetensors files, by name, and the `problems` of the files."""

    def __init__(self, folder: Path) -> None:
        """Reads index and headers. Raises InputError if there are no such files."""
        self.folder, self.problems = folder, list[FieldProblem]()
        self.entries: dict[str, Entry] = {}
        self._open: dict[Path, Any] = {}
        self._wrong_names: set[str] = set()
        listed = self._listed()
        for name in sorted(set(listed.values())):
            self._read_header(folder / name, listed)
        for name, file in listed.items():
            there = (folder / file) in self._open
            if name and there and name not in self.entries and name not in self._wrong_names:
                self._wrong(file, name, f"{INDEX} has it there, the file does not")

    def tensor(self, name: str) -> Tensor:
        """A whole tensor, as a view of the mapped file."""
        tensor: Tensor = self._open[self.entries[name].file].get_tensor(name)
        return tensor

    def _wrong(self, file: str, field: str, text: str, hint: str = "download the folder again") -> None:
        self.problems.append(FieldProblem(text, file=file, field=field, hint=hint))

    def _listed(self) -> Mapping[str, str]:
        """Tensor -> file from the index; without an index, the empty name -> the single file."""
        index = self.folder / INDEX
        if index.is_file():
            return self._index(index)
        if (self.folder / SINGLE).is_file():
            return {"": SINGLE}
        if not self.folder.is_dir():
            raise InputError(f"{self.folder}: no such folder",
                             hint="give a downloaded folder, with config.json and safetensors files")  # fmt: skip
        others = sorted(path.name for path in self.folder.iterdir() if path.suffix in (".bin", ".pt", ".pth"))
        if others:
            raise InputError(f"{self.folder}: {others[0]} is a pickle, which can run code when it is read",
                             hint=_AS_SAFETENSORS)  # fmt: skip
        raise InputError(f"{self.folder}: neither {SINGLE} nor {INDEX} is in it", hint=_AS_SAFETENSORS)

    def _index(self, path: Path) -> Mapping[str, str]:
        twice: list[str] = []

        def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            names = [name for name, _ in pairs]
            if len(set(names)) < len(names):
                twice.extend(sorted({name for name in names if names.count(name) > 1}))
            return dict(pairs)

        try:
            document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=object_of)
            listed = {str(name): str(file) for name, file in document["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: no index of tensors: {type(error).__name__}: {error}",
                             hint="download the folder again") from None  # fmt: skip
        for name in twice:
            self._wrong(INDEX, name, "is there twice")
        for name in sorted({file for file in listed.values() if Path(file).name != file}):
            self._wrong(INDEX, name, "names a file outside the folder")
        return {name: file for name, file in listed.items() if Path(file).name == file}

    def _read_header(self, path: Path, listed: Mapping[str, str]) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise MissingExtraError("runtime", "reading safetensors") from None
        if not path.is_file():
            count = sum(file == path.name for file in listed.values())
            self._wrong(path.name, "", f"is missing; {INDEX} has {count} tensors in it")
            return
        try:
            self._open[path] = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            self._wrong(path.name, "", f"cannot be read: {error}")
            return
        for name in self._open[path].keys():  # noqa: SIM118  # it is no mapping
            self._add(name, path, self._open[path].get_slice(name), listed)

    def _add(self, name: str, path: Path, header: Any, listed: Mapping[str, str]) -> None:
        before, dtype = self.entries.get(name), header.get_dtype()
        if before is not None:
            self._wrong(path.name, name, f"is in {before.file.name}, too")
        elif "" not in listed and listed.get(name) not in (None, path.name):
            self._wrong(path.name, name, f"{INDEX} has it in {listed[name]}")
            self._wrong_names.add(name)
        elif dtype not in FLOATS:
            what = "8-bit floats" if dtype.startswith("F8") else "quantised numbers"
            self._wrong(path.name, name, f"holds {what} ({dtype}), which cannot train",
                        "take the folder of the weights in bf16, or dequantise it in transformers first")  # fmt: skip
            self._wrong_names.add(name)
        else:
            self.entries[name] = Entry(path, tuple(header.get_shape()), dtype)
