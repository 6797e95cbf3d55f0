"""Files that build on one another: a YAML or the overrides of a command that change another YAML."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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


def stacked(documents: Mapping[str, Document], option: str, load: Callable[[str, str], Document]) -> list[Document]:
    """The documents (path -> document), each on top of the file that its `option` names: one of the others, or one on
    the disk beside it, which `load` reads by path and text. The name of a file that is nowhere stays in the option. All
    as they are where `option` is ""."""
    below = dict[str, Document]()
    used = set[str]()

    def whole(path: str, document: Document, depth: int = 0) -> Document:
        name = document.at((option,))
        if not isinstance(name, str) or depth > _MOST:
            return document
        found = text_of(name, {other: other for other in documents if other != path})
        where = os.path.normpath(Path(path).parent / name)
        if found is None and Path(where).is_file() and os.path.realpath(where) != os.path.realpath(path):
            found = where
            below[where] = load(where, read_text(Path(where)))
        if found is None:
            return document
        used.add(found)
        layers = Layers()
        layers.add(whole(found, documents[found] if found in documents else below[found], depth + 1))
        layers.add(_without(document, option))
        return layers.document(path)

    made = {path: whole(path, document) for path, document in documents.items()}
    if documents and not made.keys() - used:
        path = next(iter(documents))
        raise InputError.of([documents[path].problem((option,), "names a file that builds on this one", "keep one")])
    return [document for path, document in made.items() if path not in used]


def _without(document: Document, option: str) -> Document:
    return replace(document, data={name: each for name, each in document.data.items() if name != option})
