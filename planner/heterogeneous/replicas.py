"""Replicas that each lie on one island of a mixed cluster, and run as many micro-batches as their island is fast.

Every replica has the same layout; island g holds dp_g of them, and each runs m_g micro-batches of a step, in all
sum_g dp_g m_g. Gradients are summed weighted by tokens, so the update is that of equal shares. States are sharded
inside an island; only the sum of gradients crosses the bridges. An island is priced as if all replicas were its own,
with the links that the data-parallel groups really find.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from ...cost_models.build_ledger import build_totals
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.rates.collectives import Levels
from ...cost_models.specs.cluster import NetworkLevel
from ..document.partitions import layout_id
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from .islands import IslandPart, OnIslands, bridge_between, bridged, joined

_AROUND = 2  # numbers of micro-batches tried on either side of where all islands would end together
_MOST_TRIED = 4


@dataclass(frozen=True)
class Replicas(OnIslands):
    """Replicas of one layout, priced. `ledger` and `estimate` are those of the island that ends last. `layout.dp`
    counts the replicas of all islands."""

    shares: tuple[int, ...] = ()  # [part] micro-batches that each replica on it runs

    @classmethod
    def of_shares(
        cls, mixed: Resolved, parts: Sequence[IslandPart], layout: Layout, shares: Sequence[int], *,
        simulate: bool = True,
    ) -> Replicas | None:
        """None where a rule forbids the layout with these micro-batches."""
        singles = []
        for part, share in zip(parts, shares, strict=True):
            seen = _as_seen(mixed, parts, part, layout, share)
            if share < 1 or not _allowed(seen, layout):
                return None
            singles.append(Staged.of(seen, layout, simulate=simulate))
        last = max(singles, key=lambda one: one.step_s)
        return cls(joined(mixed, parts), layout, last.partition, last.ledger, last.estimate, simulate, tuple(parts),
                   tuple(singles), tuple(shares))  # fmt: skip

    @property
    def last(self) -> Staged:
        """The island that ends last, as if all were like it."""
        return max(self.singles, key=lambda one: one.step_s)

    @property
    def is_uneven(self) -> bool:
        return len(set(self.shares)) > 1

    @property
    def id(self) -> str:
        return layout_id(self.layout, self.custom_partition, self.shares if self.is_uneven else None)

    @property
    def dp(self) -> tuple[int, ...]:
        """Replicas on each part."""
        return tuple(self.layout.dp * part.num_gpus // self.layout.num_gpus for part in self.parts)

    def gpu_of(self, device: int) -> str:
        return " + ".join(dict.fromkeys(part.alone.cluster.gpu.name for part in self.parts))

    @property
    def is_simulated(self) -> bool:
        return self.last.is_simulated

    @cached_property
    def step_s(self) -> float:
        return self.last.step_s

    @property
    def gradient_bytes(self) -> float:
        """Gradients of the whole model: what an island sends the others in a step, at least."""
        problem, totals = self.resolved.problem, build_totals(self.resolved.problem)
        trained = [kind.trained_sharded + kind.trained_replicated + kind.trained_experts for kind in problem.parameters]
        return float(totals @ np.array(trained)) * problem.state_bytes.gradient

    @property
    def crossing_bw_bytes_per_s(self) -> float:
        """What a GPU finds of the narrowest bridge while all of an island send."""
        return self.last.resolved.rates.levels_of("replicate")[-1].bw_bytes_per_s

    @property
    def closed_s(self) -> float:
        return self.last.closed_s

    @cached_property
    def terms(self) -> dict[str, float]:
        return self.last.terms


def best_shares(mixed: Resolved, parts: Sequence[IslandPart], layout: Layout) -> Replicas | None:
    """The shares under which the islands end together as nearly as whole micro-batches allow. A step of an island is
    affine in its share (closed form), so the best shares lie beside the point where all end at once."""
    total = mixed.workload.global_batch // layout.micro_batch
    counts = [layout.dp * part.num_gpus // layout.num_gpus for part in parts]
    lines = [_line(mixed, parts, part, layout, total // layout.dp) for part in parts]
    ideal = _ending_together(lines, counts, total)
    tried: list[tuple[float, tuple[int, ...]]] = []
    reach = [_AROUND * counts[-1] + 1] * (len(parts) - 1)
    around = [range(max(math.floor(m) - far, 1), math.floor(m) + far + 1) for m, far in zip(ideal, reach, strict=False)]
    for some in product(*around):
        left = total - sum(m * count for m, count in zip(some, counts, strict=False))
        if left > 0 and left % counts[-1] == 0:
            shares = (*some, left // counts[-1])
            tried.append((max(a + c * m for (a, c), m in zip(lines, shares, strict=True)), shares))
    found = (Replicas.of_shares(mixed, parts, layout, shares) for _, shares in sorted(tried)[:_MOST_TRIED])
    return min((one for one in found if one is not None and one.fits), key=lambda one: one.step_s, default=None)


def equal_shares(mixed: Resolved, parts: Sequence[IslandPart], layout: Layout) -> Replicas | None:
    """Every replica runs as many micro-batches; None where they do not divide."""
    share, rest = divmod(mixed.workload.global_batch, layout.dp * layout.micro_batch)
    return None if rest else Replicas.of_shares(mixed, parts, layout, [share] * len(parts))


def _line(
    mixed: Resolved, parts: Sequence[IslandPart], part: IslandPart, layout: Layout, mean: int
) -> tuple[float, float]:
    """(seconds, seconds per micro-batch) of a step of an island, by the closed form."""
    low, high = max(mean, 2 * layout.pp, 1), 2 * max(mean, 2 * layout.pp, 1)
    steps = [Staged.of(_as_seen(mixed, parts, part, layout, m), layout).closed_s for m in (low, high)]
    slope = (steps[1] - steps[0]) / (high - low)
    return steps[0] - low * slope, slope


def _ending_together(
    lines: Sequence[tuple[float, float]], counts: Sequence[int], total: int
) -> list[float]:
    """Micro-batches of a replica of each island: a_g + c_g m_g equal, sum_g dp_g m_g = total."""
    rate = sum(count / c for (_, c), count in zip(lines, counts, strict=True))
    step_s = (total + sum(count * a / c for (a, c), count in zip(lines, counts, strict=True))) / rate
    return [max((step_s - a) / c, 1.0) for a, c in lines]


def _as_seen(mixed: Resolved, parts: Sequence[IslandPart], part: IslandPart, layout: Layout, share: int) -> Resolved:
    """The request as the replicas of one island see it: all replicas as fast as they, and as many micro-batches."""
    seen = part.in_job(layout.num_gpus)
    batch = share * layout.dp * layout.micro_batch
    links = dict.fromkeys(("shard", "replicate", "expert_shard", "expert_replicate"),
                          _data_parallel_levels(mixed, parts, part, layout))  # fmt: skip
    return replace(seen, workload=replace(seen.workload, global_batch=batch), links=links)


def _data_parallel_levels(mixed: Resolved, parts: Sequence[IslandPart], part: IslandPart, layout: Layout) -> Levels:
    """What data-parallel groups find: the island up to the GPUs of a stage on it, then the narrowest bridge."""
    here = part.num_gpus // layout.pp
    inside: list[NetworkLevel] = []
    for level in part.alone.cluster.levels:
        if inside and inside[-1].size >= here:
            break
        size, bw = min(level.size, here), level.bw_bytes_per_s
        if level.topology == "mesh" and 1 < size < level.size:
            bw *= (size - 1) / (level.size - 1)
        inside.append(replace(level, size=size, bw_bytes_per_s=bw))
    links = [bridged(bridge_between(mixed.cluster, part, other), max(part.num_gpus, other.num_gpus))
             for other in parts if other is not part]  # fmt: skip
    slowest = min(links, key=lambda link: link.bw_bytes_per_s)
    return (*inside, replace(slowest, size=layout.num_gpus, latency_s=max(link.latency_s for link in links)))


def _allowed(seen: Resolved, layout: Layout) -> bool:
    columns = Layouts.of([layout])
    return all(bool(np.all(rule.allows(columns, seen.problem))) for rule in seen.space.rules)
