"""A pipeline over the islands of a heterogeneous cluster: each stage on one of them, priced by its rates.

Quantities are those of the layout, as everywhere; only the seconds differ. A stage's tensor, context, expert and data
parallel groups lie inside its island; messages between islands take the bridge between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.quantities import tables
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.stages import Partition
from ...cost_models.quantities.tables import Tables, index_keys
from ...cost_models.schedules.simulator import Costs
from ...cost_models.specs.cluster import Bridge
from ...cost_models.step import stage_messages, step
from ..evaluation.staged import Staged
from ..evaluation.staged_layout import even_partition
from ..request.resolve import Resolved
from .islands import IslandPart, OnIslands, bridge_between, bridged, crossing_s, joined, sending_s, sums_over_all


@dataclass(frozen=True)
class CrossIslandPipeline(OnIslands):
    """A layout whose stages lie on islands. `parts` are in the order of the pipeline. `singles` are the same layout as
    if each island ran all of it, with the estimate of the stages that it really has."""

    on: tuple[int, ...] = ()  # [device] index into `parts`
    whole: Resolved = field(kw_only=True)  # the whole request, with its bridges

    @classmethod
    def over(
        cls, whole: Resolved, parts: Sequence[IslandPart], layout: Layout, partition: Partition | None = None
    ) -> CrossIslandPipeline:
        """parts: in the order of the pipeline, each with whole stages: GPUs x pp / GPUs of the layout."""
        keys, _ = index_keys(Layouts.of([layout]))
        of_shards = tables.build(parts[0].in_job(layout.num_gpus).problem, keys)
        return cls._over(whole, tuple(parts), layout, partition, of_shards)

    def reordered(self, parts: Sequence[IslandPart]) -> CrossIslandPipeline:
        """The same islands in another order of the pipeline."""
        return self._over(self.whole, tuple(parts), self.layout, self.partition, self.ledger.tables)

    def split(self, partition: Partition | None) -> CrossIslandPipeline:
        return self._over(self.whole, self.parts, self.layout, partition, self.ledger.tables)

    @classmethod
    def _over(
        cls, whole: Resolved, parts: tuple[IslandPart, ...], layout: Layout, partition: Partition | None,
        of_shards: Tables,
    ) -> CrossIslandPipeline:  # fmt: skip
        per_stage = layout.num_gpus // layout.pp
        on = tuple(i for i, part in enumerate(parts) for _ in range(part.num_gpus // per_stage))
        resolved = joined(whole, parts)
        partition, columns = partition or even_partition(resolved, layout), Layouts.of([layout])
        singles = []
        for index, part in enumerate(parts):
            in_job = part.in_job(layout.num_gpus)
            ledger = build_ledger.build(in_job.problem, of_shards, columns, np.zeros(1, dtype=np.int64), partition)
            on_part = _only(ledger, [device for device, where in enumerate(on) if where == index])
            estimate = step.price(on_part, part.rates, detail=True)
            singles.append(Staged(in_job, layout, partition, ledger, estimate, True))
        slowest = max(singles, key=_product_seconds)
        return cls(resolved, layout, partition, singles[0].ledger, slowest.estimate, True, parts, tuple(singles), on,
                   whole=whole)  # fmt: skip

    def gpu_of(self, device: int) -> str:
        return self.parts[self.on[device]].alone.cluster.gpu.name

    @property
    def is_simulated(self) -> bool:
        return True

    @property
    def closed_s(self) -> float:
        return self.step_s

    @cached_property
    def costs(self) -> Costs:
        """Costs of chunks and devices are those of their island; messages between islands take the bridge."""
        alone = [single.costs for single in self.singles]
        chunk_on = [self.on[device] for device in self.devices]
        of_chunks: dict[str, Any] = {
            name: tuple(getattr(alone[island], name)[chunk] for chunk, island in enumerate(chunk_on))
            for name in ("forward_s", "weight_s", "input_s", "reduce_s", "gather_s")
        }
        more_s = sums_over_all(self.parts, self.singles)
        update_s = tuple(float(self.singles[island].estimate.terms["optimizer"][0]) + more_s[island]
                         for island in self.on)  # fmt: skip
        return replace(alone[0], **of_chunks, optimizer_s=update_s, forward_hop_s=self.hops_s[0],
                       backward_hop_s=self.hops_s[1], forward_link_s=self.links_s[0],
                       backward_link_s=self.links_s[1])  # fmt: skip

    @cached_property
    def hops_s(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """[chunk] seconds of the messages that bring its input, and its gradient."""
        return self._of_messages(self._message_s)

    @cached_property
    def links_s(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """[chunk] seconds of each that the link is busy with it."""
        return self._of_messages(self._link_s)

    def _of_messages(self, seconds: Callable[[int, int], float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """[chunk] of the messages that bring its input, and its gradient; seconds: of (island from, island to)."""
        on = [self.on[device] for device in self.devices]
        before, after = [on[0], *on[:-1]], [*on[1:], on[-1]]
        inputs = [seconds(previous, here) for previous, here in zip(before, on, strict=True)]
        gradients = [seconds(here, following) for here, following in zip(on, after, strict=True)]
        return tuple(inputs), tuple(gradients)

    def _message_s(self, first: int, second: int) -> float:
        if first == second:
            single = self.singles[first]
            return float(stage_messages.hop_s(single.ledger, single.resolved.rates)[0])
        rates, bridge = self.parts[first].rates, self._bridge(first, second)
        return crossing_s(rates, bridge, self._senders, "p2p", self._message_bytes)

    def _link_s(self, first: int, second: int) -> float:
        if first == second:
            single = self.singles[first]
            return float(stage_messages.link_s(single.ledger, single.resolved.rates)[0])
        return sending_s(self.parts[first].rates, self._bridge(first, second), self._senders, self._message_bytes)

    def _bridge(self, first: int, second: int) -> Bridge:
        return bridge_between(self.whole.cluster, self.parts[first], self.parts[second])

    @property
    def _senders(self) -> int:
        """GPUs of a stage, which all send at once."""
        return self.layout.num_gpus // self.layout.pp

    @property
    def _message_bytes(self) -> float:
        return float(self.ledger.tables.message[self.key])

    @cached_property
    def _crossed(self) -> list[tuple[int, int]]:
        """Pairs of islands between which a micro-batch crosses on its way forward, once for each time."""
        chunk_on = [self.on[device] for device in self.devices]
        return [pair for pair in pairwise(chunk_on) if pair[0] != pair[1]]

    @property
    def crossings(self) -> list[tuple[tuple[int, int], float, float, float]]:
        """(islands, bytes of a step, seconds of a message, bytes/s of a GPU) of every bridge, one way."""
        out = []
        for ends in dict.fromkeys(self._crossed):
            sent_bytes = self._crossed.count(ends) * self.num_micro_batches * self._senders * self._message_bytes
            bridge, rates = self._bridge(*ends), self.parts[ends[0]].rates
            seconds = crossing_s(rates, bridge, self._senders, "p2p", self._message_bytes)
            out.append((ends, sent_bytes, seconds, bridged(bridge, self._senders).bw_bytes_per_s))
        return out

    @cached_property
    def once_terms(self) -> dict[str, float]:
        """The terms per step of the slowest island, except for messages, which may cross bridges."""
        longest = {name: max(single.once_terms[name] for single in self.singles) for name in step.ONCE_TERMS}
        return {**longest, "pp": self._messages_once_s}

    @property
    def _messages_once_s(self) -> float:
        """The gradient sum of a tied embedding, over the bridge if first and last stage are on two islands; and the
        time that messages of several pairs of stages wait for one another on one bridge."""
        first, last = self.on[0], self.on[-1]
        tied = float(stage_messages.tied_embedding_s(self.ledger, self.parts[first].rates)[0])
        if tied and first != last:
            problem = self.resolved.problem
            size = problem.model.vocab * problem.model.hidden / self.layout.tp * problem.state_bytes.gradient
            bridge = self._bridge(first, last)
            tied = crossing_s(self.parts[first].rates, bridge, self._senders, "all_reduce", size)
        return tied + self._contention_on_bridges_s

    @cached_property
    def _contention_on_bridges_s(self) -> float:
        """Seconds of a step that stages wait for a bridge that is busy for longer than the slowest stage: it then sets
        the pace of the pipeline. The simulator has a link for each pair of devices, so there all pairs use the bridge
        at the same time, and only the messages of one pair follow one another."""
        bridge_s = pair_s = 0.0
        stages = list(pairwise(self.devices))
        for islands in dict.fromkeys(self._crossed):
            link_s = self._link_s(*islands)
            over = [pair for pair in stages if (self.on[pair[0]], self.on[pair[1]]) in (islands, islands[::-1])]
            # Each message forward has a gradient back, which shares a direction with messages the other way.
            bridge_s = max(bridge_s, link_s * len(over))
            pair_s = max(pair_s, *(link_s * sum(set(pair) == set(other) for other in over) for pair in over))
        costs = self.costs
        chunk_s = np.array(costs.forward_s) + np.array(costs.input_s) + np.array(costs.weight_s)
        slowest_s = float(np.bincount(self.devices, weights=chunk_s).max())
        return self.num_micro_batches * max(bridge_s - max(slowest_s, pair_s), 0.0)


def _product_seconds(staged: Staged) -> float:
    terms = staged.estimate.terms
    return float(terms["matmul"][0] + terms["attention"][0])


def _only(ledger: Ledger, devices: list[int]) -> Ledger:
    """The ledger of one layout (profile j is device j) on some of its devices. Stalls of unequal chunks are the
    simulator's, which runs all devices."""
    splits = ledger.splits
    names = ("counts", "first", "devices", "recomputed", "back", "recomputed_back")
    columns = {name: getattr(splits, name) for name in names}
    on_devices = {name: column[:, devices] for name, column in columns.items() if column is not None}
    return replace(ledger, splits=replace(splits, **on_devices), stalls=None)
