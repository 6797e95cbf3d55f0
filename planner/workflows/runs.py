"""Measured steps of post-training as runs that constants price."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...profiles.stack.post_training import PostTrainingConstants
from .graph import graph_of
from .meshes import Mesh, sub_meshes
from .prices import Prices
from .problem import RlProblem
from .resolve import rl_problem_of
from .row import RlCase
from .search import PlacementResult, price


@dataclass(frozen=True)
class RlRun:
    """A measured step, and the parts of its prediction."""

    case: RlCase
    prices: Prices
    trainer: int  # GPUs that train

    @classmethod
    def of(cls, case: RlCase) -> RlRun | None:
        """None where the published degrees fit no split of the GPUs."""
        rl = replace(rl_problem_of(case.request)[0], fixed=case.fixed, switches=case.switches,
                     ray_engine=case.ray_engine, row_tokens=case.row_tokens,
                     memory_share=case.memory_share)  # fmt: skip
        prices = Prices(rl)
        runs = (cls(case, prices, trainer) for trainer in _splits(case, rl))
        return next((run for run in runs if run._priced(prices) is not None), None)

    @property
    def lag(self) -> int:
        return self.prices.rl.work.lag

    def step_s(self, constants: PostTrainingConstants) -> float:
        """Seconds of the step, predicted; infinite where a call does not fit."""
        result = self._priced(self.prices.under(constants))
        return float("inf") if result is None else result.step_s

    def _priced(self, prices: Prices) -> PlacementResult | None:
        return placed(prices, self.trainer)


def placed(prices: Prices, trainer: int) -> PlacementResult | None:
    """The step with all calls but generation on the first `trainer` GPUs. The engine has the others, if any."""
    rl = prices.rl
    gpus, graph, lag = rl.cluster.num_gpus, graph_of(rl.work), rl.work.lag
    engine = Mesh(trainer, gpus - trainer) if trainer < gpus else Mesh(0, gpus)
    placement = {call.name: engine if call.kind == "generate" else Mesh(0, trainer) for call in graph}
    sizes = sorted({mesh.gpus for mesh in sub_meshes(Mesh(0, trainer), rl.cluster.gpus_per_node)})
    return price(prices, graph, placement, sizes, rl.resolved.budget_bytes, lag)


def _splits(case: RlCase, rl: RlProblem) -> list[int]:
    """GPUs that train: those of the row, else whole nodes, the nearest to half first."""
    if case.trainer_gpus is not None or not rl.work.lag:
        return [case.trainer_gpus or case.gpus]
    nodes = range(rl.cluster.gpus_per_node, case.gpus, rl.cluster.gpus_per_node)
    return sorted(nodes, key=lambda gpus: (abs(2 * gpus - case.gpus), -gpus))
