"""What `import meshwright` offers: plan, evaluate, load_plan. The command line calls the same functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from ..cost_models import units
from ..cost_models.layouts import Layout, parse
from ..cost_models.specs.cluster import ClusterSpec
from ..cost_models.specs.documents import spec_to_dict
from ..errors import InputError, MeshwrightError, SearchInterrupted
from ..profiles.cluster.build import cluster_to_dict
from .document.plan import Candidate, Certificate, Outside, Plan, Profile, load_plan, rounded
from .evaluation import intervals
from .evaluation.candidates import candidates
from .evaluation.infeasible import does_not_fit, no_legal_layout
from .evaluation.staged import Staged
from .heterogeneous import candidates as heterogeneous
from .request.keywords import RequestFields
from .request.load import Request, load_request, request_to_dict
from .request.resolve import Resolved, resolve
from .search.executors import Executor, opened
from .search.exhaustive import SearchOutcome
from .search.run import search_of
from .search.tasks import Task, check_time_limit, in_order
from .search.top_k import FAMILY
from .space.rules import violations
from .space.tree import Count, Space
from .targets.registry import able_to_build

if TYPE_CHECKING:
    from .stages.finalists import Finalists

__all__ = ["evaluate", "load_plan", "plan"]

# A faster layout outside the target is worth a line from this share on.
_WORTH_SAYING = 0.005
_SIMULATED_DIFFERS = 0.02
_FAMILIES = 12  # finalists that are simulated and split
_EQUAL = 1e-9
Progress = Callable[[float, float, str], None]


def plan(
    request: Request | Path | str | None = None,
    *,
    progress: Progress | None = None,
    time_limit_s: float | None = None,
    stages: Literal["even", "own"] | None = None,
    layers: Literal["alike", "own"] = "alike",
    seed: int = 0,
    jobs: int = 1,
    executor: str | None = None,
    allow_techniques: Sequence[str] = (),
    **request_fields: Unpack[RequestFields],
) -> Plan:
    """The fastest layout that fits, the runners-up, and the proof.

    `stages`: `even` divides the layers evenly, by the closed form; `own` simulates the finalists and gives the best
    pipelines stages of their own (slower); None: `even`, but groups of nodes that are not alike are planned one by one,
    which `even` takes all for the weakest. `layers`: `own` also looks for a plan that gives every layer a strategy of
    its own (planner/layerwise/candidate.py). `request`: a Request or a file; `request_fields`: the fields of a request
    by their flat names, each described in `RequestFields` (planner/request/keywords.py).
    Raises InputError (exit 2) for a wrong request and NoFeasibleLayoutError (exit 1) if nothing is legal or nothing
    fits. Ctrl-C and `time_limit_s` return the best so far with `certificate.stopped`.
    seed: of the orders of nodes that are tried where their links differ; jobs, executor: processes, or the cluster
    (`dask://host:port`), that compare other targets; the plan is the same whatever they are. allow_techniques: of
    which the search uses those, perhaps none, that make the best layout (names with knobs as in `technique`, or `all`).
    """
    check_time_limit(time_limit_s)
    with opened(jobs, executor) as pool:
        watch = _Watch(progress, time_limit_s, pool)
        if layers == "own":
            return _with_own_layers(resolve(_request(request, request_fields)), watch, stages, allow_techniques)
        if allow_techniques:
            return _with_techniques(_request(request, request_fields), allow_techniques, watch, stages, seed)
        return _planned(resolve(_request(request, request_fields)), watch, stages, seed)


def _planned(resolved: Resolved, watch: _Watch, stages: str | None, seed: int) -> Plan:
    own = stages == "own"
    if stages is None and heterogeneous.applies(resolved):
        return _by_islands(resolved, watch)
    if own and resolved.workload.objective == "memory":
        raise InputError("stages of their own save time, and the objective is memory", hint="leave one of them out")
    if own and (names := [name for name, _ in resolved.workload.techniques]):
        hint = "leave out `--stages own`"
        raise InputError(f"stages of their own are simulated, and no simulation knows {', '.join(names)}", hint=hint)
    if own and resolved.cluster.links is not None:
        raise InputError("stages of their own where links differ are not planned yet", hint="leave out `--stages own`")
    if resolved.cluster.links is not None:
        return _with_placed_nodes(resolved, watch, seed)
    outcome = _best_of_families(resolved, watch, _FAMILIES if own else 0)
    return _with_own_stages(resolved, outcome, watch) if own else _with_even_stages(resolved, outcome, watch)


def _with_techniques(
    request: Request, allowed: Sequence[str], watch: _Watch, stages: str | None, seed: int
) -> Plan:
    """The plan under the best set of the allowed techniques."""
    from .search.techniques import with_techniques

    if stages == "own":
        raise InputError("stages of their own are simulated, and no simulation knows techniques",
                         hint="leave out `--stages own`")  # fmt: skip
    return with_techniques(request, allowed, lambda found: _search(found, found.space, watch, top=1),
                           lambda chosen: _planned(resolve(chosen), watch, stages, seed))  # fmt: skip


def _with_even_stages(resolved: Resolved, outcome: SearchOutcome, watch: _Watch) -> Plan:
    """What the search found, by the closed form."""
    staged = [Staged.of(resolved, layout) for _, _, layout in outcome.top.rows]
    listed, best_s = candidates(resolved, staged), outcome.top.rows[0][0]
    outside = None if outcome.stopped else _outside(resolved, best_s, best_s, watch)
    result = _plan(resolved, listed, _certificate(resolved, outcome), outside, outcome.count)
    doubts = [] if resolved.workload.objective == "memory" else _where_the_simulator_differs(staged)
    return watch.warn(result.with_warnings(doubts))


def _where_the_simulator_differs(staged: Sequence[Staged]) -> list[str]:
    """A word where the best layout by the closed form takes longer in the simulator, and what is fastest there."""
    first = replace(staged[0], simulate=True)
    if first.step_s <= first.closed_s * (1 + _SIMULATED_DIFFERS):
        return []
    steps = [first.step_s, *(replace(one, simulate=True).step_s for one in staged[1:])]
    fastest = int(np.argmin(steps))
    said = f"simulated operation by operation, layout 1 takes {first.step_s:.3g} s (closed form {first.closed_s:.3g} s)"
    other = f", layout {fastest + 1} {steps[fastest]:.3g} s" if fastest else ""
    return [f"{said}{other}: `--stages own` ranks by simulation"]


def _with_own_stages(resolved: Resolved, outcome: SearchOutcome, watch: _Watch) -> Plan:
    """The finalists of the search, simulated and split."""
    from .stages.finalists import Finalists

    finalists = Finalists(resolved, watch.left_s)
    finalists.run([layout for _, _, layout in outcome.top.rows], split=not outcome.stopped)
    listed = candidates(resolved, finalists.listed)
    best_s, stopped = listed[0].step_s, outcome.stopped or finalists.stopped
    outside = None if stopped else _outside(resolved, outcome.top.rows[0][0], best_s, watch, simulate=True)
    certificate = _certificate_of_splits(resolved, outcome, finalists, best_s)
    result = _plan(resolved, listed, certificate, outside, outcome.count)
    return watch.warn(result.with_warnings(finalists.notes))


def _by_islands(resolved: Resolved, watch: _Watch) -> Plan:
    """Where groups of nodes are not alike: each is priced as what it is."""
    search, unusable = heterogeneous.searched(resolved, watch.left_s, watch.report)
    if not search.choices:
        raise heterogeneous.nothing_fits(resolved, search)
    listed = heterogeneous.listed(resolved, search)
    even = heterogeneous.even_way(resolved, search, watch.late)
    best_s, bound = listed[0].step_s, min(search.lower_bound_s, listed[0].step_s)
    proof = Certificate(
        space=search.count.told(resolved.space.axis_sizes(), search.priced), lower_bound_s=rounded(bound),
        gap=rounded(1.0 - bound / best_s), stopped=search.stopped,
        proven=search.stopped is None and 1.0 - bound / best_s <= 1e-3 * (1 + 1e-9),
    )  # fmt: skip
    # Nothing here is planned as if all groups were alike, so no loss of such a plan is worth a warning.
    warnings = tuple(warning for warning in resolved.warnings if warning.code != "uniform-plan")
    result = _plan(replace(resolved, warnings=warnings), listed, proof, None, search.count)
    result = result.with_warnings((*unusable, *search.notes), search.cut_short)
    return result.model_copy(update={"ways": heterogeneous.ways(resolved, search, even)})


def _with_placed_nodes(resolved: Resolved, watch: _Watch, seed: int) -> Plan:
    """Where links between nodes differ: the search gives lower bounds, which placed prices are held against."""
    from .evaluation.network import optimistic
    from .placement.place import (
        FINALISTS,
        placed,  # not above: networkx would slow the start of every plan
    )

    outcome = _best_of_families(optimistic(resolved), watch, FINALISTS)
    rows = outcome.top.rows
    listed = placed(resolved, [row[2] for row in rows], [row[0] for row in rows], resolved.request.top, seed)
    proof = _certificate(resolved, outcome)
    if proof.lower_bound_s is not None:
        gap = max(0.0, 1.0 - proof.lower_bound_s / listed[0].step_s)
        proof = proof.model_copy(update={"gap": rounded(gap), "proven": proof.proven and gap < _EQUAL})
    result = _plan(resolved, listed, proof, None, outcome.count)
    return watch.warn(result)


def _with_own_layers(resolved: Resolved, watch: _Watch, stages: str | None, allowed: Sequence[str]) -> Plan:
    """What the search found, and the best plan with a strategy for every layer, where that is not one for all."""
    from .layerwise.candidate import added, best_layers, check

    techniques = bool(allowed or resolved.workload.techniques)
    check(resolved, own_stages=stages == "own", techniques=techniques, islands=heterogeneous.applies(resolved))
    plan = _with_even_stages(resolved, _best_of_families(resolved, watch), watch)
    return added(resolved, plan, best_layers(resolved, watch.late))


def _placed_alone(resolved: Resolved, layout: Layout) -> tuple[Candidate, ...]:
    from .placement.place import place

    return (place(resolved, layout),)


def evaluate(request: Request | Path | str | None, layout_id: str, **request_fields: Unpack[RequestFields]) -> Plan:
    """The plan that has just the layout `layout_id`, whether it fits or not. `request`, `request_fields`: as in `plan`.

    Raises InputError with everything that makes the layout illegal, each with its arithmetic.
    """
    return evaluate_resolved(resolve(_request(request, request_fields)), layout_id)


def evaluate_resolved(resolved: Resolved, layout_id: str) -> Plan:
    """As `evaluate`, of a request that is resolved, and perhaps changed since."""
    layout = parse(layout_id)
    if problems := violations(layout, resolved.problem):
        derive = "leave one degree out and it is derived: `plan --fix tp=4 --fix pp=4`"
        choose = "leave the field out and it is chosen: `plan --fix` with the others"
        raise InputError("\n".join(problems), hint=derive if layout.num_gpus != resolved.problem.num_gpus else choose)
    on_equal_links = resolved.cluster.links is None
    listed = candidates(resolved, [Staged.of(resolved, layout)]) if on_equal_links else _placed_alone(resolved, layout)
    count = Count(total=1, priced=1)
    proof = Certificate(space=count.told(), lower_bound_s=None, gap=None, proven=False)
    result = _plan(resolved, listed, proof, None, count)
    return result.with_warnings(overflows(resolved, listed[0]))


def overflows(resolved: Resolved, candidate: Candidate) -> list[str]:
    """Why a layout does not fit: more than a GPU may use, or than there is of host memory. Empty if it fits."""
    on_host, more = max(stage.host_bytes for stage in candidate.memory), []
    if candidate.device_bytes > resolved.memory_bytes:
        need, has = units.gib(candidate.device_bytes), units.gib(resolved.memory_bytes)
        more.append(f"{candidate.layout_id} does not fit: it needs {need} GiB of {has}")
    if on_host > resolved.host_bytes:
        need, has = units.gib(on_host), units.gib(resolved.host_bytes)
        more.append(f"{candidate.layout_id} does not fit in host memory: it needs {need} GiB per GPU of {has}")
    return more


def _request(request: Request | Path | str | None, fields: Mapping[str, Any]) -> Request:
    if not isinstance(request, Request):
        return load_request(request, fields)
    if fields:
        hint = "or `load_request(path, overrides)`"
        raise InputError(f"a Request and {', '.join(fields)}: give one of them", hint=hint)
    return request


class _Watch:
    """Progress and the time limit, shared by all searches of one call, and the pool for searches that can run apart."""

    def __init__(self, progress: Progress | None, time_limit_s: float | None, pool: Executor) -> None:
        self.pool = pool
        self.cuts: list[tuple[str, str]] = []  # (cause, comparison that it cut), though the best layout is proven
        self._progress, self._limit_s, self._started = progress, time_limit_s, time.monotonic()

    def report(self, count: Count, best: float) -> None:
        if self._progress is not None:
            note = f"best {best:.4g}" if np.isfinite(best) else ""
            self._progress(float(count.accounted), float(count.total), note)

    def left_s(self) -> float:
        return np.inf if self._limit_s is None else self._limit_s - (time.monotonic() - self._started)

    def late(self) -> bool:
        return self.left_s() <= 0

    def warn(self, result: Plan) -> Plan:
        """`result` with a warning for each comparison that was cut."""
        texts = [f"{cause} before {comparison}" for cause, comparison in self.cuts]
        return result.with_warnings(texts, [cause for cause, _ in self.cuts])


def _search(resolved: Resolved, space: Space, watch: _Watch, **options: Any) -> SearchOutcome:
    objective = "memory" if resolved.workload.objective == "memory" else "step"  # one cluster: cost orders as time
    options = {"objective": objective, "progress": watch.report, "should_stop": watch.late, **options}
    return search_of(resolved, space, **options).run()


def _best_of_families(resolved: Resolved, watch: _Watch, least: int = 0) -> SearchOutcome:
    """The best layout of each family, as many as asked for or `least`; where there are fewer families than asked for,
    the best of all fill the list. Raises NoFeasibleLayoutError if there is none, or SearchInterrupted."""
    top = max(resolved.request.top, least)
    outcome = _search(resolved, resolved.space, watch, top=top, family=FAMILY)
    if not outcome.top.rows:
        raise _nothing_found(resolved, outcome, watch)
    missing = resolved.request.top - len(outcome.top.rows)
    if outcome.stopped or missing <= 0:
        return outcome
    every = _search(resolved, resolved.space, watch, top=top)
    if every.stopped:
        watch.cuts.append((every.stopped, "the list was filled up"))
        return outcome
    twins = [row for row in every.top.rows if row not in outcome.top.rows]
    every.top.rows = sorted(outcome.top.rows + twins[:missing], key=lambda row: row[:2])
    return every


def _nothing_found(resolved: Resolved, outcome: SearchOutcome, watch: _Watch) -> MeshwrightError:
    """Why the search came back with nothing."""
    if outcome.stopped:
        return SearchInterrupted(f"stopped ({outcome.stopped}) before any layout was found")
    if outcome.count.total == sum(outcome.count.ruled_out.values()):
        return no_legal_layout(resolved, outcome.count)
    return does_not_fit(resolved, outcome.count, watch.late)


def _outside(
    resolved: Resolved, closed_s: float, best_s: float, watch: _Watch, *, simulate: bool = False
) -> Outside | None:
    """The fastest layout that another target runs with its own software, if it beats the plan by enough to say so: by
    the closed form the plan's best of it, closed_s, and as the plan prices (simulated or not) the plan's best, best_s.
    """
    unasked = resolved.target.name == "any" or resolved.workload.objective == "memory" or resolved.cluster.gpu.plan_only
    if unasked or watch.cuts:
        return None
    incumbent, winner = min(closed_s, best_s) * (1 - _WORTH_SAYING), None
    others = [name for name in able_to_build(resolved.model, resolved.workload) if name != resolved.target.name]
    ends_s = time.time() + watch.left_s()
    tasks = [Task.of(resolved, "step", limit=incumbent, target=name, ends_s=ends_s) for name in others]
    for name, got in zip(others, in_order(watch.pool, tasks, watch.report), strict=True):
        if got.stopped:
            watch.cuts.append((got.stopped, "other targets were compared"))
            return None
        if not got.rows or got.rows[0][0] >= incumbent:
            continue
        closed_s, layout = got.rows[0][0], parse(got.rows[0][2])
        step_s = Staged.of(resolved.for_target(name), layout, simulate=simulate).step_s
        if step_s < best_s * (1 - _WORTH_SAYING):
            incumbent, winner = closed_s, Outside(layout_id=str(layout), step_s=rounded(step_s), targets=(name,))
    return winner


def _certificate(resolved: Resolved, outcome: SearchOutcome) -> Certificate:
    best = outcome.top.rows[0][0]
    bound = outcome.lower_bound
    gap = max(0.0, 1.0 - bound / best) if np.isfinite(bound) else 0.0
    is_time = resolved.workload.objective != "memory"
    return Certificate(
        space=outcome.count.told(resolved.space.axis_sizes()),
        lower_bound_s=rounded(min(bound, best)) if is_time else None,
        gap=rounded(gap), proven=outcome.stopped is None, stopped=outcome.stopped,
    )  # fmt: skip


def _certificate_of_splits(
    resolved: Resolved, outcome: SearchOutcome, finalists: Finalists, best_s: float
) -> Certificate:
    """No layout, in any split of its layers, is below the bound."""
    from .stages.ilp import GAP

    stopped = outcome.stopped or finalists.stopped
    bound = min(best_s, finalists.lower_bound_s)
    if len(rows := outcome.top.rows) >= max(resolved.request.top, _FAMILIES):
        bound = min(bound, rows[-1][0])  # of what the list has no room for
    if outcome.stopped:
        bound = min(bound, outcome.lower_bound)
    gap = max(0.0, 1.0 - bound / best_s)
    return Certificate(
        space=outcome.count.told(resolved.space.axis_sizes(), finalists.simulated),
        lower_bound_s=rounded(bound), gap=rounded(gap), stopped=stopped,
        proven=stopped is None and gap <= GAP * (1 + 1e-9),
    )  # fmt: skip


def _plan(
    resolved: Resolved, listed: tuple[Candidate, ...], certificate: Certificate, outside: Outside | None, count: Count
) -> Plan:
    from .._version import __version__

    return Plan(
        tool={"name": "meshwright", "version": __version__},
        request_sha256=resolved.request.sha256,
        request=request_to_dict(resolved.request),
        profiles=tuple(Profile(name=name, sha256=digest) for name, digest in resolved.profiles.items()),
        candidates=listed, ranking_lead=rounded(intervals.ranking_lead()), certificate=certificate, outside=outside,
        resolved=resolved_part(resolved), rejected={"memory": count.out_of_memory, **count.ruled_out},
        warnings=tuple(warning.text for warning in resolved.warnings),
    )  # fmt: skip


def resolved_part(resolved: Resolved) -> dict[str, Any]:
    from dataclasses import asdict

    cluster: ClusterSpec = resolved.cluster
    return {
        "model": rounded(spec_to_dict(resolved.model)), "cluster": rounded(cluster_to_dict(cluster)),
        "workload": rounded(asdict(resolved.workload)), "stack": rounded(spec_to_dict(resolved.stack)),
        "target": resolved.target.name,
        "memory_bytes": rounded(resolved.memory_bytes),
    }  # fmt: skip
