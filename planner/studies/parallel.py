"""A sweep on several cores: each process takes a run of neighbouring points. The results are those of one process,
since every search is exact and a seed only makes it shorter."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from ..request import request_from_dict, request_to_dict
from ..resolve import resolve
from .base import Point, Question
from .changes import Value, Values
from .pricing import Held

_RUNS_PER_JOB = 4  # so that a slow corner of the map does not leave the others idle


@dataclass(frozen=True)
class _Run:
    """What one process needs to price some points; it resolves the request itself, as rules do not travel."""

    request: dict[str, Any]
    layout: Held
    sets: Values
    replan: bool
    grid: list[dict[str, Value]]


def priced(question: Question, grid: list[dict[str, Value]]) -> list[Point]:
    """`sweep.priced`, in `question.jobs` processes."""
    size = max(1, -(-len(grid) // (question.jobs * _RUNS_PER_JOB)))
    starts = range(0, len(grid), size)
    request, layout = request_to_dict(question.plain.request), question.layout
    runs = [_Run(request, layout, dict(question.sets), question.replan, grid[start : start + size]) for start in starts]
    found: dict[int, list[Point]] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(question.jobs, len(runs)), mp_context=context, initializer=_quiet) as pool:
        futures = {pool.submit(_price, run): index for index, run in enumerate(runs)}
        try:
            for done in as_completed(futures):
                found[futures[done]] = done.result()
                if question.progress is not None:
                    question.progress(sum(map(len, found.values())), len(grid), "")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [point for index in range(len(runs)) for point in found[index]]


def _quiet() -> None:
    """One thread per process: the cores are taken by the others."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _price(run: _Run) -> list[Point]:
    from .sweep import priced as one_by_one

    base = resolve(request_from_dict(run.request))
    question = Question(base, run.layout, run.sets, replan=run.replan)
    return one_by_one(question, run.grid)
