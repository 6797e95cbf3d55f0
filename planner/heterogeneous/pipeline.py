"""A pipeline over the islands of a mixed cluster: every stage on one of them, priced with that island's own rates.

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
from ..evaluation.staged import Staged, even_partition
from ..request.resolve import Resolved
from .islands import IslandPart, OnIslands, bridge_between, bridged, crossing_s, joined, sending_s


@dataclass(frozen=True)
class CrossIslandPipeline(OnIslands):
    """A layout whose stages lie on islands. parts: in the order of the pipeline; on: [device] index into them.
    singles: the same layout as each island would run it all, its estimate that of its own stages."""

    on: tuple[int, ...] = ()
    mixed: Resolved = field(kw_only=True)  # the whole request, with its bridges

    @classmethod
    def over(
        cls, mixed: Resolved, parts: Sequence[IslandPart], layout: Layout, partition: Partition | None = None
    ) -> CrossIslandPipeline:
        """parts: in the order of the pipeline, each with whole stages: GPUs x pp / GPUs of the layout."""
        seen = [part.in_job(layout.num_gpus) for part in parts]
        columns = Layouts.of([layout])
        keys, _ = index_keys(columns)
        return cls._over(mixed, tuple(parts), layout, partition, tables.build(seen[0].problem, keys))

    def reordered(self, parts: Sequence[IslandPart]) -> CrossIslandPipeline:
        """The same islands in another order of the pipeline."""
        return self._over(self.mixed, tuple(parts), self.layout, self.partition, self.ledger.tables)

    def split(self, partition: Partition | None) -> CrossIslandPipeline:
        return self._over(self.mixed, self.parts, self.layout, partition, self.ledger.tables)

    @classmethod
    def _over(
        cls, mixed: Resolved, parts: tuple[IslandPart, ...], layout: Layout, partition: Partition | None,
        of_shards: Tables,
    ) -> CrossIslandPipeline:  # fmt: skip
        per_stage = layout.num_gpus // layout.pp
        on = tuple(i for i, part in enumerate(parts) for _ in range(part.num_gpus // per_stage))
        found = joined(mixed, parts)
        partition, columns = partition or even_partition(found, layout), Layouts.of([layout])
        singles = []
        for index, part in enumerate(parts):
            seen = part.in_job(layout.num_gpus)
            batch = build_ledger.build(seen.problem, of_shards, columns, np.zeros(1, dtype=np.int64), partition)
            mine = _only(batch, [device for device, where in enumerate(on) if where == index])
            estimate = step.price(mine, part.rates, detail=True)
            singles.append(Staged(seen, layout, partition, batch, estimate, True))
        slowest = max(singles, key=lambda one: one.estimate.terms["matmul"][0] + one.estimate.terms["attention"][0])
        return cls(found, layout, partition, singles[0].ledger, slowest.estimate, True, parts, tuple(singles), on,
                   mixed=mixed)  # fmt: skip

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
        """Each chunk's and device's from its own island; messages between islands over their bridge."""
        alone, devices = [one.costs for one in self.singles], self.devices
        chunk_on = [self.on[device] for device in devices]
        by_chunk = ("forward_s", "weight_s", "input_s", "reduce_s", "gather_s")
        own: dict[str, Any] = {name: tuple(getattr(alone[i], name)[c] for c, i in enumerate(chunk_on))
                               for name in by_chunk}  # fmt: skip
        update_s = tuple(float(self.singles[i].estimate.terms["optimizer"][0]) for i in self.on)
        return replace(alone[0], **own, optimizer_s=update_s, forward_hop_s=self.hops_s[0],
                       backward_hop_s=self.hops_s[1], forward_link_s=self.links_s[0],
                       backward_link_s=self.links_s[1])  # fmt: skip

    @cached_property
    def hops_s(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """[chunk] seconds of the messages that bring its input, and its gradient."""
        return self._of_messages(self._message_s)

    @cached_property
    def links_s(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """[chunk] how much of them their link is busy."""
        return self._of_messages(self._link_s)

    def _of_messages(self, seconds: Callable[[int, int], float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        on = [self.on[device] for device in self.devices]
        into = [seconds(on[max(c - 1, 0)], mine) for c, mine in enumerate(on)]
        back = [seconds(mine, on[min(c + 1, len(on) - 1)]) for c, mine in enumerate(on)]
        return tuple(into), tuple(back)

    def _message_s(self, mine: int, theirs: int) -> float:
        if mine == theirs:
            single = self.singles[mine]
            return float(stage_messages.hop_s(single.ledger, single.resolved.rates)[0])
        return crossing_s(self.parts[mine].rates, self._bridge(mine, theirs), self._senders, "p2p", self._message)

    def _link_s(self, mine: int, theirs: int) -> float:
        if mine == theirs:
            single = self.singles[mine]
            return float(stage_messages.link_s(single.ledger, single.resolved.rates)[0])
        return sending_s(self.parts[mine].rates, self._bridge(mine, theirs), self._senders, self._message)

    def _bridge(self, mine: int, theirs: int) -> Bridge:
        return bridge_between(self.mixed.cluster, self.parts[mine], self.parts[theirs])

    @property
    def _senders(self) -> int:
        """GPUs of a stage."""
        return self.layout.num_gpus // self.layout.pp

    @property
    def _message(self) -> float:
        return float(self.ledger.tables.message[int(self.ledger.key[0])])

    @cached_property
    def _ways_over(self) -> list[tuple[int, int]]:
        """Pairs of islands that a micro-batch goes over on its way forward, once for each time."""
        chunk_on = [self.on[device] for device in self.devices]
        return [pair for pair in pairwise(chunk_on) if pair[0] != pair[1]]

    @property
    def crossings(self) -> list[tuple[tuple[int, int], float, float, float]]:
        """(islands, bytes of a step, seconds of a message, bytes/s of a GPU) of every bridge, one way."""
        out = []
        for ends in dict.fromkeys(self._ways_over):
            sent = self._ways_over.count(ends) * self.num_micro_batches * self._senders * self._message
            bridge, rates = self._bridge(*ends), self.parts[ends[0]].rates
            seconds = crossing_s(rates, bridge, self._senders, "p2p", self._message)
            out.append((ends, sent, seconds, bridged(bridge, self._senders).bw_bytes_per_s))
        return out

    @cached_property
    def once_terms(self) -> dict[str, float]:
        """Those of the island that takes longest, but for messages, which may cross bridges."""
        longest = {name: max(single.once_terms[name] for single in self.singles) for name in step.ONCE_TERMS}
        return {**longest, "pp": self._messages_once_s}

    @property
    def _messages_once_s(self) -> float:
        """The sum of a tied embedding, over the bridge if its ends lie apart; and what the messages of several pairs of
        stages wait for one another on one bridge."""
        first, last = self.on[0], self.on[-1]
        tied = float(stage_messages.tied_embedding_s(self.ledger, self.parts[first].rates)[0])
        if tied and first != last:
            problem = self.resolved.problem
            size = problem.model.vocab * problem.model.hidden / self.layout.tp * problem.state_bytes.gradient
            bridge = self._bridge(first, last)
            tied = crossing_s(self.parts[first].rates, bridge, self._senders, "all_reduce", size)
        return tied + self._waiting_s

    @cached_property
    def _waiting_s(self) -> float:
        """The line sets the pace where it is busy for longer than the slowest stage. The simulator lets the messages of
        a device follow one another, but those of other devices go beside them."""
        busiest = alone = 0.0
        stages = list(pairwise(self.devices))
        for pair in dict.fromkeys(self._ways_over):
            sending = self._link_s(*pair)
            over = [ends for ends in stages if (self.on[ends[0]], self.on[ends[1]]) in (pair, pair[::-1])]
            # Gradients of what goes over forward come back: they share a direction with messages the other way.
            busiest = max(busiest, sending * len(over))
            alone = max(alone, *(sending * sum(set(ends) == set(one) for one in over) for ends in over))
        costs = self.costs
        work = np.array(costs.forward_s) + np.array(costs.input_s) + np.array(costs.weight_s)
        slowest = float(np.bincount(self.devices, weights=work).max())
        return self.num_micro_batches * max(busiest - max(slowest, alone), 0.0)


def _only(batch: Ledger, devices: list[int]) -> Ledger:
    """The ledger of one layout (profile j is device j) on some of its devices."""
    splits = batch.splits
    names = ("counts", "first", "devices", "recomputed", "back", "recomputed_back")
    columns = {name: getattr(splits, name) for name in names}
    mine = {name: column[:, devices] for name, column in columns.items() if column is not None}
    return replace(batch, splits=replace(splits, **mine))
