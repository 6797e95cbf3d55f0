"""Models by name or file: the catalogue in `models/*.yaml`, Hugging Face config.json, and the explicit form.

A catalogue file holds `source`, `aliases`, perhaps `trained_with` (an optimizer and its source) and `published_in` (the
number format of the weights and its source), and either `config` (the fields of config.json) or `model` (the explicit
form, `read_explicit_form`). `_published_shapes.yaml` holds many such entries by name: the shapes of published runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ...cost_models.specs.model import ModelSpec
from ...errors import InputError, UnknownNameError
from ..io.document import Document
from ..io.folders import CATALOGUE
from ..io.reader import read_document
from .explicit_form import read_explicit_form
from .huggingface import read_config
from .releases import names_of_models

_CATALOGUE = CATALOGUE / "models"
_SHAPES = _CATALOGUE / "_published_shapes.yaml"
_SUFFIXES = (".json", ".yaml", ".yml", ".toml")


def load_model(reference: str | Path) -> tuple[ModelSpec, list[str]]:
    """The model that `reference` names, and warnings: a catalogue name or alias, a file, a folder with config.json, or
    a release of a catalogued model.

    In names case is ignored and `_`, `-`, `.` and blanks are equal.
    Raises UnknownNameError (with the nearest names) for an unknown name, InputError for a missing or wrong file.
    """
    text = str(reference)
    if isinstance(reference, str) and (entry := _entry(text)):
        spec, warnings = entry
        return spec, list(warnings)
    path = Path(os.path.expanduser(text))  # Path.expanduser raises for a user that there is not
    if path.is_dir() and (isinstance(reference, Path) or os.sep in text or (path / "config.json").exists()):
        path = path / "config.json"
        if not path.exists():
            raise InputError(f"{text}: the folder holds no config.json", hint="name the file, or another folder")
    elif not path.is_file() and not _looks_like_path(reference):
        if (entry := _entry_of_release(text)) is not None:
            spec, warnings = entry
            note = "its shapes, in the number format of the request; a folder with its config.json is read as it is"
            return spec, [f"{text} is taken for {spec.name}: {note}", *warnings]
        raise UnknownNameError("model", text, model_names(), see="meshwright show models")
    return _read_file(path)


def catalogued(name: str) -> ModelSpec | None:
    """The catalogue's model of that name or alias, if there is one: no file is looked for."""
    entry = _entry(name)
    return None if entry is None else entry[0]


def release_of(name: str) -> ModelSpec | None:
    """The catalogue's model that `name` is a release of, if there is one."""
    entry = _entry_of_release(name)
    return None if entry is None else entry[0]


def trained_with(name: str) -> str | None:
    """The optimizer that the makers of a catalogued model trained it with, None where its file does not state it."""
    return _stated(name, "trained_with", "optimizer")


def published_in(name: str) -> str | None:
    """The number format of the published weights of a catalogued model, None where its file does not state it."""
    return _stated(name, "published_in", "format")


def quantized_in(reference: str | Path) -> str | None:
    """The number format that the `quantization_config` of a config.json, or of one in a folder, states: that of its
    `quant_method`, where it is fp8 or mxfp4, or integers of 4 bits (awq, gptq). None: no such file, or another one."""
    path = Path(os.path.expanduser(str(reference)))
    path = path / "config.json" if path.is_dir() else path
    data = read_document(path).data if path.suffix == ".json" and path.is_file() else None
    stated = data.get("quantization_config") if isinstance(data, dict) else None
    if not isinstance(stated, dict):
        return None
    method = stated.get("quant_method")
    if method in ("awq", "gptq"):
        return "int4" if stated.get("bits") == 4 else None
    return method if method in ("fp8", "mxfp4") else None


def _stated(name: str, key: str, part: str) -> str | None:
    """A part of what the file of a catalogued model states beside its config."""
    _, path = _index().get(_normal(name), ("", None))
    if path is None or path == _SHAPES:
        return None
    stated: str | None = read_document(path).data.get(key, {}).get(part)
    return stated


def model_names() -> list[str]:
    """The canonical names of the catalogue, sorted; aliases are not listed."""
    return sorted({name for name, _ in _index().values()})


def _looks_like_path(reference: str | Path) -> bool:
    text = str(reference)
    return isinstance(reference, Path) or text.lower().endswith(_SUFFIXES) or text.startswith((".", "~", os.sep))


def _normal(name: str) -> str:
    """Spellings that mean the same name: case, and any run of `_ - . blank ( )` as one hyphen."""
    return re.sub(r"[-_.\s()]+", "-", name.lower()).strip("-")


@cache
def _index() -> dict[str, tuple[str, Path]]:
    """Every normalised spelling -> (canonical name, file)."""
    index: dict[str, tuple[str, Path]] = {}
    for path in sorted(_CATALOGUE.glob("*.yaml")):
        data = read_document(path).data
        for name, entry in data.items() if path == _SHAPES else [(path.stem, data)]:
            for spelling in (name, *entry.get("aliases", ())):
                other = index.setdefault(_normal(spelling), (name, path))
                if other[0] != name:
                    raise InputError(f"{path.name}: `{spelling}` names {other[0]} and {name}")
    return index


@cache
def _entry(reference: str) -> tuple[ModelSpec, tuple[str, ...]] | None:
    """The catalogue entry of that name or alias; the common case of a file's own name reads that file only. Read once:
    a sweep asks for its model at every point."""
    name = _normal(reference)
    path = _CATALOGUE / f"{reference.lower()}.yaml"
    if os.sep in reference or not path.is_file() or path == _SHAPES:
        if name not in _index():
            return None
        name, path = _index()[name]
    spec, warnings = _read_entry(read_document(path), (name,), name) if path == _SHAPES else _read_file(path)
    return spec, tuple(warnings)


def _entry_of_release(name: str) -> tuple[ModelSpec, tuple[str, ...]] | None:
    return next((entry for other in names_of_models(name) if (entry := _entry(other)) is not None), None)


def _read_file(path: Path) -> tuple[ModelSpec, list[str]]:
    document = read_document(path)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return _read_entry(document, (), name or "config")


def _read_entry(document: Document, prefix: tuple[str, ...], name: str) -> tuple[ModelSpec, list[str]]:
    """The model at `prefix` of the document: a bare form of either kind, or one wrapped with `source` and `aliases`."""
    data = document.at(prefix) if prefix else document.data
    if not isinstance(data, Mapping):
        raise InputError(f"{document.name}: must be a mapping of model fields", hint="see `meshwright show models`")
    source = str(data.get("source", document.name))
    notes = [f"{name}: {data['note']}"] if data.get("note") else []
    for key in ("config", "model"):
        if isinstance(data.get(key), Mapping):
            prefix, data = (*prefix, key), data[key]
            break

    def line(path: tuple[str | int, ...]) -> int:
        return document.line((*prefix, *path))

    hugging_face = "model_type" in data or "architectures" in data or "text_config" in data or "_class_name" in data
    explicit = not hugging_face and ("hidden" in data or document.syntax != "json")
    read = read_explicit_form if explicit else read_config
    spec, warnings = read(data, name, source, file=document.name, line=line)
    return spec, notes + warnings
