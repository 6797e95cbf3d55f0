"""A published run as a request that fixes every field of its layout and every switch of its software.

The closed form of that plan is what `validate` says of the run: both prices come from one model. (`plan` simulates
pipelines as well, by which most runs differ by less than 0.7 %.) A run whose plan
differs has something that no field of a request states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...cost_models.problem import Problem
from ...cost_models.specs.cluster import ClusterSpec
from ...errors import MeshwrightError
from ...profiles.cluster.fabric import NETWORKS
from ...profiles.io import registry
from ...profiles.model.load import catalogued
from ..request.load import Request, load_request
from ..switches.base import Situation
from ..switches.choices import as_they_are
from ..switches.registry import SWITCHES
from .row import Case
from .stack_features import capacity_of, settings_of
from .validate import predict

# A plan and a run whose steps differ by less have one price.
EQUAL = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOutcome:
    """Both prices of a run."""

    id: str
    # Of `validate`, seconds.
    run_step_s: float
    # Of `plan`, seconds; None where it has none.
    plan_step_s: float | None
    # Why it has none.
    refused: str | None = None

    @property
    def difference(self) -> float:
        """The plan's step over the run's, less 1; 1 where there is no plan."""
        return 1.0 if self.plan_step_s is None else self.plan_step_s / self.run_step_s - 1.0

    @property
    def agrees(self) -> bool:
        return abs(self.difference) < EQUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSummary:
    """The number of runs with equal prices, and the differences of the others."""

    rows: int
    equal: int
    # 1 where a run has no plan.
    largest_difference: float
    # Id -> difference, of the others.
    differ: dict[str, float]
    # Id -> reason, of runs without a plan.
    refused: dict[str, str]

    @classmethod
    def of(cls, outcomes: Sequence[PathOutcome]) -> PathSummary:
        return cls(
            rows=len(outcomes), equal=sum(outcome.agrees for outcome in outcomes),
            largest_difference=max((abs(outcome.difference) for outcome in outcomes), default=0.0),
            differ={o.id: o.difference for o in outcomes if not o.agrees and o.refused is None},
            refused={o.id: o.refused for o in outcomes if o.refused is not None},
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def compared(case: Case, target: str, step_of: Callable[[Request], float]) -> PathOutcome:
    """Both prices of a run. step_of: seconds, by the closed form, of the best layout that `plan` finds for a
    request."""
    run_step_s = predict(case).step_s
    try:
        plan_step_s = step_of(request_of(case, target))
    except MeshwrightError as error:
        return PathOutcome(id=case.id, run_step_s=run_step_s, plan_step_s=None, refused=str(error))
    return PathOutcome(id=case.id, run_step_s=run_step_s, plan_step_s=plan_step_s)


def request_of(case: Case, target: str) -> Request:
    """The request for `target` that leaves a plan nothing to choose. Raises MeshwrightError for what it cannot state.
    """
    model = catalogued(case.model.name)
    if model is None:
        raise MeshwrightError(f"the catalogue has no {case.model.name}")
    predicts = {} if case.model.mtp_layers == model.mtp_layers else {"mtp_layers": case.model.mtp_layers}
    return load_request(None, {
        "model": model.name, "cluster": _cluster(case.cluster), "target": target, "stack": case.stack_name,
        "seq_len": case.workload.seq_len, "global_batch": case.workload.global_batch,
        "precision": case.workload.precision, "expert_capacity_factor": capacity_of(case.features),
        "fix": _pins(case, target), "stages": None if case.chunks is None else list(case.chunks), **predicts,
    })  # fmt: skip


def _pins(case: Case, target: str) -> dict[str, Any]:
    """Every field of the layout, and every switch of the target: as the run states it, else as its software has it."""
    problem = Problem(case.model, case.workload, case.stack, case.cluster.num_gpus, case.cluster.gpus_per_node)
    stated = {name: value for name, value in settings_of(case.features).items()
              if not SWITCHES[name].axis and SWITCHES[name].concerns(problem)}  # fmt: skip
    settings = as_they_are(target, Situation(problem=problem, cluster=case.cluster), stated)
    layout = {name: value for name, value in case.layout.as_dict().items()
              if name not in SWITCHES or SWITCHES[name].concerns(problem)}  # fmt: skip
    return {**layout, "precision": case.workload.precision, **settings}


def _cluster(cluster: ClusterSpec) -> Mapping[str, Any]:
    """The description of a cluster file."""
    (group,) = cluster.groups
    inside = [level.size for level in cluster.levels if level.kind not in NETWORKS]
    network = cluster.levels[-1]
    node: dict[str, Any] = {"count": group.num_nodes, "gpus_per_node": group.gpus_per_node}
    if (usual := registry.gpu_entry(group.gpu.name).usual_node) is not None:
        node["node"] = usual
    else:
        node["gpu"] = group.gpu.name
    if (domain := max(inside, default=1)) > group.gpus_per_node:
        node["domain"] = domain
    if network.kind in NETWORKS:
        node |= {"nics": group.gpus_per_node, "nic_bandwidth": f"{network.bw_bytes_per_s * 8e-9:g} Gb/s",
                 "network": network.kind}  # fmt: skip
    return {"name": cluster.name, "groups": [node]}
