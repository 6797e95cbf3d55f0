"""One layout with its stages, priced with its pipeline in the event simulator where that is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...cost_models.layouts import SCHEDULES
from ...cost_models.quantities.stages import chunks_per_stage
from ...cost_models.rates.layer_seconds import COMPONENTS
from ...cost_models.schedules import simulator
from ...cost_models.schedules.simulator import Costs, Schedule, Timeline
from ...cost_models.step import step, stragglers
from ...cost_models.step.data_parallel import exposed_dp_s
from ...cost_models.step.stage_seconds import stage_seconds
from ...cost_models.step.vocabulary_seconds import vocabulary_overhead_s
from . import simulator_costs, vocabulary_passes
from .staged_layout import StagedLayout

# A schedule of more operations than this is not simulated: it would take seconds.
MOST_OPERATIONS = 1 << 22
# Terms of a step (step.TERMS) that are in the makespan of the simulator, or a factor on all others. A simulated step
# adds every other term to the makespan, with its seconds of the closed form.
SIMULATED_TERMS = frozenset({*COMPONENTS, "accumulate", "fsdp", "resharding", "vocabulary", "bubble", "pp", "dp",
                             "optimizer", "offload", "stragglers"})  # fmt: skip


@dataclass(frozen=True)
class Staged(StagedLayout):
    """A layout with its stages, whose step may be simulated."""

    @property
    def schedule_name(self) -> str:
        return SCHEDULES[self.layout.schedule] if self.layout.pp > 1 else "1f1b"

    @property
    def num_operations(self) -> int:
        return 2 * self.num_micro_batches * len(self.devices)

    @cached_property
    def schedule(self) -> Schedule:
        if self.ledger.vocabulary is not None:
            return vocabulary_passes.schedule_of(self, self.ledger.vocabulary, self.costs)
        chunks = chunks_per_stage(self.layout)
        return simulator.make(self.schedule_name, self.layout.pp, self.num_micro_batches, chunks)

    @cached_property
    def costs(self) -> Costs:
        """Seconds of every operation of the schedule."""
        return simulator_costs.costs_of(self)

    @cached_property
    def _run(self) -> Timeline:
        """The simulated step without bytes, which take as long to work out as the run."""
        return simulator.simulate(self.schedule, replace(self.costs, unhidden_s=self._unhidden_s))

    @cached_property
    def timeline(self) -> Timeline:
        """The simulated step, with its memory over time."""
        return replace(self._run, costs=simulator_costs.with_bytes(self, self._run.costs))

    @property
    def is_simulated(self) -> bool:
        """Whether `step_s` is simulated. Else it is the closed form: for a layout without a pipeline or with too many
        operations, for links that differ while the nodes of the stages are unknown, and for all techniques but
        vocabulary parallelism, which is the only one that the simulator knows."""
        techniques_known = len(self.resolved.workload.techniques) <= (self.ledger.vocabulary is not None)
        links_known = self.resolved.cluster.links is None or self.resolved.nodes is not None
        small_enough = self.layout.pp > 1 and self.num_operations <= MOST_OPERATIONS
        return self.simulate and techniques_known and links_known and small_enough

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step."""
        if not self.is_simulated:
            return self.closed_s
        beside_s = sum(self._beside_makespan_s.values())
        return (self._run.makespan_s + beside_s) * (1.0 + stragglers.straggler_share(self.ledger))

    @cached_property
    def terms(self) -> dict[str, float]:
        """Seconds of each term (step.TERMS); they sum to `step_s`. In a simulated step, messages and collectives are
        the seconds that they add to the makespan. The bubble is the remainder: the time that the slowest device is idle
        in a pipeline without messages."""
        terms = {name: float(seconds[0]) for name, seconds in self.estimate.terms.items()}
        if not self.is_simulated:
            return terms
        pipeline = replace(self.costs, reduce_s=(), gather_s=(), optimizer_s=())
        compute = replace(pipeline, forward_hop_s=(), backward_hop_s=(), forward_link_s=(), backward_link_s=())
        pipeline_s, compute_s = (simulator.simulate(self.schedule, costs).makespan_s for costs in (pipeline, compute))
        terms["pp"] = max(pipeline_s - compute_s, 0.0)
        terms["optimizer"] = max(self.costs.optimizer_s)
        terms["dp"] = max(self._run.makespan_s - pipeline_s - terms["optimizer"], 0.0)
        for name, seconds in self._beside_makespan_s.items():
            terms[name] = seconds + (terms[name] if name in SIMULATED_TERMS else 0.0)
        share = stragglers.straggler_share(self.ledger)
        terms["stragglers"] = self.step_s * share / (1.0 + share)
        if self.ledger.vocabulary is not None:  # waiting for it is part of the bubble
            beside_s = vocabulary_overhead_s(self.ledger, self.resolved.rates)
            terms["vocabulary"] = self.num_micro_batches * float(beside_s[0])
        terms["bubble"] = 0.0
        terms["bubble"] = max(self.step_s - sum(terms.values()), 0.0)
        return terms

    @property
    def _beside_makespan_s(self) -> dict[str, float]:
        """Seconds of each term that a simulated step has beside the makespan."""
        terms = self.estimate.terms
        beside_s = {name: float(seconds[0]) for name, seconds in terms.items() if name not in SIMULATED_TERMS}
        return {**beside_s, **self.once_terms, "dp": self._contention_s}

    @cached_property
    def once_terms(self) -> dict[str, float]:
        """Seconds of each of step.ONCE_TERMS."""
        return {name: float(s[0]) for name, s in step.once_terms(self.ledger, self.resolved.rates).items()}

    @cached_property
    def _contention_s(self) -> float:
        """Seconds by which hidden data-parallel communication slows compute, as the closed form has them: the simulator
        runs hidden traffic for free."""
        ledger, rates, slowest = self.estimate.ledger, self.estimate.rates, self.estimate.slowest
        # Over islands the estimate has some of the stages only.
        stage = self.stage if ledger is self.ledger else stage_seconds(ledger, rates)
        passes = stage.forward[slowest, 0], stage.backward[slowest, 0], stage.used[:, slowest, 0]
        without = replace(rates, stack=replace(rates.stack, contention=0.0))
        with_s, without_s = (exposed_dp_s(ledger, of, *passes) for of in (rates, without))
        return float(with_s[0] - without_s[0])

    @cached_property
    def _unhidden_s(self) -> tuple[float, ...]:
        """[device] seconds of data-parallel communication that the stack hides behind nothing."""
        shares = simulator_costs.hiding_shares(self.resolved.stack)
        shown_s = np.zeros(len(self.schedule.first) - 1)
        for share, seconds in zip(shares, (self.costs.gather_s, self.costs.reduce_s), strict=True):
            np.add.at(shown_s, self.schedule.device, (1.0 / share - 1.0) * np.array(seconds))
        return tuple(shown_s.tolist())
