"""A sweep in parts: runs of neighbouring points go to the processes or the cluster that were asked for, and what is
done is kept in a file where one is named. The results are those of one process, since every search is exact and a seed
only makes it shorter."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any

from ...errors import WorkerLostError
from ..request.load import request_from_dict, request_to_dict
from ..request.resolve import resolve
from ..search.executors import opened
from . import points
from .base import Point, Question
from .partial import Partial
from .paths import Value, Values
from .pricing import HeldLayout

_RUNS_PER_JOB = 4  # so that a slow corner of the map does not leave the others idle
_LONGEST = 16  # points of a run: what an interruption loses at most


@dataclass(frozen=True)
class _Run:
    """The input of a process that prices some points; it resolves the request itself, as rules do not travel."""

    request: dict[str, Any]
    layout: HeldLayout
    sets: Values
    replan: bool
    grid: list[dict[str, Value]]


def priced(question: Question, grid: list[dict[str, Value]]) -> list[Point]:
    """`points.priced`, as `question` says where. Raises InputError for a file of another sweep."""
    partial = Partial.opened(question.resume, question, grid) if question.resume is not None else Partial()
    done_points = dict(partial.points)
    size = min(max(1, -(-len(grid) // (question.jobs * _RUNS_PER_JOB))), _LONGEST)
    parts = _neighbours([index for index in range(len(grid)) if index not in done_points], size)
    request, layout = request_to_dict(question.plain.request), question.layout
    runs = [_Run(request, layout, dict(question.sets), question.replan, [grid[index] for index in part])
            for part in parts]  # fmt: skip
    try:
        with opened(question.jobs, question.executor) as pool:
            for which, results in pool.run(_price, runs):
                done = dict(zip(parts[which], results, strict=True))
                partial.add(done)
                done_points.update(done)
                if question.progress is not None:
                    question.progress(len(done_points), len(grid), "")
    except WorkerLostError as error:
        raise _lost(error, runs[error.index].grid, len(done_points), len(grid), question.resume) from None
    return [done_points[index] for index in range(len(grid))]


def _lost(
    error: WorkerLostError, grid: list[dict[str, Value]], done: int, total: int, path: Path | None
) -> WorkerLostError:
    """The same, with the points that were searched and what is left of the rest."""
    ends = [", ".join(f"{path}={value}" for path, value in point.items()) for point in (grid[0], grid[-1])]
    error.message = f"a worker of {error.where} died at {' to '.join(dict.fromkeys(ends))}: {error.reason}"
    error.args = (error.message,)
    if path is None:
        error.hint = f"{done:,} of {total:,} points are lost with it: `--resume FILE` keeps them"
    else:
        error.hint = f"the same command goes on from the {done:,} of {total:,} points in {path}"
    return error


def _neighbours(indices: list[int], size: int) -> list[list[int]]:
    """Runs of at most `size` consecutive numbers."""
    counter = count()
    gaps = [[*group] for _, group in groupby(indices, key=lambda index: index - next(counter))]
    return [run[start : start + size] for run in gaps for start in range(0, len(run), size)]


def _price(run: _Run) -> list[Point]:
    base = resolve(request_from_dict(run.request))
    question = Question(base, run.layout, run.sets, replan=run.replan)
    return points.priced(question, run.grid)
