"""A plan over groups of nodes that differ: the share of each group, and its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.table import Table

    from ...planner.document.candidate import Candidate
    from ...planner.document.island_use import Crossing, IslandAssignment, Strategy
    from ...planner.document.plan import Plan
    from .parts import Part

_MOST_STRATEGIES = 6
_AS_FAST = 1.01  # layers of two groups that differ by less take equally long


def group_parts(plan: Plan, candidate: Candidate) -> list[Part]:
    """A row per group of nodes, sentences why, and the other ways to use the groups; nothing where all are alike."""
    assignment = candidate.spread
    if assignment is None:
        return []
    lines = [*_why(assignment, candidate), *crossing_lines(assignment), *_unused_lines(plan, assignment)]
    parts: list[Part] = [_groups_table(assignment), *(text.wrapped(line) for line in lines)]
    strategies = plan.ways or ()
    if len(strategies) > 1:
        parts += ["", "Ways to use the groups", _strategies_table(strategies)]
    return parts


def _groups_table(assignment: IslandAssignment) -> Table:
    """A row per group of nodes: its share, its times and its memory."""
    by_replicas = assignment.manner == "replicas"
    rows = []
    for use in assignment.islands:
        first, last = use.stages
        stages = text.ranges(list(range(first, last + 1)))
        share = (str(use.replicas), str(use.micro_batches)) if by_replicas else (stages, str(use.layers))
        rows.append((
            f"  {use.name}", f"{use.num_gpus} x {use.gpu}", *share, text.significant(1e3 * use.layer_s),
            text.significant(1e3 * use.busy_s), f"{text.gib(use.device_bytes)} of {text.gib(use.memory_bytes)}",
        ))  # fmt: skip
    shares = ("replicas", "micro-batches") if by_replicas else ("stages", "layers")
    names = ("  group", "GPUs", *shares, "ms/layer", "ms/stage", "GiB")
    return table(*names, rows=rows, right=names[2:])


def _why(assignment: IslandAssignment, candidate: Candidate) -> list[str]:
    """Reasons for the shares of layers or micro-batches, and the step with equal parts."""
    uses = assignment.islands
    if assignment.manner == "together" or len(uses) == 1:
        return [f"All of it runs on {uses[0].name}."]
    lines = [_shares_line(assignment)]
    if assignment.even_step_s:
        what = "stages" if assignment.manner == "across" else "shares"
        took = text.significant(assignment.even_step_s)
        more = text.more(assignment.even_step_s / candidate.step_s - 1)
        fits = "" if assignment.even_fits else ", and do not fit"
        lines.append(f"Even {what} of the same layout take {took} s ({more}){fits}.")
    return lines


def _shares_line(assignment: IslandAssignment) -> str:
    """Speed of the groups, and its consequence for their stages or replicas."""
    across = assignment.manner == "across"
    slow = max(assignment.islands, key=lambda use: use.layer_s)
    fast = min(assignment.islands, key=lambda use: use.layer_s)
    ratio = slow.layer_s / fast.layer_s
    if ratio <= _AS_FAST:
        if across:
            return "The groups are equally fast; the pipeline is cut at the border between them."
        return "The groups are equally fast, and so are their replicas."
    line = f"A layer takes {text.significant(ratio, 2)} times as long on {slow.name} as on {fast.name}, so "
    if across:
        return line + "its stages hold fewer: ms/stage is what a micro-batch keeps the slowest stage of a group busy."
    return line + "its replicas run fewer micro-batches: all end together. Gradients are weighted by tokens."


def _both_ways(crossings: Sequence[Crossing]) -> list[Crossing]:
    """A crossing for each pair of groups. Where a pipeline comes back, its gradients go with the messages there: both
    ways carry the sum of the two crossings, and the slower one counts."""
    pairs: dict[tuple[frozenset[int], str], Crossing] = {}
    for crossing in crossings:
        key = frozenset(crossing.ends), crossing.what
        known = pairs.get(key)
        pairs[key] = crossing if known is None else known.model_copy(update={
            "step_bytes": known.step_bytes + crossing.step_bytes, "seconds": max(known.seconds, crossing.seconds),
            "bw_bytes_per_s": min(known.bw_bytes_per_s, crossing.bw_bytes_per_s),
        })  # fmt: skip
    return list(pairs.values())


def crossing_lines(assignment: IslandAssignment) -> list[str]:
    """Traffic between the groups, and its cost."""
    names = [use.name for use in assignment.islands]
    lines = []
    for crossing in _both_ways(assignment.crossings):
        source, destination = (names[end] for end in crossing.ends)
        sent = f"{text.significant(crossing.step_bytes / 1e9)} GB a step"
        speed = text.quantity(crossing.bw_bytes_per_s, "B/s", bits=True)
        if crossing.what == "messages":
            lines.append(f"Between {source} and {destination} go only messages of the pipeline: {sent} each way, "
                         f"{text.duration(crossing.seconds)} a message at {speed} per GPU; all other groups of ranks "
                         "stay inside.")  # fmt: skip
        else:
            lines.append(f"Between {source} and {destination} go only sums of gradients: {sent} at {speed} per GPU.")
    return lines


def _unused_lines(plan: Plan, assignment: IslandAssignment) -> list[str]:
    """Groups that are left out, and the step with them."""
    unused = assignment.unused
    if not unused:
        return []
    names = text.listed(unused)
    with_them = [
        strategy for strategy in plan.ways or ()
        if set(unused) & set(strategy.islands) and len(strategy.islands) > len(assignment.islands)
        and strategy.manner != "even"
    ]  # fmt: skip
    if not with_them:
        return [f"{names} stays unused: no way to use it with the others fits or is faster by the bounds."]
    least_s = min(strategy.step_s for strategy in with_them)
    return [f"{names} stays unused: with it the step takes {text.significant(least_s)} s at best found."]


def _strategies_table(strategies: Sequence[Strategy]) -> Table:
    rows = []
    best = strategies[0]
    more = [strategy for strategy in strategies[_MOST_STRATEGIES:] if strategy.manner == "even"]
    for strategy in [*strategies[:_MOST_STRATEGIES], *more]:
        behind = "best" if strategy is best else text.more(strategy.step_s / best.step_s - 1)
        rows.append((f"  {_strategy(strategy)}", text.significant(strategy.step_s), behind, strategy.layout_id))
    return table("  way", "step s", " ", "layout", rows=rows, right=("step s",))


def _strategy(strategy: Strategy) -> str:
    names = strategy.islands
    if strategy.manner == "across" and len(names) > 1:
        return f"pipeline: {', then '.join(names)}"
    if strategy.manner == "replicas":
        return f"replicas: {' and '.join(names)}"
    return "even: all GPUs alike" if strategy.manner == "even" else f"{names[0]} alone"


def memory_limits(candidate: Candidate, uniform: float) -> list[float]:
    """Bytes that the GPUs of each stage may use: of the groups of nodes that hold it, the least. uniform: the limit
    where the nodes are alike."""
    if candidate.spread is None:
        return [uniform] * len(candidate.memory)
    uses = candidate.spread.islands
    return [
        min(use.memory_bytes for use in uses if use.stages[0] <= stage.stage <= use.stages[1])
        for stage in candidate.memory
    ]
