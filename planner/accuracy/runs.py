"""Reads files of rows, one row at a time: published training runs and tuned plans (docs/concepts/trust.md).

A file is a YAML list, a JSON array or JSON lines, plain or gzipped. Rows are cut out of the text and parsed one by
one, so that memory does not grow with the file; each row knows the line it starts in.
"""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TypeVar

from ...errors import FieldProblem, InputError
from ...profiles.io.folders import PUBLISHED
from ...profiles.io.reader import read_document
from .case import read_case
from .mixed_lengths import REGIME, MixedCase, read_mixed
from .row import Case, RowReader, Unpriced
from .unpriced_forms import NotPriced, form_of, read_unpriced

_MOST_PROBLEMS = 200  # shown; beyond that a file is of another kind altogether
_LARGEST_ROW = 1 << 24  # characters
Progress = Callable[[float, float], None]
Row = TypeVar("Row")


def shipped_files() -> list[Path]:
    """The runs that come with meshwright."""
    return sorted(PUBLISHED.glob("*.jsonl.gz"))


@dataclass(frozen=True, slots=True)
class Chunk:
    """The text of one row and the line of the file that it starts in."""

    text: str
    line: int


@dataclass(slots=True)
class Problems:
    """The problems of all files together."""

    # The first _MOST_PROBLEMS.
    first: list[FieldProblem]
    # All of them.
    count: int = 0
    # Rows that are right, and that lack what a prediction needs.
    unpriced: list[Unpriced] = field(default_factory=list)
    # Steps on documents of mixed lengths, which have no layout.
    mixed: list[MixedCase] = field(default_factory=list)
    # Rows that are right, of forms that no cost model prices -> how many.
    not_priced: Counter[NotPriced] = field(default_factory=Counter)

    def add(self, problems: Sequence[FieldProblem]) -> None:
        self.count += len(problems)
        self.first += problems[: max(0, _MOST_PROBLEMS - len(self.first))]

    def error(self) -> InputError:
        more = self.count - len(self.first)
        shown = [*self.first, FieldProblem(f"and {more:,} more problems")] if more > 0 else self.first
        return InputError.of(shown)


def read_cases(paths: Sequence[Path], problems: Problems, progress: Progress | None = None) -> Iterator[Case]:
    """The runs of all files. `problems` gets the problems of wrong rows, the rows that lack a field which a prediction
    needs, those on documents of mixed lengths, and the rows of forms that no cost model prices."""
    for run in read_rows(paths, _read_run, problems, progress):
        if isinstance(run, Unpriced):
            problems.unpriced.append(run)
        elif isinstance(run, MixedCase):
            problems.mixed.append(run)
        elif isinstance(run, NotPriced):
            problems.not_priced[run] += 1
        elif isinstance(run, Case):
            yield run


def _read_run(row: RowReader) -> Case | MixedCase | Unpriced | NotPriced | None:
    if isinstance(row.document.data, Mapping) and row.get("regime") == REGIME:
        return read_mixed(row)
    form = form_of(row)
    return read_unpriced(row, form) if form else read_case(row)


