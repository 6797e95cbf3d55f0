"""JSON lines whose fields are lists of tokens. No torch here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..errors import FieldProblem, InputError

Line = Mapping[str, list[int]]  # field -> its tokens
Item = TypeVar("Item")


def read_lines(
    files: Sequence[Path], fields: Sequence[str], vocab: int, make: Callable[[Line], Item | FieldProblem]
) -> list[Item]:
    """An item of each line of several files, in their order. vocab: tokens that the model knows; make: an item out of
    the fields of a line, or the reason against it. Raises InputError for files without a line, and with all problems of
    all files."""
    problems, items = list[FieldProblem](), list[Item]()
    for path in files:
        for number, text in enumerate(_lines(path), 1):
            if text.strip():
                item = _item(text, fields, vocab, make)
                if isinstance(item, FieldProblem):
                    problems.append(item._replace(file=str(path), line=number))
                else:
                    items.append(item)
    if problems:
        raise InputError.of_some(problems)
    if not items:
        example = json.dumps({field: [5, 6] for field in fields})
        raise InputError(f"{', '.join(map(str, files))}: no pairs", hint=f"write lines such as {example}")
    return items


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}", hint="give JSON lines in UTF-8") from None


def _item(
    text: str, fields: Sequence[str], vocab: int, make: Callable[[Line], Item | FieldProblem]
) -> Item | FieldProblem:
    """The item of a line, or the first thing wrong in it."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        return FieldProblem(f"no JSON: {error}")
    for field in fields:
        if not isinstance(line, dict) or not line.get(field):
            form = ", ".join(f'"{name}": [tokens]' for name in fields)
            return FieldProblem(f"no tokens `{field}`", hint=f"{{{form}}} is a pair")
        if problem := _wrong_tokens(line[field], vocab):
            return problem._replace(field=field)
    return make({field: line[field] for field in fields})


def _wrong_tokens(tokens: Any, vocab: int) -> FieldProblem | None:
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        return FieldProblem("not a list of token numbers", hint="encode texts by the tokenizer of the model first")
    wrong = next((token for token in tokens if not 0 <= token < vocab), None)
    if wrong is None:
        return None
    return FieldProblem(f"token {wrong}, the model knows 0 to {vocab - 1}", hint="use the model's own tokenizer")
