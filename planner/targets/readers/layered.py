"""Files that build on one another: a YAML or the overrides of a command that change another YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....profiles.io.document import Document, FieldPath
from ....profiles.io.reader import read_text
from ..shell.nearby import text_of

_MOST = 10  # files on top of one another


@dataclass
class Layers:
    """Documents as one: each changes those before it."""

    # The key of a block that replaces the block below it instead of changing it; "": none.
    whole: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    # Field -> file and line of the document that states it last.
    places: dict[FieldPath, tuple[str, int]] = field(default_factory=dict)

    def add(self, document: Document) -> None:
        self._merge(self.data, document.data, (), document)

    def _merge(self, into: dict[str, Any], block: Mapping[str, Any], path: FieldPath, document: Document) -> None:
        for key, value in block.items():
            here = (*path, str(key))
            self.places[here] = (document.file(here), document.line(here))
            if not isinstance(value, Mapping):
                into[str(key)] = value
                continue
            inner = into.get(str(key))
            kept = inner if isinstance(inner, dict) and not value.get(self.whole) else {}
            into[str(key)] = kept
            self._merge(kept, {name: each for name, each in value.items() if name != self.whole}, here, document)

    def document(self, name: str) -> Document:
        """All of it, under the name of a file, with the places of its fields."""

        def place(path: FieldPath) -> tuple[str, int]:
            return next((self.places[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.places),
                        (name, 0))  # fmt: skip

        return Document(name, self.data, line_of=lambda path: place(path)[1], file_of=lambda path: place(path)[0])


def stacked(documents: Mapping[str, Document], options: Sequence[str],
            load: Callable[[str, str], Document]) -> list[Document]:  # fmt: skip
    """The documents (path -> document), each on top of the files that its `options` name: others of them, or files on
    the disk beside it, which `load` reads by path and text. The name of a file that is nowhere stays in its option."""
    on_disk = dict[str, Document]()
    used = set[str]()

    def found(path: str, name: str) -> str | None:
        given = text_of(name, {other: other for other in documents if other != path})
        where = os.path.normpath(Path(path).parent / name)
        if given is None and Path(where).is_file() and os.path.realpath(where) != os.path.realpath(path):
            on_disk[where] = load(where, read_text(Path(where)))
            return where
        return given

    def whole(path: str, document: Document, depth: int = 0) -> Document:
        layers, data = Layers(), document.data
        for option in options if isinstance(data, Mapping) and depth < _MOST else ():
            names = {name: found(path, name) for name in _files(data.get(option))}
            used.update(filter(None, names.values()))
            for below in filter(None, names.values()):
                layers.add(whole(below, documents[below] if below in documents else on_disk[below], depth + 1))
            if names and None not in names.values():
                data = {key: each for key, each in data.items() if key != option}
        if data is document.data:
            return document
        layers.add(replace(document, data=data))
        return layers.document(path)

    made = {path: whole(path, document) for path, document in documents.items()}
    if documents and not made.keys() - used:
        path = next(iter(documents))
        option = next(option for option in options if documents[path].at((option,)))
        raise InputError.of([documents[path].problem((option,), "names a file that builds on this one", "keep one")])
    return [document for path, document in made.items() if path not in used]


def _files(value: Any) -> list[str]:
    """The files that an option names: one, or those of a list of defaults of Hydra (`../math/grpo@_global_`)."""
    if isinstance(value, str):
        return [value]
    names = [str(name).partition("@")[0] for name in value if name != "_self_"] if isinstance(value, list) else []
    return [name if re.search(r"\.ya?ml$", name) else f"{name}.yaml" for name in names]
