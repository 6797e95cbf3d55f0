"""The Plan document out of its parts, and the certificate of a search."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._version import __version__
from ...cost_models.quantities.flops import step_at_peak_s
from ...cost_models.specs.documents import spec_to_dict
from ...profiles.cluster.document import cluster_to_dict
from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.certificate import Certificate, SpaceCount, TargetComparison
from ..document.plan import Plan, Profile
from ..evaluation import interruptions, intervals
from ..request.load import request_to_dict
from ..request.resolve import Resolved
from ..search.outcome import SearchOutcome
from ..space.tree import Count
from ..stages.problem import GAP
from .other_targets import fastest_outside


def build_plan(
    resolved: Resolved, listed: tuple[Candidate, ...], certificate: Certificate, count: Count,
    by_target: TargetComparison | None = None,
) -> Plan:  # fmt: skip
    """The document of a plan. listed: its layouts, best first; count: what became of all others; by_target: the best of
    each target, where they were compared."""
    return Plan(
        tool={"name": "meshwright", "version": __version__},
        request_sha256=resolved.request.sha256,
        request=request_to_dict(resolved.request),
        origins=resolved.request.origins,
        profiles=tuple(Profile(name=name, sha256=digest) for name, digest in resolved.profiles.items()),
        candidates=listed,
        ranking_lead=rounded(intervals.ranking_lead()),
        certificate=certificate,
        outside=fastest_outside(by_target),
        by_target=by_target,
        resolved=resolved_part(resolved),
        rejected={"memory": count.out_of_memory, **count.ruled_out},
        warnings=tuple(warning.text for warning in resolved.warnings),
    )


def resolved_part(resolved: Resolved) -> dict[str, Any]:
    """`resolved` of a plan: everything that its reader would otherwise have to look up."""
    return {
        "model": rounded(spec_to_dict(resolved.model)),
        "cluster": rounded(cluster_to_dict(resolved.cluster)),
        "workload": rounded(spec_to_dict(resolved.workload)),
        "stack": rounded(spec_to_dict(resolved.stack)),
        "switches": dict(resolved.switches.settings),
        "target": resolved.target.name,
        "memory_bytes": rounded(resolved.memory_bytes),
        "headroom_bytes": rounded(resolved.headroom_bytes),
        **rounded(interruptions.spot_part(resolved)),
    }


def certify(resolved: Resolved, outcome: SearchOutcome) -> Certificate:
    """The certificate of an exhaustive search: it is exact unless it was stopped."""
    best, bound = outcome.top.rows[0][0], outcome.lower_bound
    minimises_time = resolved.workload.objective != "memory"
    if minimises_time:
        peak = resolved.problem.num_gpus * resolved.rates.peak_flops_per_s
        bound = max(bound, step_at_peak_s(resolved.problem, peak))
    gap = max(0.0, 1.0 - bound / best) if np.isfinite(bound) else 0.0
    return Certificate(
        space=outcome.count.to_space_count(resolved.space.axis_sizes()),
        lower_bound_s=rounded(min(bound, best)) if minimises_time else None,
        gap=rounded(gap),
        proven=outcome.stopped is None,
        stopped=outcome.stopped,
    )


def certify_to_gap(space: SpaceCount, best_s: float, bound_s: float, stopped: str | None) -> Certificate:
    """The certificate of a search with integer programs: a relative gap that the solver may leave counts as proven."""
    gap = max(0.0, 1.0 - bound_s / best_s)
    return Certificate(
        space=space,
        lower_bound_s=rounded(bound_s),
        gap=rounded(gap),
        proven=stopped is None and gap <= GAP * (1 + 1e-9),
        stopped=stopped,
    )
