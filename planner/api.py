"""The functions of `import meshwright`: plan, evaluate, load_plan. The command line calls the same functions.

`plan` chooses the driver (`drivers/`) for what is requested; each driver makes a Plan out of a resolved request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from ..errors import InputError
from .document.base import OWN_STAGES
from .document.plan import Plan
from .document.reading import load_plan
from .drivers.even_stages import plan_even_stages
from .drivers.families import search_alike
from .drivers.headroom import with_headroom
from .drivers.watch import Progress, Watch, interactive_progress
from .heterogeneous.islands import applies
from .request.keywords import RequestFields
from .request.load import Request, load_any_request, load_request
from .request.reinforcement import RlFields, RlRequest
from .request.resolve import Resolved, resolve
from .request.serving import ServingFields, ServingRequest
from .request.target_choice import for_able_target
from .search.executors import opened
from .search.known_tables import MOST_KEYS, KnownTables
from .search.tasks import check_time_limit
from .search.techniques import with_techniques

if TYPE_CHECKING:
    from .document.rl_plan import RlPlan
    from .document.serving_plan import ServingPlan
    from .drivers.mixed_lengths import MixedLengthsPlan

__all__ = ["evaluate", "load_plan", "plan", "plan_documents", "plan_rl", "plan_serving"]


def plan(
    request: Request | Path | str | None = None,
    *,
    progress: Progress | None = None,
    time_limit_s: float | None = None,
    layers: Literal["alike", "own"] = "alike",
    fastest: bool = False,
    seed: int = 0,
    jobs: int = 1,
    executor: str | None = None,
    allow_techniques: Sequence[str] = (),
    **request_fields: Unpack[RequestFields],
) -> Plan:
    """The layout to train by, the runners-up, and the proof.

    request: a Request or a request file. request_fields: fields of the request by their flat names, each described in
        `RequestFields` (planner/request/keywords.py); beside a file they replace its fields.
    progress: called with (layouts accounted for, all layouts, a note) while searches run; without one a line every
        10 s on stderr in notebooks and interactive shells.
    time_limit_s: seconds after which the best plan so far is returned, as after Ctrl-C: see `certificate.stopped`.
    layers: `own` also looks for a plan that gives every layer a strategy of its own (planner/layerwise/candidate.py).
    fastest: take no simpler layout that the model does not tell from the fastest (docs/concepts/choice.md).
    seed: of the random orders of nodes that are tried where links between nodes differ.
    jobs, executor: processes, or the cluster (`dask://host:port`), that compare other targets; the plan is the same.
    allow_techniques: names, with knobs as in `technique`, or `all`: the search uses those of the best layout, if any.

    Raises InputError, UnsupportedError (exit 2: wrong, or nobody trains it), NoFeasibleLayoutError (1: nothing fits).
    """
    check_time_limit(time_limit_s)
    with opened(jobs, executor) as pool, interactive_progress(progress, "searching") as reported:
        watch = Watch(reported, time_limit_s, pool)
        checked = _packed(_request(request, request_fields))
        if layers == "own":
            return _plan_layers(checked, watch, techniques=bool(allow_techniques))
        if allow_techniques:
            return _plan_with_techniques(checked, allow_techniques, watch, seed, fastest=fastest)
        return plan_resolved(for_able_target(resolve(checked)), watch, seed, fastest=fastest)


def evaluate(
    request: Request | Path | str | None, layout_id: str, **request_fields: Unpack[RequestFields]
) -> Plan:  # fmt: skip
    """The plan that has just the layout `layout_id`, whether it fits or not. `request`, `request_fields`: as in `plan`.

    Raises InputError with everything that makes the layout illegal, each with its arithmetic.
    """
    from .drivers.given_layout import evaluate_resolved

    return evaluate_resolved(resolve(_packed(_request(request, request_fields))), layout_id)


def plan_documents(
    request: Request | Path | str | None = None, *, progress: Progress | None = None, seed: int = 0,
    num_batches: int = 20, schemes: Sequence[str] = (), **request_fields: Unpack[RequestFields],
) -> MixedLengthsPlan:  # fmt: skip
    """Plans of documents of mixed lengths (`lengths` and `max_len` of the request): one degree for all, one for each
    batch, one for each document. seed: of the `num_batches` batches that are drawn. schemes: names of published ones to
    price on the same batches, or `all` (planner/batches/schemes/registry.py). The rest is as in `plan`.

    Raises InputError for what is not planned so, UnsupportedError where the target has one degree for all documents,
    NoFeasibleLayoutError (1) where the longest document does not fit.
    """
    from .drivers.document_degrees import plan_document_degrees

    return plan_document_degrees(resolve(_request(request, request_fields)), progress, seed, num_batches,
                                 schemes)  # fmt: skip


def plan_serving(
    request: ServingRequest | Path | str | None = None, *, allow_techniques: Sequence[str] = (),
    **fields: Unpack[ServingFields],
) -> ServingPlan:  # fmt: skip
    """The cheapest deployment that keeps the promises, the runners-up, and the proof.

    request: a ServingRequest or a request file of `workload.kind: serve`. fields: fields of the request by their flat
        names, each described in `ServingFields` (planner/request/serving.py); beside a file they replace its fields.
    allow_techniques: names of techniques of serving, with knobs as in `technique`, or `all`: the search uses those of
        the best deployment, if any.

    Raises InputError for what does not fit together, NoFeasibleLayoutError (1) where no deployment keeps the promises.
    """
    from .drivers.serving import plan_serving as planned

    if isinstance(request, ServingRequest):
        return planned(request, allow=allow_techniques)
    loaded = load_any_request(request, {"workload": "serve", **fields})
    if not isinstance(loaded, ServingRequest):
        raise InputError("workload.kind: train has no promises to serve", hint="`plan` plans it")
    return planned(loaded, allow=allow_techniques)


def plan_rl(request: RlRequest | Path | str | None = None, **fields: Unpack[RlFields]) -> RlPlan:
    """The fastest placement of a step of post-training, the runners-up, and the proof.

    request: an RlRequest or a request file of `workload.kind: rl`. fields: fields of the request by their flat names,
        each described in `RlFields` (planner/request/reinforcement.py); beside a file they replace its fields.

    Raises InputError for what does not fit together, NoFeasibleLayoutError (1) where a call fits on no GPUs.
    """
    from .drivers.reinforcement import plan_rl as planned

    if isinstance(request, RlRequest):
        return planned(request)
    loaded = load_any_request(request, {"workload": "rl", **fields})
    if not isinstance(loaded, RlRequest):
        raise InputError("not a step of post-training", hint="`plan` plans a training step")
    return planned(loaded)


def _packed(request: Request) -> Request:
    """The request, unless its documents are sequences of their own."""
    if request.workload.max_len is not None:
        raise InputError("max_len: documents with a degree each have no single layout",
                         hint="`plan_documents`, `meshwright plan`, or leave out max_len")  # fmt: skip
    return request


def _request(request: Request | Path | str | None, fields: Mapping[str, Any]) -> Request:
    if not isinstance(request, Request):
        return load_request(request, fields)
    if fields:
        hint = "or `load_request(path, overrides)`"
        raise InputError(f"a Request and {', '.join(fields)}: give one of them", hint=hint)
    return request


def _plan_layers(request: Request, watch: Watch, *, techniques: bool) -> Plan:
    """The plan that may give every layer a strategy of its own."""
    from .drivers.custom_layers import plan_custom_layers

    beside = {"custom_stages": request.stages not in (None, "even"), "techniques": techniques}
    return with_headroom(
        for_able_target(resolve(request)), lambda resolved: plan_custom_layers(resolved, watch, **beside)
    )


def plan_resolved(resolved: Resolved, watch: Watch, seed: int = 0, *, fastest: bool = False) -> Plan:
    """As `plan`, of a request that is resolved, and perhaps changed since."""
    return with_headroom(resolved, lambda limited: _plan_driven(limited, watch, seed, fastest=fastest))


def _plan_driven(resolved: Resolved, watch: Watch, seed: int, *, fastest: bool) -> Plan:
    """The plan of the driver that fits the cluster and the requested stages. Only that one is imported: the solvers of
    others would slow the start of every plan."""
    if resolved.request.stages is None and applies(resolved):
        from .drivers.islands import plan_islands

        return plan_islands(resolved, watch, fastest=fastest)
    if resolved.request.stages == OWN_STAGES:
        from .drivers.custom_stages import plan_custom_stages

        return plan_custom_stages(resolved, watch)
    if resolved.cluster.links is not None:
        from .drivers.node_order import plan_node_order

        return plan_node_order(resolved, watch, seed)
    return plan_even_stages(resolved, watch, fastest=fastest)


def _plan_with_techniques(
    request: Request, allowed: Sequence[str], watch: Watch, seed: int, *, fastest: bool
) -> Plan:  # fmt: skip
    """The plan under the best set of the allowed techniques: each set is searched, the best is planned in full."""
    if request.stages == OWN_STAGES:
        text = "stages of their own are simulated, and no simulation knows techniques"
        raise InputError(text, hint="leave out `--stages own`")
    known = KnownTables(MOST_KEYS)
    return with_techniques(
        request,
        allowed,
        lambda alike, incumbent, likely: search_alike(alike, watch, incumbent, likely, known),
        lambda chosen: plan_resolved(for_able_target(resolve(chosen)), watch, seed, fastest=fastest),
    )
