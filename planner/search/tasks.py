"""One search on one number of GPUs, as a task that any process can answer (executors.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from ...cost_models.layouts import Layouts
from ...errors import InputError
from ..request.load import request_from_dict, request_to_dict
from ..request.resolve import Resolved, resolve
from ..space.tree import Count
from .executors import Executor, Here
from .pareto import FrontierSearch
from .pricing import price_layouts
from .run import search_of

Aim = Literal["step", "memory", "frontier"]
Progress = Callable[[float, float, str], None]
ROUND = 16  # searches with the same starting limits; fixed, so that answers do not depend on the number of processes


@dataclass(frozen=True)
class Task:
    """One search, as plain data that any process can resolve and run."""

    request: dict[str, Any]  # in its canonical form
    aim: Aim
    limit: float = np.inf  # upper limit of seconds (of bytes, if `memory` is the aim)
    rivals: tuple[tuple[float, float], ...] = ()  # (seconds, bytes): see `pareto.Frontier`
    target: str | None = None  # target of the rules and software; None: that of the request
    tally: bool = True  # whether the answer has the exclusions of each rule
    ends_s: float = np.inf  # end of the time limit, in seconds of `time.time`, which processes share

    @classmethod
    def of(cls, resolved: Resolved, aim: Aim, **more: Any) -> Task:
        return cls(request_to_dict(resolved.request), aim, **more)


@dataclass(frozen=True)
class Answer:
    """The result of a task."""

    rows: tuple[tuple[float, float, str], ...]  # (seconds, bytes, layout id): the single best, or the frontier
    count: Count  # of the search
    stopped: str | None  # cause of a stopped search
    lower_bound: float = 0.0  # of a frontier: seconds that no layout beats; 0: nothing is proven

    @property
    def legal(self) -> int:
        """Layouts that no rule excludes."""
        return self.count.total - sum(self.count.ruled_out.values())


def answer(task: Task, progress: Callable[[Count, float], None] | None = None) -> Answer:
    """Runs the search of `task`. Ctrl-C returns the results so far."""
    resolved = resolve(request_from_dict(task.request))
    if task.target is not None:
        resolved = resolved.for_target(task.target)
    watch = {"progress": progress, "should_stop": lambda: time.time() >= task.ends_s}
    if task.aim == "frontier":
        return trace(resolved, rivals=task.rivals, **watch)
    outcome = search_of(resolved, resolved.space, objective=task.aim, incumbent=task.limit, tally=task.tally,
                        **watch).run()  # fmt: skip
    rows = []
    for _, name, layout in outcome.top.rows:
        _, estimate = price_layouts(resolved.problem, resolved.rates, Layouts.of([layout]))
        rows.append((float(f"{estimate.step_s[0]:.9g}"), float(f"{estimate.device_bytes[0]:.9g}"), name))
    return Answer(tuple(rows), outcome.count, outcome.stopped)


def trace(resolved: Resolved, **options: Any) -> Answer:
    """The frontier of time and memory. options: those of `FrontierSearch`."""
    traced = FrontierSearch(resolved.space, resolved.rates, memory_bytes=resolved.budget_bytes,
                            host_bytes=resolved.host_bytes, **options).trace()  # fmt: skip
    points = [(seconds, num_bytes, name) for seconds, num_bytes, name, _ in traced.frontier.points]
    return Answer(tuple(points), traced.count, traced.stopped, traced.lower_bound)


Within = Callable[[Count, float], None]


def reporting(executor: Executor, progress: Within) -> Callable[[Task], Answer]:
    """`answer`, with progress if it runs in this process."""
    return partial(answer, progress=progress) if isinstance(executor, Here) else answer


def in_order(executor: Executor, tasks: Sequence[Task], progress: Within) -> list[Answer]:
    """The answers in the order of the tasks. After a stopped one, all later answers have its cause in `stopped`."""
    answers: dict[int, Answer] = {}
    cause = "interrupted"
    with suppress(KeyboardInterrupt):
        for index, result in executor.run(reporting(executor, progress), tasks):
            answers[index] = result
            if result.stopped is not None:
                cause = result.stopped
                break
    return [answers.get(index, Answer((), Count(), cause)) for index in range(len(tasks))]


def check_time_limit(seconds: float | None) -> None:
    """Raises InputError for a time limit of zero or less."""
    if seconds is not None and not seconds > 0:
        raise InputError(f"a time limit of {seconds:g} s leaves no time", hint="write `--time-limit 30s`")


@dataclass
class Rounds:
    """Searches on many numbers of GPUs, ROUND at a time."""

    executor: Executor
    total: int  # searches
    progress: Progress | None = None
    time_limit_s: float | None = None
    stopped: str | None = None  # cause of a stop, if any
    done: int = 0  # finished searches
    ends_s: float = field(init=False)  # see Task

    def __post_init__(self) -> None:
        check_time_limit(self.time_limit_s)
        self.ends_s = np.inf if self.time_limit_s is None else time.time() + self.time_limit_s

    def run(self, variants: Sequence[Resolved], task: Callable[[Resolved], Task]) -> Iterator[tuple[Resolved, Answer]]:
        """(request, answer) in the order of `variants`. `task` is called at the start of a round."""
        for start in range(0, len(variants), ROUND):
            part = variants[start : start + ROUND]
            for index, answer in sorted(self._round([task(resolved) for resolved in part]).items()):
                yield part[index], answer
            if self.stopped is None and time.time() >= self.ends_s:
                self.stopped = "time limit"
            if self.stopped is not None:
                return

    def _round(self, tasks: list[Task]) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        try:
            for index, result in self.executor.run(reporting(self.executor, self._within), tasks):
                answers[index] = result
                self.stopped = self.stopped or result.stopped
                self.done += 1
                if self.progress is not None:
                    self.progress(float(self.done), float(self.total), "")
                if self.stopped is not None:
                    break
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        return answers

    def _within(self, count: Count, best: float) -> None:
        """Reports the progress of a search as a part of all searches."""
        if self.progress is not None:
            self.progress(self.done + count.accounted / max(count.total, 1), float(self.total), "")
