"""Replicas that each lie on one island of a heterogeneous cluster, and run more micro-batches on faster islands.

Every replica has the same layout; island g holds dp_g of them, and each runs m_g micro-batches of a step, in all
sum_g dp_g m_g. Gradients are summed weighted by tokens, so the update is that of equal shares. States are sharded
inside an island; only the sum of gradients crosses the bridges. An island is priced as if all replicas were its own,
with the links that the data-parallel groups really have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from ...cost_models.layouts import Layout, Layouts
from ...cost_models.rates.collectives import Levels
from ...cost_models.specs.cluster import NetworkLevel
from ...cost_models.step import stragglers
from ..document.partitions import layout_id
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from .islands import IslandPart, OnIslands, bridge_between, bridged, gradient_bytes, joined, sums_over_all

_AROUND = 2  # numbers of micro-batches, on either side of the point where all islands end together, that are compared
_MOST_PRICED = 4  # shares that are priced, the best by the closed form


@dataclass(frozen=True)
class Replicas(OnIslands):
    """Replicas of one layout, priced. `ledger` and `estimate` are those of the island that ends last. `layout.dp`
    counts the replicas of all islands."""

    shares: tuple[int, ...] = ()  # [part] micro-batches that each replica on it runs

    @classmethod
    def of_shares(
        cls, whole: Resolved, parts: Sequence[IslandPart], layout: Layout, shares: Sequence[int], *,
        simulate: bool = True,
    ) -> Replicas | None:
        """None where a rule forbids the layout with these micro-batches."""
        singles = []
        for part, share in zip(parts, shares, strict=True):
            on_part = _on_part(whole, parts, part, layout, share)
            if share < 1 or not _allowed(on_part, layout):
                return None
            singles.append(Staged.of(on_part, layout, simulate=simulate))
        last = _ends_last(parts, singles)[0]
        return cls(joined(whole, parts), layout, last.partition, last.ledger, last.estimate, simulate, tuple(parts),
                   tuple(singles), tuple(shares))  # fmt: skip

    @cached_property
    def _last(self) -> tuple[Staged, float]:
        return _ends_last(self.parts, self.singles)

    @property
    def last(self) -> Staged:
        """The island that ends last, priced as if all replicas were its own."""
        return self._last[0]

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
        return self.last.step_s + self._more_s

    @property
    def _more_s(self) -> float:
        """Seconds that the sums over the ranks of all islands add to its step, and waiting for them."""
        return self._last[1] * (1.0 + stragglers.straggler_share(self.last.ledger))

    @property
    def gradient_bytes(self) -> float:
        """Bytes that an island sends the others in a step, at least."""
        return gradient_bytes(self.resolved.problem)

    @property
    def crossing_bw_bytes_per_s(self) -> float:
        """Share of a GPU in the narrowest bridge while all GPUs of an island send."""
        return self.last.resolved.rates.levels_of("replicate")[-1].bw_bytes_per_s

    @property
    def closed_s(self) -> float:
        return self.last.closed_s + self._more_s

    @cached_property
    def terms(self) -> dict[str, float]:
        terms, more_s = self.last.terms, self._last[1]
        waits_s = self._more_s - more_s
        return {**terms, "optimizer": terms["optimizer"] + more_s, "stragglers": terms["stragglers"] + waits_s}


def _ends_last(parts: Sequence[IslandPart], singles: Sequence[Staged]) -> tuple[Staged, float]:
    """The island that ends last, and seconds that sums over the ranks of all islands add to its update."""
    return max(zip(singles, sums_over_all(parts, singles), strict=True), key=lambda each: each[0].step_s + each[1])


def best_shares(whole: Resolved, parts: Sequence[IslandPart], layout: Layout) -> Replicas | None:
    """The shares under which the islands end together as nearly as whole micro-batches allow; None if none fits.

    A step of an island is affine in its share (closed form), so the best shares are near the point where all islands
    end at once. Every combination around that point is compared by these lines, and the best few are priced.
    """
    total = whole.workload.global_batch // layout.micro_batch
    counts = [layout.dp * part.num_gpus // layout.num_gpus for part in parts]  # replicas
    lines = [_line(whole, parts, part, layout, total // layout.dp) for part in parts]
    reach = _AROUND * counts[-1] + 1  # the last island takes the rest, which must divide among its replicas
    ideal = [math.floor(m) for m in _ending_together(lines, counts, total)[:-1]]
    compared: list[tuple[float, tuple[int, ...]]] = []
    for chosen in product(*(range(max(m - reach, 1), m + reach + 1) for m in ideal)):
        rest = total - sum(m * count for m, count in zip(chosen, counts, strict=False))
        if rest > 0 and rest % counts[-1] == 0:
            shares = (*chosen, rest // counts[-1])
            compared.append((max(a + c * m for (a, c), m in zip(lines, shares, strict=True)), shares))
    priced = (Replicas.of_shares(whole, parts, layout, shares) for _, shares in sorted(compared)[:_MOST_PRICED])
    fitting = [replicas for replicas in priced if replicas is not None and replicas.fits]
    return min(fitting, key=lambda replicas: replicas.step_s, default=None)


def equal_shares(whole: Resolved, parts: Sequence[IslandPart], layout: Layout) -> Replicas | None:
    """All replicas run the same number of micro-batches; None where that is not whole."""
    share, rest = divmod(whole.workload.global_batch, layout.dp * layout.micro_batch)
    return None if rest else Replicas.of_shares(whole, parts, layout, [share] * len(parts))


def _line(
    whole: Resolved, parts: Sequence[IslandPart], part: IslandPart, layout: Layout, mean: int
) -> tuple[float, float]:
    """(seconds, seconds per micro-batch) of a step of an island, by the closed form."""
    low = max(mean, 2 * layout.pp, 1)  # enough micro-batches to fill the pipeline, from where on the step is a line
    high = 2 * low
    low_s, high_s = (Staged.of(_on_part(whole, parts, part, layout, m), layout).closed_s for m in (low, high))
    slope = (high_s - low_s) / (high - low)
    return low_s - low * slope, slope


def _ending_together(
    lines: Sequence[tuple[float, float]], counts: Sequence[int], total: int
) -> list[float]:
    """Micro-batches of a replica of each island: a_g + c_g m_g equal, sum_g dp_g m_g = total."""
    rate = sum(count / c for (_, c), count in zip(lines, counts, strict=True))
    step_s = (total + sum(count * a / c for (a, c), count in zip(lines, counts, strict=True))) / rate
    return [max((step_s - a) / c, 1.0) for a, c in lines]


def _on_part(whole: Resolved, parts: Sequence[IslandPart], part: IslandPart, layout: Layout, share: int) -> Resolved:
    """The request as if all replicas were on one island, each with `share` micro-batches."""
    in_job = part.in_job(layout.num_gpus)
    batch = share * layout.dp * layout.micro_batch
    links = dict.fromkeys(("shard", "replicate", "expert_shard", "expert_replicate"),
                          _data_parallel_levels(whole, parts, part, layout))  # fmt: skip
    return replace(in_job, workload=replace(in_job.workload, global_batch=batch), links=links)


def _data_parallel_levels(whole: Resolved, parts: Sequence[IslandPart], part: IslandPart, layout: Layout) -> Levels:
    """Network levels of data-parallel groups: the island up to the GPUs of a stage on it, then the narrowest bridge."""
    here = part.num_gpus // layout.pp
    inside: list[NetworkLevel] = []
    for level in part.alone.cluster.levels:
        if inside and inside[-1].size >= here:
            break
        size, bw = min(level.size, here), level.bw_bytes_per_s
        if level.topology == "mesh" and 1 < size < level.size:
            bw *= (size - 1) / (level.size - 1)
        inside.append(replace(level, size=size, bw_bytes_per_s=bw))
    links = [bridged(bridge_between(whole.cluster, part, other), max(part.num_gpus, other.num_gpus))
             for other in parts if other is not part]  # fmt: skip
    slowest = min(links, key=lambda link: link.bw_bytes_per_s)
    return (*inside, replace(slowest, size=layout.num_gpus, latency_s=max(link.latency_s for link in links)))


def _allowed(resolved: Resolved, layout: Layout) -> bool:
    columns = Layouts.of([layout])
    return all(bool(np.all(rule.allows(columns, resolved.problem))) for rule in resolved.space.rules)
