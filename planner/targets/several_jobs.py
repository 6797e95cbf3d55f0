"""A script that starts several trainings: `job=N` of --arg chooses one, and a problem names them without it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import FieldProblem

# Word of --arg that chooses a job; the most jobs, and options of one, that a problem shows.
_CHOICE = re.compile(r"job=(\d+)")
_MOST_JOBS, _MOST_OPTIONS = 8, 3


def chosen(lines: Sequence[int], options: Sequence[Mapping[str, Any]],
           given: Sequence[str]) -> tuple[int, FieldProblem | None]:  # fmt: skip
    """(place of the job, None), or (0, the problem without its file) where --arg states no number of a job.

    lines, options: of each job; they are unlike. given: the words of --arg.
    """
    numbers = [int(found[1]) for word in given if (found := _CHOICE.fullmatch(word))]
    if numbers and 1 <= numbers[-1] <= len(options):
        return numbers[-1] - 1, None
    stated = [_dotted(own) for own in options]
    jobs = [f"{number} (line {line}{_unlike(own, stated[0])})"
            for number, (own, line) in enumerate(zip(stated, lines, strict=True), 1)]  # fmt: skip
    jobs[_MOST_JOBS:] = [f"{len(jobs) - _MOST_JOBS} more"] if len(jobs) > _MOST_JOBS else []
    text = f"starts {len(options)} jobs with different options or ranks: {'; '.join(jobs)}"
    hint = "give its number by --arg job=N, or the variable that chooses one by --arg NAME=VALUE"
    return 0, FieldProblem(text, line=lines[1], hint=hint)


def _dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of blocks by their dotted names."""
    out: dict[str, Any] = {}
    for name, value in options.items():
        inner = _dotted(value) if isinstance(value, Mapping) else {}
        out |= {f"{name}.{key}": each for key, each in inner.items()} or {name: value}
    return out


def _unlike(own: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """The first options of a job that another one has with another value or not at all."""
    out = [f"{name} {own[name]}".removesuffix(" True") if name in own else f"no {name}"
           for name in (*own, *(name for name in first if name not in own)) if own.get(name) != first.get(name)]
    return "".join(f", {text}" for text in out[:_MOST_OPTIONS])