def read_rows(
    paths: Sequence[Path], read: Callable[[RowReader], Row | None], problems: Problems,
    progress: Progress | None = None, *, names_rows: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """The rows of all files, each as `read` makes it; what is wrong goes to `problems` and the row is left out.

    names_rows: problems begin with the id of their row.
    """
    seen: dict[str, tuple[str, int]] = {}
    total = float(sum(path.stat().st_size for path in paths if path.is_file()))
    before = 0.0
    for path in paths:
        any_row = False
        for chunk, position in _chunks(path, problems):
            any_row = True
            row = _row(path, chunk, read, seen, problems, names_rows)
            if progress is not None:
                progress(before + position, total)
            if row is not None:
                yield row
        if not any_row and not any(problem.file == str(path) for problem in problems.first):
            hint = "it is a list, one item per row"
            problems.add([FieldProblem("the file is empty", file=str(path), hint=hint)])
        before += path.stat().st_size if path.is_file() else 0.0


def _row(
    path: Path, chunk: Chunk, read: Callable[[RowReader], Row | None], seen: dict[str, tuple[str, int]],
    problems: Problems, names_row: bool,
) -> Row | None:  # fmt: skip
    try:
        document = read_document("row.yaml", chunk.text)
    except InputError:
        problems.add([_syntax(path, chunk)])
        return None
    row = RowReader(replace(document, name=str(path)), chunk.line - 1, names_row)
    result = read(row)
    name = document.data.get("id") if isinstance(document.data, dict) else None
    if isinstance(name, str) and name in seen:
        where, line = seen[name]
        first = f"line {line}" if where == str(path) else f"{where}, line {line}"
        row.fail(("id",), f"`{name}` is used twice, first in {first}", "give every row an id of its own")
    elif isinstance(name, str):
        seen[name] = (str(path), chunk.line)
    problems.add(row.problems)
    return result if not row.problems else None


def _syntax(path: Path, chunk: Chunk) -> FieldProblem:
    """The complaint about a row that cannot be parsed, with the line of the file."""
    try:
        read_document(str(path.with_suffix(".yaml")), "\n" * (chunk.line - 1) + chunk.text)
    except InputError as error:
        problem = error.problems[0]
        return problem._replace(file=str(path), line=problem.line or chunk.line, hint=error.hint)
    return FieldProblem("cannot be read", "", str(path), chunk.line)


def _chunks(path: Path, problems: Problems) -> Iterator[tuple[Chunk, float]]:
    """The rows of a file as text, with how many bytes of it are read."""
    try:
        with open(path, "rb") as raw:
            packed = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            with io.TextIOWrapper(packed, encoding="utf-8-sig") as lines:
                yield from ((chunk, raw.tell()) for chunk in _split(path, lines, problems))
    except FileNotFoundError:
        hint = "check the path; it is taken from the current folder"
        problems.add([FieldProblem("no such file", file=str(path), hint=hint)])
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problems.add([FieldProblem(f"cannot be read ({reason.lower()})", file=str(path))])
    except UnicodeDecodeError as error:
        problems.add([FieldProblem(f"not UTF-8 text ({error.reason})", file=str(path), hint="save the file as UTF-8")])


def _split(path: Path, lines: IO[str], problems: Problems) -> Iterator[Chunk]:
    """Cuts the text into rows by what its first line with content begins with: `-`, `[` or `{`."""
    for number, line in enumerate(lines, 1):
        content = line.strip()
        if not content or content.startswith("#") or content == "---" or content.startswith("%"):
            continue
        if content == "-" or content.startswith("- "):
            yield from _yaml_items(lines, line, number)
        elif content.startswith("{"):
            yield from (Chunk(text, at) for at, text in _json_lines(lines, line, number))
        elif content.startswith("["):
            yield from _json_array(path, lines, line, number, problems)
        else:
            hint = "one row per item: `- id: ...`; the fields are in docs/concepts/trust.md"
            problems.add([FieldProblem("not a list of rows", file=str(path), line=number, hint=hint)])
        return


def _yaml_items(lines: IO[str], first: str, number: int) -> Iterator[Chunk]:
    """Items of a block list: lines whose dash stands where the first one does."""
    indent = len(first) - len(first.lstrip())
    dash = first[:indent] + "-"
    start, row = number, [first[:indent] + " " + first[indent + 1 :]]
    for at, line in enumerate(lines, number + 1):
        if line.startswith(dash) and line[indent + 1 : indent + 2] in (" ", "\n", ""):
            yield Chunk("".join(row), start)
            start, row = at, []
            line = line[:indent] + " " + line[indent + 1 :]
        elif line.startswith("---"):
            continue
        row.append(line)
    yield Chunk("".join(row), start)


def _json_lines(lines: IO[str], first: str, number: int) -> Iterator[tuple[int, str]]:
    yield number, first
    yield from ((at, line) for at, line in enumerate(lines, number + 1) if line.strip())


def _json_array(path: Path, lines: IO[str], first: str, number: int, problems: Problems) -> Iterator[Chunk]:
    """Items of an array, each decoded as soon as its last line is read."""
    decoder = json.JSONDecoder()
    text, start = first.lstrip().removeprefix("["), number
    while True:
        stripped = text.lstrip(" \t\r\n,")
        start += text[: len(text) - len(stripped)].count("\n")
        text = stripped
        if text.startswith("]"):
            return
        try:
            end = decoder.raw_decode(text)[1] if text else 0
        except json.JSONDecodeError:
            end = 0
        if end:
            yield Chunk(text[:end], start)
            start += text[:end].count("\n")
            text = text[end:]
            continue
        more = lines.readline(1 << 16)
        if not more or len(text) > _LARGEST_ROW:
            hint = "JSON takes no comments, no trailing commas and double quotes only; YAML takes all three"
            problems.add([FieldProblem("not valid JSON: a row that never ends", file=str(path), line=start, hint=hint)])
            return
        text += more
