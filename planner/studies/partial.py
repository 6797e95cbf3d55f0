"""The points of a sweep that are done, in a file: an interrupted sweep goes on from there.

One line of JSON says which sweep it is, and each further line holds points. Lines are added whole: where the disk is
full the file ends with the last whole line, and a line that a crash cut short is dropped when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from ..._version import __version__
from ...errors import FieldProblem, InputError
from ..request.load import request_to_dict
from .base import FORMAT_VERSION, Point, Question
from .paths import Value

_KIND = "what-if-partial"
_NAME = "name a file that `--resume` wrote, or a new one"


@dataclass
class Partial:
    """points: those done, by their place in the grid. Without a path nothing is kept."""

    path: Path | None = None
    points: dict[int, Point] = field(default_factory=dict)

    @classmethod
    def opened(cls, path: Path, question: Question, grid: list[dict[str, Value]]) -> Partial:
        """The file at `path`, begun if it does not exist.

        Raises InputError if it holds another sweep, another version wrote it, it is damaged, or cannot be written.
        """
        head = {"kind": _KIND, "format_version": FORMAT_VERSION, "version": __version__, "points": len(grid),
                "question": _digest(question, grid)}  # fmt: skip
        partial = cls(path)
        if not path.exists():
            partial._append(json.dumps(head) + "\n")
            return partial
        text = _read(path)
        lines = text.splitlines(keepends=True)
        _check(path, lines[0] if lines else "", head)
        for number, line in enumerate(lines[1:], 2):
            if not line.endswith("\n"):  # cut short: its points are searched again
                os.truncate(path, len(text.encode()) - len(line.encode()))
                break
            partial.points.update(_points(path, number, line, len(grid)))
        return partial

    def add(self, done: Mapping[int, Point]) -> None:
        """Keep points. Raises InputError where they cannot be written; what was kept before stays readable."""
        if self.path is not None:
            by_index = {str(index): point.model_dump(mode="json") for index, point in done.items()}
            self._append(json.dumps(by_index) + "\n")

    def _append(self, line: str) -> None:
        if self.path is None:
            return
        before = self.path.stat().st_size if self.path.exists() else None
        try:
            with open(self.path, "ab", buffering=0) as file:
                data = line.encode()
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
        except OSError as error:
            if before is not None:
                os.truncate(self.path, before)
            else:
                self.path.unlink(missing_ok=True)
            reason = (error.strerror or str(error)).lower()
            hint = "make room, then run the same command again: what is in the file stays"
            raise InputError(f"cannot write {self.path}: {reason}", hint=hint) from None


def _digest(question: Question, grid: list[dict[str, Value]]) -> str:
    """Digest of the inputs of a point: the request, the facts behind it, the layout held, the points."""
    layout = [question.layout.id, list(question.layout.partition.sizes) if question.layout.partition else None]
    plain = question.plain
    facts = [plain.profiles, repr(plain.model), repr(plain.cluster), repr(plain.stack)]
    content = [request_to_dict(plain.request), facts, layout, dict(question.sets), question.replan, grid]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise InputError(f"--resume {path}: {reason}", hint=_NAME) from None


def _check(path: Path, line: str, head: Mapping[str, object]) -> None:
    try:
        first = json.loads(line)
    except ValueError:
        first = None
    if not isinstance(first, dict) or first.get("kind") != _KIND:
        raise InputError(f"--resume {path}: not a file of points", hint=_NAME)
    if (first.get("version"), first.get("format_version")) != (head["version"], head["format_version"]):
        raise InputError(f"--resume {path}: meshwright {first.get('version')} wrote it, this is {head['version']}",
                         hint="name a new file")  # fmt: skip
    if first != head:
        raise InputError(f"--resume {path}: points of another sweep (another plan, `--set`, `--vary` or profile)",
                         hint="name a new file, or ask as before")  # fmt: skip


def _points(path: Path, number: int, line: str, most: int) -> dict[int, Point]:
    try:
        points = {int(index): Point.model_validate(point) for index, point in json.loads(line).items()}
    except (ValueError, AttributeError, ValidationError):
        points = {-1: None}  # type: ignore[dict-item]
    if not all(0 <= index < most for index in points):
        problem = FieldProblem("damaged", file=str(path), line=number, hint="delete the file, or from that line on")
        raise InputError.of([problem])
    return points
