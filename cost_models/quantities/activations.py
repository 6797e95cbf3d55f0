"""Bytes of activations that a batch of layouts saves per micro-batch, under recomputation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import Array, Ints
from .ledger import Ledger, weighted
from .stacks import kept_once, stashed_once
from .tables import Tables


@dataclass(frozen=True, eq=False)
class Activations:
    """Bytes that one micro-batch leaves on the devices of a ledger's layouts."""

    ledger: Ledger
    any_recompute: bool = False  # the least that any recomputation leaves, instead of that of the layouts

    @cached_property
    def per_kind(self) -> dict[int, Array]:
        """Kind -> [n] bytes that one layer saves per micro-batch."""
        if self.any_recompute:
            return self.ledger.per_kind(self.ledger.tables.least_saved)
        return self.ledger.per_code(self.ledger.tables.saved_by_code)

    @cached_property
    def saved(self) -> list[Array]:
        """Per profile: [n] bytes of activations per micro-batch."""
        ledger = self.ledger
        if not self.recomputes_some_layers:
            return [ledger.on_profile(j, self.per_kind) + self._once(j, kept_once) for j in range(ledger.num_profiles)]
        saved, dropped = self.saved_and_dropped
        return [ledger.on_profile(j, saved) - ledger.recomputed(j, dropped) + self._once(j, kept_once)
                for j in range(ledger.num_profiles)]  # fmt: skip

    def _once(self, j: int, quantity: Callable[[Tables, Array, Ints], Array]) -> Array | float:
        """[n] a quantity of stages that have layers of an encoder or its decoder, however many, on profile j. Profiles
        that are parts of stages, or stand for several, count none."""
        ledger, splits = self.ledger, self.ledger.splits
        if ledger.problem.model.encoder is None or splits.is_bound or splits.adds_up:
            return 0.0
        return quantity(ledger.tables, splits.counts[:, j][ledger.split], ledger.key)

    @cached_property
    def saved_back(self) -> list[Array]:
        """Per profile: [n] bytes of `saved` on the chunk that a V comes back through."""
        ledger = self.ledger
        if not self.recomputes_some_layers:
            return [weighted(counts, self.per_kind) for counts in ledger.back]
        saved, dropped = self.saved_and_dropped
        return [weighted(counts, saved) - ledger.recomputed_back(j, dropped) for j, counts in enumerate(ledger.back)]

    @cached_property
    def graph_outputs(self) -> list[Array]:
        """Per profile: [n] what of `saved` CUDA graphs keep and a layer without them does not."""
        ledger = self.ledger
        rows = ledger.per_kind(ledger.tables.graph_output)
        return [ledger.on_profile(j, rows) + np.zeros(len(ledger.layouts)) for j in range(ledger.num_profiles)]

    @property
    def recomputes_some_layers(self) -> bool:
        """Whether any row recomputes some layers of a stage and others not."""
        ledger = self.ledger
        return ledger.splits.recomputed is not None or bool(ledger.layouts["recompute_layers"].any())

    @cached_property
    def saved_and_dropped(self) -> tuple[dict[int, Array], dict[int, Array]]:
        """Kind -> [n] bytes that a layer saves, and how much less under recompute."""
        ledger = self.ledger
        saved = ledger.per_kind(ledger.tables.saved_whole)
        return saved, {kind: saved[kind] - row for kind, row in self.per_kind.items()}

    @cached_property
    def wgrad_stash(self) -> list[Array]:
        """Per profile: [2, n] bytes of a micro-batch that wait for its W, of schedules that split the backward pass: on
        the chunk that a V comes back through, and on all others."""
        ledger = self.ledger
        rows = ledger.per_kind(ledger.tables.wgrad_stash)
        back = [weighted(counts, rows) + np.zeros(len(ledger.layouts)) for counts in ledger.back]
        return [np.array([ledger.on_profile(j, rows) + self._once(j, stashed_once) - back[j], back[j]])
                for j in range(ledger.num_profiles)]  # fmt: skip
