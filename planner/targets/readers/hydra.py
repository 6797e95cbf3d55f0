"""Overrides of Hydra on the command line of a script, as the document that they make.

Source: Hydra 1.3, the grammar of overrides: `a.b=value`, `+a.b=value` and `++a.b=value` set, `~a.b` deletes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import FieldProblem, InputError
from ....profiles.io.document import Document, FieldPath
from ....profiles.io.reader import read_document
from ..scripts import slurm_variables
from ..shell.followed import Command
from ..shell.script import follow
from ..shell.values import marks, shown

_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
_CONFIG_NAME = "--config-name"


def from_script(module: str) -> Callable[[str, str, Sequence[str]], Document]:
    """A reader of documents that takes a shell script by the command that starts `module`; other texts as they are."""

    def read(path: str, text: str, given: Sequence[str]) -> Document:
        if not _starts(module, text):
            return read_document(path, text)
        variables = dict(word.partition("=")[::2] for word in given if "." not in word.partition("=")[0])
        followed = follow(text, slurm_variables(text) | variables, [])
        jobs = [command for command in followed.commands if any(module in word for word in command.words)]
        if not jobs:
            raise InputError.of([FieldProblem(f"starts no {module}", file=path)])
        documents = [_document(path, job) for job in jobs]
        other = next((job for job, made in zip(jobs, documents, strict=True) if made.data != documents[0].data), None)
        if other is not None:
            text = f"starts {len(jobs)} jobs with different options (line {jobs[0].line}, line {other.line})"
            raise InputError.of([FieldProblem(text, file=path, line=other.line, hint="leave one of them in the file")])
        return documents[0]

    return read


def _starts(module: str, text: str) -> bool:
    """Whether a text is a script with a command that starts a module: on several lines, or with overrides on one."""
    one_line = rf"(?m)^\s*[^#\s:][^:]*{re.escape(module)}\S*\s+\S+="
    return module in text and re.search(rf"(?m)\\\s*$|{one_line[4:]}", text) is not None


def _document(path: str, job: Command) -> Document:
    """The overrides of a command. A value that only a run knows stands as a reference, which nothing resolves."""
    data: dict[str, Any] = {}
    lines: dict[FieldPath, int] = {}
    words = list(zip(job.words, job.lines or (job.line,) * len(job.words), strict=True))
    for index, (word, line) in enumerate(words):
        if word.startswith(_CONFIG_NAME):
            named = word.partition("=")[2] or (words[index + 1][0] if index + 1 < len(words) else "")
            data["config_name"], lines["config_name",] = shown(named), line
        elif found := _OVERRIDE.fullmatch(word):
            keys = tuple(found[1].split("."))
            holder = data
            for depth, key in enumerate(keys[:-1], 1):
                lines.setdefault(keys[:depth], line)
                inner = holder.setdefault(key, {})
                holder = inner if isinstance(inner, dict) else {}
            holder[keys[-1]], lines[keys] = _value(found[2]), line
    return Document(path, data, line_of=lambda at: lines.get(at, job.line))


def _value(text: str) -> Any:
    """The value of an override. Of a path the last part is enough."""
    unknown = marks(text if "/" not in text else text.rpartition("/")[2])
    if unknown:
        name = re.sub(r"[${}]", "", unknown[0])
        return f"${{{name}}}"
    return shown(text) if marks(text) else read_document("--arg", text or "''").data
