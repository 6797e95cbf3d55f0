"""Plans for clusters of several groups or sites: the search of `search.py` as candidates, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...cost_models import units
from ...cost_models.build_ledger import build_totals
from ...cost_models.layouts import Layout
from ...errors import InputError, MeshwrightError, NoFeasibleLayoutError, SearchInterrupted
from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.island_use import UNEVEN_SHARES, Crossing, IslandAssignment, IslandUse, Strategy
from ..document.placement import Placement
from ..evaluation.candidates import candidates
from ..evaluation.infeasible import no_legal_layout
from ..evaluation.network import as_placed
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..search.run import search_of
from ..space.tree import Count
from .islands import IslandPart, joined, parts_of
from .pipeline import CrossIslandPipeline
from .replicas import Replicas, equal_shares
from .search import MOST_ISLANDS, HeterogeneousSearch, IslandChoice


def applies(resolved: Resolved) -> bool:
    """Whether a request is planned island by island: a cluster that is not alike, to be trained on fast."""
    usual = (
        resolved.workload.objective != "memory" and not resolved.workload.techniques and resolved.cluster.links is None
    )
    return usual and 0 < len(resolved.cluster.islands) <= MOST_ISLANDS


def searched(
    resolved: Resolved, left_s: Callable[[], float], report: Callable[[Count, float], None]
) -> tuple[HeterogeneousSearch, tuple[str, ...]]:
    """The search of a request, and what it leaves out."""
    parts, unusable = parts_of(resolved)
    return HeterogeneousSearch(
        resolved, parts, left_s, report, runnable_only=resolved.target.name != "any"
    ).run(), unusable


def listed(resolved: Resolved, mixed: HeterogeneousSearch) -> tuple[Candidate, ...]:
    """As many candidates as were asked for, fastest first."""
    best = mixed.ranked[: resolved.request.top]
    return tuple(
        candidate_of(resolved, choice).model_copy(update={"choice": row}) for row, choice in enumerate(best, 1)
    )


def candidate_of(resolved: Resolved, choice: IslandChoice) -> Candidate:
    """A priced choice with its placement and how it uses the islands."""
    one = choice.one
    job = joined(resolved, choice.parts)
    candidate = candidates(job, [one])[0]
    update: dict[str, Any] = {"spread": _spread(resolved, choice), "placement": _placement(resolved, choice)}
    if isinstance(one, Replicas) and one.is_uneven:
        update["targets"] = {name: reason or UNEVEN_SHARES for name, reason in candidate.targets.items()}
    return candidate.model_copy(update=update)


def staged_as(resolved: Resolved, candidate: Candidate) -> Staged:
    """A candidate of a plan, priced anew as the plan priced it."""
    spread = candidate.spread
    if spread is None:
        there = as_placed(resolved, candidate)
        return Staged.of(there, candidate.to_layout(), candidate.partition, simulate=True)
    by_number = {part.number: part for part in parts_of(resolved)[0]}
    if any(each.island not in by_number for each in spread.islands):
        raise InputError("the plan uses groups of nodes that the cluster no longer has", hint="plan again")
    parts, layout = [by_number[each.island] for each in spread.islands], candidate.to_layout()
    if spread.manner == "across":
        return CrossIslandPipeline.over(resolved, parts, layout, candidate.partition)
    if spread.manner == "together":
        return Staged.of(parts[0].alone, layout, candidate.partition, simulate=True)
    shares = [each.micro_batches for each in spread.islands]
    one = Replicas.of_shares(resolved, parts, layout, shares)
    if one is None:
        raise InputError(f"{candidate.layout_id} is no longer legal with its shares", hint="plan again")
    return one


def ways(resolved: Resolved, mixed: HeterogeneousSearch, even: Strategy | None) -> tuple[Strategy, ...]:
    """The best of every way and set of islands, fastest first; `even` is all GPUs alike, under the same numbers."""
    first: dict[tuple[str, tuple[int, ...]], Strategy] = {}
    for choice in mixed.ranked:
        manner = choice.way if len(choice.parts) > 1 else "together"
        key = (manner, tuple(sorted(part.number for part in choice.parts)))
        names = tuple(part.name for part in choice.parts)
        way = Strategy(manner=manner, islands=names, layout_id=choice.one.id, step_s=rounded(choice.one.step_s))  # type: ignore[arg-type]
        first.setdefault(key, way)
    return tuple(sorted([*first.values(), *([even] if even else [])], key=lambda way: way.step_s))


def even_way(resolved: Resolved, mixed: HeterogeneousSearch, late: Callable[[], bool]) -> Strategy | None:
    """The best even layout for the weakest of all GPUs, and what it takes on the cluster as it is; None where there is
    none, its groups of ranks straddle islands, or vendors differ. Ctrl-C here stops `mixed` too; a time limit leaves
    its result as proven as it was."""
    parts, unusable = parts_of(resolved)
    one_job = not unusable and len({part.alone.cluster.gpu.vendor for part in parts}) == 1
    outcome = None if mixed.stopped or not one_job else search_of(resolved, resolved.space, should_stop=late).run()
    if outcome and outcome.stopped == "interrupted":
        mixed.stopped = outcome.stopped
    elif outcome and outcome.stopped:
        mixed.notes.append(f"{outcome.stopped} before all GPUs as if alike were compared")
        mixed.cut_short = (outcome.stopped,)
    if outcome is None or outcome.stopped or not outcome.top.rows:
        return None
    layout = outcome.top.rows[0][2]
    per_stage, per_replica = layout.num_gpus // layout.pp, layout.num_gpus // layout.dp
    one: Staged | None = None
    if layout.pp > 1 and all(part.num_gpus % per_stage == 0 for part in parts):
        one = CrossIslandPipeline.over(resolved, parts, layout)
    elif all(part.num_gpus % per_replica == 0 for part in parts):
        one = equal_shares(resolved, parts, layout)
    if one is None:
        return None
    return Strategy(manner="even", islands=tuple(part.name for part in parts), layout_id=str(layout),
               step_s=rounded(one.step_s))  # fmt: skip


def nothing_fits(resolved: Resolved, mixed: HeterogeneousSearch) -> MeshwrightError:
    """No way to use the islands fits: what each has, and what the states of the model need together."""
    if mixed.stopped:
        return SearchInterrupted(f"stopped ({mixed.stopped}) before any layout was found")
    if mixed.count.total == sum(mixed.count.ruled_out.values()):
        return no_legal_layout(resolved, mixed.count)
    problem = resolved.problem
    states, totals = problem.state_bytes, build_totals(problem)
    each_kind = [kind.sharded + kind.replicated + kind.experts for kind in problem.parameters]
    parameters = float(totals @ np.array(each_kind))
    each = states.weight + states.gradient + states.optimizer
    lines = [f"    {part.name}: {part.num_gpus} x {units.gib(part.alone.memory_bytes)} GiB "
             f"= {units.gib(part.num_gpus * part.alone.memory_bytes)} GiB" for part in mixed.parts]  # fmt: skip
    together = "\n".join(lines)
    return NoFeasibleLayoutError(
        f"no split of {resolved.model.name} over the groups of nodes fits\n\n{together}\n  its weights, gradients and "
        f"optimizer states are {parameters / 1e9:.4g} billion x {each:g} B = {units.gib(parameters * each)} GiB, and "
        "activations come on top",
        hint="more GPUs, GPUs with more memory, a shorter --seq-len, 8-bit optimizer states or --lora",
        details={"state_bytes": parameters * each,
                 "memory_bytes": {part.name: part.num_gpus * part.alone.memory_bytes for part in mixed.parts}},
    )  # fmt: skip


def _spread(resolved: Resolved, choice: IslandChoice) -> IslandAssignment:
    one, parts = choice.one, choice.parts
    used = {part.number for part in parts}
    unused = tuple(island.name for number, island in enumerate(resolved.cluster.islands) if number not in used)
    even_s, even_fits = _even(resolved, one)
    return IslandAssignment.model_validate(rounded({
        "manner": choice.way, "islands": [_use(resolved, one, i, part).model_dump() for i, part in enumerate(parts)],
        "crossings": [each.model_dump() for each in _crossings(one)], "unused": unused, "even_step_s": even_s,
        "even_fits": even_fits,
    }))  # fmt: skip


def _even(resolved: Resolved, one: Staged) -> tuple[float | None, bool]:
    """Seconds of the same layout in equal parts, and whether that fits; None where it is in equal parts."""
    if isinstance(one, CrossIslandPipeline) and one.custom_partition is not None:
        even = one.split(None)
        return even.step_s, even.fits
    if isinstance(one, Replicas) and one.is_uneven:
        same = equal_shares(resolved, one.parts, one.layout)
        return (same.step_s, same.fits) if same else (None, True)
    return None, True


def _use(resolved: Resolved, one: Staged, index: int, part: IslandPart) -> IslandUse:
    """What island `index` of a choice does."""
    island = resolved.cluster.islands[part.number]
    single, devices = one, list(range(one.layout.pp))
    replicas, micro_batches = one.layout.dp, one.num_micro_batches
    if isinstance(one, CrossIslandPipeline):
        single, replicas = one.singles[index], 0
        devices = [device for device, where in enumerate(one.on) if where == index]
    elif isinstance(one, Replicas):
        single, replicas, micro_batches = one.singles[index], one.dp[index], one.shares[index]
    costs, sizes = single.costs, one.partition.sizes
    chunk_s = np.array(costs.forward_s) + np.array(costs.input_s) + np.array(costs.weight_s)
    busy = np.bincount(one.devices, weights=chunk_s)
    return IslandUse(
        island=part.number, group=island.group, name=part.name, gpu=part.alone.cluster.gpu.name,
        num_gpus=part.num_gpus, nodes=(island.first_node, island.first_node + island.num_nodes - 1),
        stages=(devices[0], devices[-1]), replicas=replicas, micro_batches=micro_batches,
        layers=sum(size for size, device in zip(sizes, one.devices, strict=True) if device in devices),
        layer_s=single.mean_layer_s, busy_s=float(busy[devices].max()), device_bytes=single.device_bytes,
        memory_bytes=part.alone.memory_bytes,
    )  # fmt: skip


def _crossings(one: Staged) -> list[Crossing]:
    if isinstance(one, CrossIslandPipeline):
        return [Crossing(ends=ends, what="messages", step_bytes=size, seconds=seconds, bw_bytes_per_s=bw)
                for ends, size, seconds, bw in one.crossings]  # fmt: skip
    if isinstance(one, Replicas):
        return [Crossing(ends=(0, 1), what="gradients", step_bytes=one.gradient_bytes, seconds=one.terms["dp"],
                         bw_bytes_per_s=one.crossing_bw_bytes_per_s)]  # fmt: skip
    return []


def _placement(resolved: Resolved, choice: IslandChoice) -> Placement:
    """Hosts of the islands in use, in the order of the cluster, and which ranks their GPUs are."""
    one, parts = choice.one, choice.parts
    cluster, layout = resolved.cluster, one.layout
    islands = [cluster.islands[part.number] for part in parts]
    names = cluster.hosts or tuple(f"node-{node}" for node in range(cluster.num_nodes))
    ranks = _ranks(one, parts, layout)
    by_node = sorted(zip(islands, ranks, strict=True), key=lambda pair: pair[0].first_node)
    logical = np.concatenate([mine for _, mine in by_node])
    hosts = tuple(names[node] for island, _ in by_node
                  for node in range(island.first_node, island.first_node + island.num_nodes))  # fmt: skip
    if (np.diff(logical) == 1).all() and len(hosts) == cluster.num_nodes:
        return Placement(hosts=hosts)
    return Placement(hosts=hosts, logical_of_rank=tuple(logical.tolist()))


def _ranks(one: Staged, parts: Sequence[IslandPart], layout: Layout) -> list[np.ndarray]:
    """Logical ranks of the GPUs of each island: runs of them for stages; for replicas their part of every stage."""
    counts = [part.num_gpus for part in parts]
    if not isinstance(one, Replicas):
        return np.split(np.arange(layout.num_gpus), np.cumsum(counts)[:-1].tolist())
    stages = np.arange(layout.num_gpus).reshape(layout.pp, layout.dp, -1)
    return [block.ravel() for block in np.split(stages, np.cumsum(one.dp)[:-1].tolist(), axis=1)]
