"""Numbers of GPUs: the best layout on each, or the cheapest number that meets a deadline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from ...cost_models.units import DAY_S
from ...errors import InputError, MeshwrightError, NoFeasibleLayoutError, SearchInterrupted
from ..evaluation.intervals import indifference
from ..request.gpu_counts import Counts, GpuRange, counts
from ..request.load import Request
from ..request.resolve import Resolved
from ..search.executors import opened
from ..search.tasks import Answer, Progress, Rounds, Task
from .tradeoffs import GpuCountsResult, Part, TradeoffChoice, counts_to_dict, nothing

Status = Literal["searched", "none legal", "nothing fits", "too slow", "dearer", "cut short", "not reached"]
_ROUNDING = 1e-8  # days and seconds are told with nine digits
_FURTHER = (2, 4, 8, 16, 32)  # times the largest number that was asked for, when that misses the deadline


class Tried(Part):
    """A number of GPUs and what its search came to.

    `cut short`: the best so far, by Ctrl-C or the time limit. Under a deadline `too slow`: a bound, or the search,
    proves that no layout meets it; `dearer`: that none costs less than a cheaper number found before.
    """

    num_gpus: int
    status: Status
    best: TradeoffChoice | None = None  # the best layout on it
    efficiency: float | None = None  # tokens per second and GPU, over those of the best number


class Curve(GpuCountsResult):
    """The best layout on every number of GPUs."""

    kind: Literal["gpu-curve"] = "gpu-curve"
    deadline_s: float | None  # of the whole run
    total_tokens: float | None  # of the whole run
    points: tuple[Tried, ...]  # rising numbers of GPUs
    chosen: int | None  # the cheapest number that meets the deadline; None without one
    indifference: float = 0.0  # shares of time within which the model tells two sizes apart no better than by chance


def gpu_curve(
    request: Request, gpus: GpuRange, deadline_s: float | None = None, *, jobs: int = 1, executor: str | None = None,
    progress: Progress | None = None, time_limit_s: float | None = None,
) -> Curve:  # fmt: skip
    """Every number of GPUs in `gpus` with its best layout; under a deadline (seconds of the whole run) the cheapest
    that meets it, and the next smaller one.

    Raises InputError for a deadline without total tokens, and NoFeasibleLayoutError where nothing runs or no number
    meets the deadline, with the least days and what it would take.
    """
    tried = counts(request, gpus)
    sizes = [tried.on(number) for number in tried.numbers]
    if sizes[0].workload.objective == "memory":
        raise InputError("objective memory: a range of GPUs is about time and cost", hint="`--pareto memory,gpus`")
    if deadline_s is not None and sizes[0].workload.total_tokens is None:
        raise InputError("--deadline needs the tokens of the whole run", hint="add `--total-tokens 15T`")
    if deadline_s is not None and not deadline_s > 0:
        raise InputError("--deadline leaves no time", hint="write `--deadline 30d`")
    with opened(jobs, executor) as pool:
        rounds = Rounds(pool, len(sizes), progress, time_limit_s)
        points = _every(sizes, rounds) if deadline_s is None else _cheapest(tried, sizes, rounds, deadline_s)
    runs = [point for point in points if point.best]
    if not runs:
        raise nothing(sizes, rounds.stopped)
    met = [point for point in runs if deadline_s is None or point.status != "too slow"]
    chosen = min(met, key=_price).num_gpus if deadline_s is not None else None
    best = max(_rate(point.best) for point in runs if point.best)
    points = [point.model_copy(update={"efficiency": float(f"{_rate(point.best) / best:.9g}")}) if point.best else point
              for point in points]  # fmt: skip
    return Curve(**counts_to_dict(request, sizes, tried.per_node), deadline_s=deadline_s, points=tuple(points),
                 chosen=chosen, indifference=float(f"{indifference():.9g}"), stopped=rounds.stopped,
                 total_tokens=sizes[0].workload.total_tokens)  # fmt: skip


def _every(sizes: Sequence[Resolved], rounds: Rounds) -> list[Tried]:
    """The best layout on every number of GPUs."""
    answers = rounds.run(sizes, lambda resolved: Task.of(resolved, "step", ends_s=rounds.ends_s))
    by_number = {resolved.cluster.num_gpus: _tried(resolved, answer, math.inf) for resolved, answer in answers}
    return _in_order(sizes, by_number)


def _cheapest(tried: Counts, sizes: Sequence[Resolved], rounds: Rounds, deadline_s: float) -> list[Tried]:
    """Rising numbers of GPUs, each bound to the deadline and to be cheaper than those before; and how long the largest
    number takes that is too small for the deadline."""
    by_number: dict[int, Tried] = {}
    slowest_s = _step_limit_s(sizes[0], deadline_s)

    def limit_s(resolved: Resolved) -> float:
        cheapest = min((_price(point)[0] for point in by_number.values()), default=math.inf)
        return min(slowest_s, cheapest / _price_per_s(resolved))

    limits: dict[int, float] = {}

    def task(resolved: Resolved) -> Task:
        limit = limits[resolved.cluster.num_gpus] = limit_s(resolved)
        return Task.of(resolved, "step", limit=limit, ends_s=rounds.ends_s)

    for resolved, answer in rounds.run(sizes, task):
        number = resolved.cluster.num_gpus
        otherwise: Status = "too slow" if limits[number] == slowest_s else "dearer"
        by_number[number] = _tried(resolved, answer, limits[number], otherwise)
    met = [point for point in by_number.values() if point.best]
    if not met and rounds.stopped is None:
        raise _missed(tried, sizes, rounds, deadline_s)
    if met and rounds.stopped is None:
        fewest = min(point.num_gpus for point in met)
        slow = [resolved for resolved in sizes if resolved.cluster.num_gpus < fewest
                and by_number[resolved.cluster.num_gpus].status == "too slow"]  # fmt: skip
        for resolved, answer in rounds.run(slow[-1:], lambda resolved: Task.of(resolved, "step", ends_s=rounds.ends_s)):
            if answer.rows and answer.stopped is None:
                best = TradeoffChoice.of(resolved, answer.rows[0])
                by_number[best.num_gpus] = Tried(num_gpus=best.num_gpus, status="too slow", best=best)
    return _in_order(sizes, by_number)


def _missed(
    tried: Counts, sizes: Sequence[Resolved], rounds: Rounds, deadline_s: float
) -> MeshwrightError:
    """No number of GPUs meets the deadline: the least days, and a number beyond the range that would do."""
    best: list[TradeoffChoice] = []

    def faster(resolved: Resolved) -> Task:
        limit = min((choice.step_s for choice in best), default=math.inf)
        return Task.of(resolved, "step", limit=limit, ends_s=rounds.ends_s)

    for resolved, answer in rounds.run(sizes, faster):
        best += [TradeoffChoice.of(resolved, row) for row in answer.rows[:1]]
    if not best:
        return nothing(sizes, rounds.stopped)
    if rounds.stopped is not None:
        return SearchInterrupted(f"stopped ({rounds.stopped}) before any number of GPUs met the deadline")
    least = min(best, key=lambda choice: (choice.step_s, choice.num_gpus))
    deadline, days = f"{deadline_s / DAY_S:.3g} days", f"{least.days:.3g} days"
    slowest_s = _step_limit_s(sizes[0], deadline_s)
    more = _enough(tried, rounds, slowest_s)
    tokens = f"{(sizes[0].workload.total_tokens or 0) / 1e9:,g} billion"
    hint = f"`--deadline {math.ceil(least.days or 0)}d`, fewer tokens, or a larger global batch (`--global-batch`)"
    if more is not None:
        hint = f"{more.num_gpus:,} GPUs take {more.days:.3g} days; or `--deadline {math.ceil(least.days or 0)}d`"
    return NoFeasibleLayoutError(
        f"no number of GPUs from {tried.numbers[0]:,} to {tried.numbers[-1]:,} trains on {tokens} tokens in {deadline}"
        "\n\n"
        f"  the least is {days}, on {least.num_gpus:,} GPUs: {least.layout_id}, {least.step_s:.4g} s per step; "
        f"the deadline needs {slowest_s:.4g} s", hint=hint,
        details={"least_days": least.days, "num_gpus": least.num_gpus, "layout_id": least.layout_id,
                 "enough_gpus": more.num_gpus if more else None},
    )  # fmt: skip


def _enough(tried: Counts, rounds: Rounds, slowest_s: float) -> TradeoffChoice | None:
    """The best layout on a number of GPUs beyond the range whose step takes `slowest_s` at most."""

    def within_deadline(resolved: Resolved) -> Task:
        return Task.of(resolved, "step", limit=slowest_s, ends_s=rounds.ends_s)

    for factor in _FURTHER:
        for resolved, answer in rounds.run([tried.on(tried.numbers[-1] * factor)], within_deadline):
            if answer.rows and answer.rows[0][0] <= slowest_s:
                return TradeoffChoice.of(resolved, answer.rows[0])
        if rounds.stopped:
            break
    return None


def _step_limit_s(resolved: Resolved, deadline_s: float) -> float:
    """Seconds that a step may take, up to the digits that an answer is rounded to."""
    steps = float(resolved.workload.total_tokens or math.nan) / resolved.workload.tokens_per_step
    return deadline_s * (1 + _ROUNDING) / steps


def _tried(resolved: Resolved, answer: Answer, limit_s: float, otherwise: Status = "nothing fits") -> Tried:
    """The status of a number of GPUs after a search for at most `limit_s`; `otherwise`: if nothing meets it."""
    number = resolved.cluster.num_gpus
    rows = [row for row in answer.rows if row[0] <= limit_s]
    if rows:
        status: Status = "searched" if answer.stopped is None else "cut short"
        return Tried(num_gpus=number, status=status, best=TradeoffChoice.of(resolved, rows[0]))
    if answer.stopped is not None:
        return Tried(num_gpus=number, status="not reached")
    if not answer.legal:
        return Tried(num_gpus=number, status="none legal")
    fits = answer.count.bounded + answer.count.priced > 0
    return Tried(num_gpus=number, status=otherwise if fits else "nothing fits")


def _in_order(sizes: Sequence[Resolved], by_number: Mapping[int, Tried]) -> list[Tried]:
    numbers = [resolved.cluster.num_gpus for resolved in sizes]
    return [by_number.get(number, Tried(num_gpus=number, status="not reached")) for number in numbers]


def _price(point: Tried) -> tuple[float, int]:
    """The cost of the run, or its GPU-hours where no price is known; then the fewest GPUs."""
    best = point.best
    if best is None or best.gpu_hours is None:
        return math.inf, point.num_gpus
    return best.cost_usd if best.cost_usd is not None else best.gpu_hours, point.num_gpus


def _price_per_s(resolved: Resolved) -> float:
    """The price that a second of a step adds to the run."""
    unit = Tried(num_gpus=1, status="searched", best=TradeoffChoice.of(resolved, (1.0, 1.0, "")))
    return _price(unit)[0]


def _rate(best: TradeoffChoice) -> float:
    """Tokens per second and GPU."""
    return best.tokens_per_s / best.num_gpus
