"""Plans for clusters of several groups or sites: choices of the search as candidates, or why nothing fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...cost_models import units
from ...cost_models.build_ledger import build_totals
from ...cost_models.quantities.whole_matrices import saved_bytes
from ...errors import InputError, MeshwrightError, NoFeasibleLayoutError, SearchInterrupted
from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.island_use import UNEVEN_SHARES, Crossing, IslandAssignment, IslandUse, Strategy
from ..document.placement import Placement
from ..evaluation.candidates import candidates
from ..evaluation.infeasible import NoHeadroomError, no_legal_layout
from ..evaluation.network import as_placed
from ..evaluation.staged import Staged
from ..request.headroom import overflow_chance
from ..request.resolve import Resolved
from ..search.run import search_of
from ..space.tree import Count
from .choices import IslandChoice
from .islands import IslandPart, joined, parts_of
from .pipeline import CrossIslandPipeline
from .replicas import Replicas, equal_shares
from .search import HeterogeneousSearch


def searched(
    resolved: Resolved, left_s: Callable[[], float], report: Callable[[Count, float], None]
) -> tuple[HeterogeneousSearch, tuple[str, ...]]:
    """The search of a request, after its run, and a sentence for each island that cannot be used."""
    parts, unusable = parts_of(resolved)
    search = HeterogeneousSearch(resolved, parts, left_s, report, runnable_only=resolved.target.name != "any")
    return search.run(), unusable


def listed(resolved: Resolved, choices: Sequence[IslandChoice]) -> tuple[Candidate, ...]:
    """The first of these as candidates, as many as are requested."""
    best = choices[: resolved.request.top]
    return tuple(
        candidate_of(resolved, choice).model_copy(update={"choice": row}) for row, choice in enumerate(best, 1)
    )


def candidate_of(resolved: Resolved, choice: IslandChoice) -> Candidate:
    """A priced choice with its placement and how it uses the islands."""
    staged = choice.staged
    candidate = candidates(joined(resolved, choice.parts), [staged])[0]
    spread = _spread(resolved, choice)
    chance = max(overflow_chance(use.device_bytes, use.memory_bytes) for use in spread.islands)
    update: dict[str, Any] = {"spread": spread, "placement": _placement(resolved, choice), "overflow_chance": chance}
    if isinstance(staged, Replicas) and staged.is_uneven:
        update["targets"] = {name: reason or UNEVEN_SHARES for name, reason in candidate.targets.items()}
    return candidate.model_copy(update=update)


def staged_as(resolved: Resolved, candidate: Candidate) -> Staged:
    """A candidate of a plan, priced anew as the plan priced it."""
    spread = candidate.spread
    if spread is None:
        placed = as_placed(resolved, candidate)
        return Staged.of(placed, candidate.to_layout(), candidate.partition, simulate=True)
    by_number = {part.number: part for part in parts_of(resolved)[0]}
    if any(use.island not in by_number for use in spread.islands):
        raise InputError("the plan uses groups of nodes that the cluster no longer has", hint="plan again")
    parts, layout = [by_number[use.island] for use in spread.islands], candidate.to_layout()
    if spread.manner == "across":
        return CrossIslandPipeline.over(resolved, parts, layout, candidate.partition)
    if spread.manner == "together":
        return Staged.of(parts[0].alone, layout, candidate.partition, simulate=True)
    replicas = Replicas.of_shares(resolved, parts, layout, [use.micro_batches for use in spread.islands])
    if replicas is None:
        raise InputError(f"{candidate.layout_id} is no longer legal with its shares", hint="plan again")
    return replicas


def strategies(search: HeterogeneousSearch, even: Strategy | None) -> tuple[Strategy, ...]:
    """The best of every manner and set of islands, fastest first; even: that of `even_strategy`."""
    first: dict[tuple[str, tuple[int, ...]], Strategy] = {}
    for choice in search.choices.ranked:
        staged = choice.staged
        key = (choice.way, tuple(sorted(part.number for part in choice.parts)))
        names = tuple(part.name for part in choice.parts)
        strategy = Strategy(manner=choice.way, islands=names, layout_id=staged.id, step_s=rounded(staged.step_s))  # type: ignore[arg-type]
        first.setdefault(key, strategy)
    return tuple(sorted([*first.values(), *([even] if even else [])], key=lambda strategy: strategy.step_s))


def even_strategy(resolved: Resolved, search: HeterogeneousSearch, late: Callable[[], bool]) -> Strategy | None:
    """The best layout if all GPUs were the weakest of them, priced on the cluster as it is. None where there is none,
    where its groups of ranks straddle islands, or where vendors differ. Ctrl-C here stops `search` too; a time limit
    leaves its result as proven as it was."""
    parts, unusable = parts_of(resolved)
    one_job = not unusable and len({part.alone.cluster.gpu.vendor for part in parts}) == 1
    outcome = None if search.stopped or not one_job else search_of(resolved, resolved.space, should_stop=late).run()
    if outcome and outcome.stopped == "interrupted":
        search.stopped = outcome.stopped
    elif outcome and outcome.stopped:
        search.notes.append(f"{outcome.stopped} before all GPUs as if alike were compared")
        search.cut_short = (outcome.stopped,)
    if outcome is None or outcome.stopped or not outcome.top.rows:
        return None
    layout = outcome.top.rows[0][2]
    per_stage, per_replica = layout.num_gpus // layout.pp, layout.num_gpus // layout.dp
    staged: Staged | None = None
    if layout.pp > 1 and all(part.num_gpus % per_stage == 0 for part in parts):
        staged = CrossIslandPipeline.over(resolved, parts, layout)
    elif all(part.num_gpus % per_replica == 0 for part in parts):
        staged = equal_shares(resolved, parts, layout)
    if staged is None:
        return None
    names = tuple(part.name for part in parts)
    return Strategy(manner="even", islands=names, layout_id=str(layout), step_s=rounded(staged.step_s))


def nothing_fits(resolved: Resolved, search: HeterogeneousSearch) -> MeshwrightError:
    """The error if no strategy fits: the memory of each island, and the bytes of all states of the model. With a
    headroom NoHeadroomError: whether one fits without it takes another search."""
    if search.stopped:
        return SearchInterrupted(f"stopped ({search.stopped}) before any layout was found")
    if search.count.total == sum(search.count.ruled_out.values()):
        return no_legal_layout(resolved, search.count)
    if resolved.headroom_bytes > 0:
        return NoHeadroomError(resolved, 0.0, "no split over the groups of nodes does")
    problem = resolved.problem
    states, layers = problem.state_bytes, build_totals(problem)
    of_kinds = [kind.sharded + kind.replicated + kind.experts for kind in problem.parameters]
    parameters = float(layers @ np.array(of_kinds))
    optimizer = states.optimizer - saved_bytes(problem, layers) / parameters
    per_parameter = states.weight + states.gradient + optimizer
    num_bytes = parameters * per_parameter
    lines = [f"    {part.name}: {part.num_gpus} x {units.gib(part.alone.memory_bytes)} GiB "
             f"= {units.gib(part.num_gpus * part.alone.memory_bytes)} GiB" for part in search.parts]  # fmt: skip
    together = "\n".join(lines)
    return NoFeasibleLayoutError(
        f"no split of {resolved.model.name} over the groups of nodes fits\n\n{together}\n  its weights, gradients and "
        f"optimizer states are {parameters / 1e9:.4g} billion x {per_parameter:g} B = {units.gib(num_bytes)} GiB, and "
        "activations come on top",
        hint="more GPUs, GPUs with more memory, a shorter --seq-len, 8-bit optimizer states or --lora",
        details={"state_bytes": num_bytes,
                 "memory_bytes": {part.name: part.num_gpus * part.alone.memory_bytes for part in search.parts}},
    )  # fmt: skip


def _spread(resolved: Resolved, choice: IslandChoice) -> IslandAssignment:
    staged, parts = choice.staged, choice.parts
    used = {part.number for part in parts}
    unused = tuple(island.name for number, island in enumerate(resolved.cluster.islands) if number not in used)
    uses = [_use(resolved, staged, index, part) for index, part in enumerate(parts)]
    even_s, even_fits = _even(resolved, staged)
    return IslandAssignment.model_validate(rounded({
        "manner": choice.manner, "islands": [use.model_dump() for use in uses],
        "crossings": [crossing.model_dump() for crossing in _crossings(staged)], "unused": unused,
        "even_step_s": even_s, "even_fits": even_fits,
    }))  # fmt: skip


def _even(resolved: Resolved, staged: Staged) -> tuple[float | None, bool]:
    """Seconds of the same layout in equal parts, and whether that fits; None where it is in equal parts."""
    if isinstance(staged, CrossIslandPipeline) and staged.custom_partition is not None:
        even = staged.split(None)
        return even.step_s, even.fits
    if isinstance(staged, Replicas) and staged.is_uneven:
        equal = equal_shares(resolved, staged.parts, staged.layout)
        return (equal.step_s, equal.fits) if equal else (None, True)
    return None, True


def _use(resolved: Resolved, staged: Staged, index: int, part: IslandPart) -> IslandUse:
    """The part of island `index` in a choice."""
    island = resolved.cluster.islands[part.number]
    single, devices = staged, list(range(staged.layout.pp))
    replicas, micro_batches = staged.layout.dp, staged.num_micro_batches
    if isinstance(staged, CrossIslandPipeline):
        single, replicas = staged.singles[index], 0
        devices = [device for device, on in enumerate(staged.on) if on == index]
    elif isinstance(staged, Replicas):
        single = staged.singles[index]
        replicas = staged.dp[index]
        micro_batches = staged.shares[index]
    costs, chunks = single.costs, zip(staged.partition.sizes, staged.devices, strict=True)
    chunk_s = np.array(costs.forward_s) + np.array(costs.input_s) + np.array(costs.weight_s)
    busy_s = np.bincount(staged.devices, weights=chunk_s)
    return IslandUse(
        island=part.number, group=island.group, name=part.name, gpu=part.alone.cluster.gpu.name,
        num_gpus=part.num_gpus, nodes=(island.first_node, island.first_node + island.num_nodes - 1),
        stages=(devices[0], devices[-1]), replicas=replicas, micro_batches=micro_batches,
        layers=sum(size for size, device in chunks if device in devices), layer_s=single.mean_layer_s,
        busy_s=float(busy_s[devices].max()), device_bytes=single.device_bytes, memory_bytes=part.alone.memory_bytes,
    )  # fmt: skip


def _crossings(staged: Staged) -> list[Crossing]:
    if isinstance(staged, CrossIslandPipeline):
        return [Crossing(ends=ends, what="messages", step_bytes=size, seconds=seconds, bw_bytes_per_s=bw)
                for ends, size, seconds, bw in staged.crossings]  # fmt: skip
    if isinstance(staged, Replicas):
        return [Crossing(ends=(0, 1), what="gradients", step_bytes=staged.gradient_bytes, seconds=staged.terms["dp"],
                         bw_bytes_per_s=staged.crossing_bw_bytes_per_s)]  # fmt: skip
    return []


def _placement(resolved: Resolved, choice: IslandChoice) -> Placement:
    """Hosts of the islands in use, in the order of the cluster, and which ranks their GPUs are."""
    cluster = resolved.cluster
    islands = [cluster.islands[part.number] for part in choice.parts]
    names = cluster.hosts or tuple(f"node-{node}" for node in range(cluster.num_nodes))
    with_ranks = zip(islands, _ranks(choice.staged, choice.parts), strict=True)
    by_node = sorted(with_ranks, key=lambda pair: pair[0].first_node)
    logical = np.concatenate([ranks for _, ranks in by_node])
    hosts = tuple(names[node] for island, _ in by_node
                  for node in range(island.first_node, island.first_node + island.num_nodes))  # fmt: skip
    if (np.diff(logical) == 1).all() and len(hosts) == cluster.num_nodes:
        return Placement(hosts=hosts)
    return Placement(hosts=hosts, logical_of_rank=tuple(logical.tolist()))


def _ranks(staged: Staged, parts: Sequence[IslandPart]) -> list[np.ndarray]:
    """Logical ranks of the GPUs of each island: runs of them for stages; for replicas their part of every stage."""
    layout = staged.layout
    if not isinstance(staged, Replicas):
        borders = np.cumsum([part.num_gpus for part in parts])[:-1]
        return np.split(np.arange(layout.num_gpus), borders.tolist())
    stages = np.arange(layout.num_gpus).reshape(layout.pp, layout.dp, -1)
    blocks = np.split(stages, np.cumsum(staged.dp)[:-1].tolist(), axis=1)
    return [block.ravel() for block in blocks]
