"""Overrides of Hydra on the command line of a script, as the document that they make.

Source: Hydra 1.3, the grammar of overrides: `a.b=value`, `+a.b=value` and `++a.b=value` set, `~a.b` deletes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ....errors import FieldProblem, InputError
from ....profiles.io.document import Document, FieldPath, file_error
from ....profiles.io.reader import read_document
from ..shell.nearby import is_script
from ..shell.values import shown
from .commands import jobs_of, only, value_of

if TYPE_CHECKING:
    from ..shell.followed import Command

_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
# The option of Hydra for the config that overrides change; AReaL has `--config`.
_CONFIG_NAME = "--config-name"
CONFIG = "--config"


def from_script(module: str, root: str) -> Callable[[str, str, Sequence[str]], Document]:
    """A reader of documents that takes a shell script by the command that starts `module`, or another program with
    overrides of the block `root`; other texts as they are, or the block of one that holds `root`."""

    def is_job(words: Sequence[str]) -> bool:
        return any(module in word for word in words) or any(word.lstrip("+").startswith(f"{root}.") for word in words)

    def read(path: str, text: str, given: Sequence[str]) -> Document:
        if not is_script(path, text) and not _starts(module, text) and not _starts(f"{root}.", text):
            return _within(read_document(path, text), root)
        _, jobs = jobs_of(path, text, given, is_job, module)
        return only(path, jobs, [_document(path, job) for job in jobs], given)

    return read


def _within(document: Document, root: str) -> Document:
    """The block of a document that holds the block `root`, where it is the only one; others as they are."""
    data = document.data if isinstance(document.data, Mapping) else {}
    holders = [name for name, block in data.items() if isinstance(block, Mapping) and root in block]
    return document.part((holders[0],)) if len(holders) == 1 and root not in data else document


def from_config_script(path: str, text: str, given: Sequence[str]) -> Document:
    """A shell script by the command that gives a YAML to `--config`; another text as it is."""
    if not is_script(path, text):
        return read_document(path, text)

    def is_job(words: Sequence[str]) -> bool:
        return any(re.search(r"\.ya?ml$", shown(name)) for word, name in pairwise([*words, ""])
                   for name in (word.partition("=")[2] or name,) if word.partition("=")[0] == CONFIG)  # fmt: skip

    _, jobs = jobs_of(path, text, given, is_job, f"program with {CONFIG} FILE.yaml")
    return only(path, jobs, [_document(path, job, CONFIG) for job in jobs], given)


def _starts(module: str, text: str) -> bool:
    """Whether a text is a script with a command that starts a module: on several lines, or with overrides on one."""
    one_line = rf"(?m)^\s*[^#\s:][^:]*{re.escape(module)}\S*\s+\S+="
    return module in text and re.search(rf"(?m)\\\s*$|{one_line[4:]}", text) is not None


def overrides(path: str, words: Iterable[tuple[str, int]]) -> list[tuple[str, int, tuple[str, Any] | None]]:
    """(word, line, (option, value)) of each (word, line), with None for a word of another form.

    Raises InputError with the places of all values that cannot be read.
    """
    found, problems = [], list[FieldProblem]()
    for word, line in words:
        try:
            found.append((word, line, _override(path, line, word)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError.of(problems)
    return found


def _override(path: str, line: int, word: str) -> tuple[str, Any] | None:
    found = _OVERRIDE.fullmatch(word)
    if found is None:
        return None
    try:
        return found[1], value_of(found[2])
    except InputError:
        raise file_error(path, line, f"`{shown(found[2])}` cannot be read as a value",
                         "put text in quotes within quotes", path=tuple(found[1].split("."))) from None  # fmt: skip


def _document(path: str, job: Command, config: str = _CONFIG_NAME) -> Document:
    """The overrides of a command, and the name of the config that they change: under `config_name`, or the option
    itself where it is a file. A value that only a run knows stands as a reference, which nothing resolves.

    Raises InputError with all values that cannot be read.
    """
    key = "config_name" if config == _CONFIG_NAME else config
    data: dict[str, Any] = {}
    lines: dict[FieldPath, int] = {}
    words = zip(job.words, job.lines or (job.line,) * len(job.words), strict=True)
    for index, (word, line, found) in enumerate(overrides(path, words)):
        if word.partition("=")[0] == config:
            named = word.partition("=")[2] or "".join(job.words[index + 1 : index + 2])
            data[key], lines[key,] = shown(named), line
        elif found is not None:
            keys = tuple(found[0].split("."))
            holder = data
            for depth, block in enumerate(keys[:-1], 1):
                lines.setdefault(keys[:depth], line)
                inner = holder.setdefault(block, {})
                holder = inner if isinstance(inner, dict) else {}
            holder[keys[-1]], lines[keys] = found[1], line
    return Document(path, data, line_of=lambda at: lines.get(at, job.line))
