"""What `import meshwright` offers: plan, evaluate, load_plan. The command line calls the same functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..cost_models.layouts import parse
from ..cost_models.specs import ClusterSpec
from ..errors import InputError, SearchInterrupted
from ..profiles.cluster import cluster_to_dict
from .candidates import candidates
from .constraints import violations
from .failures import does_not_fit, no_legal_layout
from .plan import Candidate, Certificate, Outside, Plan, Profile, SpaceCount, load_plan, rounded
from .request import Request, load_request, request_to_dict
from .resolve import Resolved, resolve
from .search.exhaustive import Outcome
from .space import Count

__all__ = ["evaluate", "load_plan", "plan"]

# A faster layout outside the target is worth a line from this share on.
_WORTH_SAYING = 0.005
Progress = Callable[[float, float, str], None]


def plan(
    request: Request | Path | str | None = None,
    *,
    progress: Progress | None = None,
    time_limit_s: float | None = None,
    **asked: Any,
) -> Plan:
    """The fastest layout that fits, the runners-up, and the proof.

    `request`: a Request or a file; `asked`: the fields of a request by their flat names (model, cluster, gpu, gpus,
    seq_len, global_batch, precision, optimizer, target, stack, fix, top, ...). Raises InputError (exit 2) for a wrong
    request and NoFeasibleLayoutError (exit 1) if nothing is legal or nothing fits. Ctrl-C returns the best so far with
    `certificate.stopped`.
    """
    found = resolve(_request(request, asked))
    outcome = _search(found, progress, time_limit_s)
    if not outcome.found.rows:
        if outcome.stopped:
            raise SearchInterrupted(f"stopped ({outcome.stopped}) before any layout was found")
        legal = outcome.count.total - sum(outcome.count.ruled_out.values())
        raise does_not_fit(found, outcome.count) if legal else no_legal_layout(found, outcome.count)
    listed = candidates(found, [layout for _, _, layout in outcome.found.rows])
    outside = None if outcome.stopped else _outside(found, outcome)
    return _plan(found, listed, _certificate(found, outcome), outside, outcome.count)


def evaluate(request: Request | Path | str | None, layout_id: str, **asked: Any) -> Plan:
    """The plan that has just the layout `layout_id`, whether it fits or not.

    Raises InputError with everything that makes the layout illegal, each with its arithmetic.
    """
    found = resolve(_request(request, asked))
    layout = parse(layout_id)
    if problems := violations(layout, found.problem):
        raise InputError(
            "\n".join(problems), hint="leave one degree out and it is derived: `plan --fix tp=4 --fix pp=4`"
        )
    listed = candidates(found, [layout])
    count = Count(total=1, priced=1)
    proof = Certificate(space=_space_count(count, {}), lower_bound_s=None, gap=None, proven=False)
    result = _plan(found, listed, proof, None, count)
    if listed[0].device_bytes > found.memory_bytes:
        need, has = listed[0].device_bytes / 2**30, found.memory_bytes / 2**30
        more = (*result.warnings, f"{layout_id} does not fit: it needs {need:.1f} GiB of {has:.1f}")
        return result.model_copy(update={"warnings": more})
    return result


def _request(request: Request | Path | str | None, asked: Mapping[str, Any]) -> Request:
    if isinstance(request, Request):
        if asked:
            raise InputError(
                f"a Request and {', '.join(asked)}: give one of them", hint="or `load_request(path, overrides)`"
            )
        return request
    return load_request(request, asked)


def _search(found: Resolved, progress: Progress | None, time_limit_s: float | None) -> Outcome:
    started = time.monotonic()

    def report(count: Count, best: float) -> None:
        if progress is not None:
            note = f"best {best:.4g}" if np.isfinite(best) else ""
            progress(float(count.accounted), float(count.total), note)

    def late() -> bool:
        return time_limit_s is not None and time.monotonic() - started > time_limit_s

    objective = "memory" if found.workload.objective == "memory" else "step"  # one cluster: cost orders as time
    return found.search(
        found.space, top=found.request.top, objective=objective, progress=report, should_stop=late
    ).run()


def _outside(found: Resolved, outcome: Outcome) -> Outside | None:
    """The fastest layout that the target cannot run, if it beats the plan by enough to say so."""
    if found.target.name == "any" or found.workload.objective == "memory":
        return None
    best = outcome.found.rows[0][0]
    space = found.space_under(found.fixes)
    other = found.search(space, incumbent=best * (1 - _WORTH_SAYING)).run()
    rows = [row for row in other.found.rows if row[0] < best * (1 - _WORTH_SAYING)]
    if not rows:
        return None
    who = candidates(found, [rows[0][2]])[0]
    able = tuple(sorted(name for name, reason in who.targets.items() if reason is None))
    return Outside(layout_id=rows[0][1], step_s=who.step_s, targets=able)


def _certificate(found: Resolved, outcome: Outcome) -> Certificate:
    best = outcome.found.rows[0][0]
    bound = outcome.lower_bound
    gap = max(0.0, 1.0 - bound / best) if np.isfinite(bound) else 0.0
    is_time = found.workload.objective != "memory"
    return Certificate(
        space=_space_count(outcome.count, _by_axis(found)),
        lower_bound_s=rounded(min(bound, best)) if is_time else None,
        gap=rounded(gap), proven=outcome.stopped is None, stopped=outcome.stopped,
    )  # fmt: skip


def _space_count(count: Count, by_axis: dict[str, int]) -> SpaceCount:
    return SpaceCount(
        total=count.total, by_axis=by_axis, ruled_out=dict(sorted(count.ruled_out.items())), dominated=count.dominated,
        out_of_memory=count.out_of_memory, bounded=count.bounded, priced=count.priced, unvisited=count.unvisited,
    )  # fmt: skip


def _by_axis(found: Resolved) -> dict[str, int]:
    """How many values each axis takes before any rule."""
    return found.space.axis_sizes()


def _plan(
    found: Resolved, listed: tuple[Candidate, ...], certificate: Certificate, outside: Outside | None, count: Count
) -> Plan:
    from .._version import __version__

    return Plan(
        tool={"name": "meshwright", "version": __version__},
        request_sha256=found.request.sha256,
        request=request_to_dict(found.request),
        profiles=tuple(Profile(name=name, sha256=digest) for name, digest in found.profiles.items()),
        candidates=listed, certificate=certificate, outside=outside,
        resolved=_resolved(found), rejected={"memory": count.out_of_memory, **count.ruled_out},
        warnings=found.warnings,
    )  # fmt: skip


def _resolved(found: Resolved) -> dict[str, Any]:
    from dataclasses import asdict

    cluster: ClusterSpec = found.cluster
    stack = asdict(found.stack)
    return {
        "model": rounded(asdict(found.model)), "cluster": rounded(cluster_to_dict(cluster)),
        "workload": rounded(asdict(found.workload)), "stack": rounded(stack), "target": found.target.name,
        "memory_bytes": rounded(found.memory_bytes),
    }  # fmt: skip
