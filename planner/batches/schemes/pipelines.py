"""Pipelines without context parallelism, of every tensor-parallel degree and number of stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....cost_models.layouts import RECOMPUTE_MODES
from ..costs import GroupCosts, powers_of_two
from ..ledger_costs import Family, Priced, ledger_costs


@dataclass(frozen=True, eq=False)
class Shape:
    """A pipeline: `pp` stages of `tp` GPUs each."""

    family: Family
    costs: GroupCosts  # of one degree, 1: a rank is a pipeline

    @property
    def num_gpus(self) -> int:
        return self.family.tp * self.family.pp

    @property
    def words(self) -> str:
        """`tp4 pp2`."""
        return f"tp{self.family.tp} pp{self.family.pp}"

    def step_s(self, micro_batches_s: Sequence[float]) -> float:
        """Seconds of a step with micro-batches of so many seconds on a stage."""
        return self.costs.once_s + sum(micro_batches_s) + self.costs.fill * max(micro_batches_s, default=0.0)


def shapes(priced: Priced, recompute: Sequence[str] = RECOMPUTE_MODES) -> Iterator[Shape]:
    """The pipelines of a cluster, with each kind of recomputation. Weights are whole (ZeRO-1)."""
    problem = priced.problem
    for tp in powers_of_two(problem.gpus_per_node).tolist():
        for pp in powers_of_two(problem.num_gpus // tp).tolist():
            if pp > problem.model.num_layers:
                break
            for mode in recompute:
                family = Family(tp, "ring", mode, zero=1, pp=pp)
                if costs := ledger_costs(priced, family):
                    yield Shape(family, costs.up_to_degree(1))
