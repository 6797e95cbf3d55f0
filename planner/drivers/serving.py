"""Plans deployments that serve: the exact search, the simulation of those that are listed, the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ..._version import __version__
from ...cost_models.quantities.params import total_parameters
from ...cost_models.serving.lengths import Lengths, RequestLengths
from ...cost_models.specs.cluster import ClusterSpec, is_cpu
from ...cost_models.specs.documents import spec_to_dict
from ...cost_models.specs.model import ModelSpec
from ...cost_models.techniques.registry import GAINING, SERVING, of, technique
from ...errors import InputError
from ...profiles.cluster.document import cluster_to_dict
from ...profiles.stack.engines import Engines
from ..document.base import rounded
from ..document.certificate import SpaceCount
from ..document.plan import digest_of
from ..document.serving_plan import (
    Separation,
    ServedLengths,
    ServingCandidate,
    ServingCertificate,
    ServingPlan,
    TokenCounts,
    Unit,
)
from ..request.allowed_techniques import allowed_techniques
from ..request.images import served_images
from ..request.lengths import check_positions
from ..request.passes import about_passes, check_passes
from ..request.request_lengths import request_lengths
from ..request.serving import ServeWorkload, ServingRequest
from ..request.serving_references import ServingReferences
from ..request.speculation import step_tokens
from ..serving.assumptions import assumptions
from ..serving.candidates import Demand, candidates, deployment_id, simulated_service
from ..serving.disaggregated import DisaggregatedResult
from ..serving.formats import BYTES, cache_format
from ..serving.hours import hourly_service
from ..serving.infeasible import no_deployment
from ..serving.instance import Speculation, passes_of, pool
from ..serving.promises import Promises
from ..serving.search import Deployment, DeploymentResult
from ..serving.space import Served, Spaces, sites_of
from ..serving.technique_choice import Searched, TechniqueSpaces, choices, choose, summed
from ..targets.engines.registry import about_serving

# Deployments whose loads differ by less are not told apart: half of the median error of TPOT on published runs
# (docs/guides/serving.md).
INDIFFERENCE = 0.05
_MOST_SIMULATED = 8  # deployments, in turn, until one keeps the promises
_UNITS: dict[tuple[bool, bool], Unit] = {(True, False): "USD/h", (False, False): "GPUs", (True, True): "USD",
                                         (False, True): "GPU-hours"}  # rented, over the hours of a day
_EQUAL = 1e-9  # relative: values that differ by less
_ALMOST_ALL = 0.99  # of the requests, which the positions of the model must suffice for


def plan_serving(
    request: ServingRequest, max_sequences: int | None = None, allow: Sequence[str] = ()
) -> ServingPlan:  # fmt: skip
    """The cheapest deployment that keeps the promises of `request`. max_sequences: of a group of attention data
    parallelism at once, in place of the engine's own limit. allow: techniques of serving (names with knobs, or `all`)
    that the best deployment may use.

    Raises InputError for what does not fit together, NoFeasibleLayoutError where no deployment keeps the promises.
    """
    _check_load(request.workload)
    named = ServingReferences.of(request)
    request, work = named.request, named.request.workload
    model, engines, cluster = named.model, named.engines, named.cluster
    if max_sequences is not None:
        engines = engines.limited(request.target, max_sequences)
    demand = demand_of(work, engines)
    requests = demand.promises.requests
    longest = int(requests.whole_lengths.at(np.array([_ALMOST_ALL]))[0])
    warnings = [*named.warnings, *check_passes(model, work, request.fix, requests.output),
                *check_positions(model, longest)]  # fmt: skip
    served = served_of(model, work, engines, request.target, named.draft)
    field, best, every = _chosen(request, served, cluster, demand, allow)
    result = summed(best, every, demand.load)
    served = replace(served, techniques=best.techniques)
    if not result.deployments:
        raise no_deployment(best.spaces, demand, result, field.between_bw)
    ordered = _preferred(result)
    chosen, simulated = _confirmed(demand, ordered)
    listed = candidates(demand, _best_of_layouts([chosen, *ordered])[: request.top])
    notices = _about_techniques(request, served, chosen)
    texts = [*warnings, *_about_devices(cluster), *notices]
    certificate = _certificate(result, chosen, demand, simulated)
    plan = _document(request, served, cluster, engines, _lengths(requests), listed, certificate,
                     tuple(dict.fromkeys(texts)))  # fmt: skip
    hourly = hourly_service(chosen, work.hourly, requests.output) if work.hourly else None
    both = best.disaggregated if best.aggregated.total else None  # both kinds were sought
    return plan.model_copy(update={
        "separation": None if both is None else _separation(best.aggregated, both), "hourly": hourly,
        "technique_choices": choices(every, demand.load) if allow else ()})  # fmt: skip


def _chosen(
    request: ServingRequest, served: Served, cluster: ClusterSpec, demand: Demand, allow: Sequence[str]
) -> tuple[TechniqueSpaces, Searched, list[Searched]]:  # fmt: skip
    """The spaces that are searched, the best set of the allowed techniques with its deployments, and all sets.

    Raises InputError where those that are requested serve by no instance.
    """
    given = request.workload.techniques
    allowed = allowed_techniques(allow, given, GAINING, SERVING)
    sites, used = sites_of(cluster), [technique(name).serves for name in given | allowed]
    across = any(it is not None and it.across_nodes for it in used)
    spaces = Spaces.of(sites, served, request.fix)
    wide = Spaces.of(sites, served, request.fix, across_nodes=True) if across else spaces
    field = TechniqueSpaces(spaces=spaces, wide=wide, between_bw=cluster.levels[-1].bw_bytes_per_s)
    best, every = choose(field, demand, given, allowed)
    if best.why is not None:
        raise InputError(best.why, hint="leave it out, or take away a `--fix`")
    return field, best, every


def _check_load(work: ServeWorkload) -> None:
    given = [name for name in ("rate", "concurrency", "hourly") if getattr(work, name) is not None]
    if given == ["rate", "concurrency"]:
        raise InputError("rate and concurrency: a load is either open or closed", hint="leave one of them out")
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)}: two loads", hint="leave one of them out")
    if work.prefixes > 1 and not work.prefix_hit:
        raise InputError(f"{work.prefixes} prefixes, of which nothing is found in the cache",
                         hint="add the share that is found: `--prefix-hit 0.6`")  # fmt: skip


def served_of(
    model: ModelSpec, work: ServeWorkload, engines: Engines, target: str, draft: ModelSpec | None
) -> Served:  # fmt: skip
    """The model as all instances serve it. draft: as `work` names one."""
    weights, lengths = work.precision or "bf16", request_lengths(work.input, work.output)
    cache = cache_format(model, weights, work.kv_cache)
    return Served.of(model, weights, cache if cache in BYTES else "bf16", engines, target,
                     speculation=_speculation(model, work.speculate, draft) if work.speculate else None,
                     passes=passes_of(model, work.passes, lengths.output),
                     images=served_images(model, work.images, lengths.prompt))  # fmt: skip


def _speculation(model: ModelSpec, given: Mapping[str, Any], draft: ModelSpec | None) -> Speculation:
    """Raises InputError for a draft that cannot propose tokens of the model."""
    tokens = step_tokens(given["tokens"], given["accepted"])
    if draft is None:
        if not model.mtp_layers:
            raise InputError(f"speculate: {model.name} has no module for further tokens",
                             hint="name a smaller model with the same vocabulary as the draft")  # fmt: skip
        return Speculation(tokens=given["tokens"], step_tokens=tokens, draft=None)
    if draft.vocab != model.vocab:
        raise InputError(f"speculate: {draft.name} has a vocabulary of {draft.vocab:,} tokens, {model.name} "
                         f"{model.vocab:,}", hint="a draft needs the tokenizer of the model")  # fmt: skip
    if (size := total_parameters(draft)) > (whole := total_parameters(model)):
        raise InputError(f"speculate: {draft.name} has {size / 1e9:.3g}B parameters, {model.name} {whole / 1e9:.3g}B: "
                         "a draft that is larger than its model only costs time",
                         hint="name a smaller model with the same vocabulary as the draft")  # fmt: skip
    return Speculation(tokens=given["tokens"], step_tokens=tokens, draft=draft)


def demand_of(work: ServeWorkload, engines: Engines) -> Demand:
    """The load and the promises. The rate of a trace is the load where none is given."""
    requests = replace(request_lengths(work.input, work.output), prefix_hit=work.prefix_hit,
                       prefixes=float(work.prefixes if work.prefix_hit else 0))  # fmt: skip
    promises = Promises(
        requests=requests, ttft_s=work.ttft or np.inf, tpot_s=work.tpot or np.inf,
        share=work.percentile / 100.0, closed=work.concurrency is not None,
    )  # fmt: skip
    load = work.rate or (max(work.hourly) if work.hourly else None) or requests.trace_rate or None
    load = float(work.concurrency) if work.concurrency is not None else load
    return Demand(load=load, promises=promises, constants=engines.constants, rates=work.hourly or ())


def _lengths(requests: RequestLengths) -> ServedLengths:
    return ServedLengths(prompt=_tokens(requests.prompt_lengths), output=_tokens(requests.output_lengths),
                         trace_rate=requests.trace_rate or None)  # fmt: skip


def _tokens(lengths: Lengths) -> TokenCounts:
    p50, p90, p99, most = (float(tokens) for tokens in lengths.at(np.array([0.5, 0.9, 0.99, 1.0])))
    return TokenCounts(mean=lengths.mean, p50=p50, p90=p90, p99=p99, most=most)


def _separation(aggregated: DeploymentResult, disaggregated: DisaggregatedResult) -> Separation:
    best = disaggregated.deployments[0] if disaggregated.deployments else None
    return Separation(
        best=deployment_id(best) if best else None, gpus=best.gpus if best else None,
        usd_per_hour=best.usd_per_hour if best else None, gpu_hours=best.gpu_hours if best else None,
        largest_load=best.largest_load if best else None,
        prefill_gpus=disaggregated.prefill_gpus, decode_gpus=disaggregated.decode_gpus,
        together_gpus=min((it.gpus / it.largest_load for it in aggregated.deployments), default=None),
    )  # fmt: skip


def _preferred(result: DeploymentResult) -> list[Deployment]:
    """The deployments, the simplest of those that cannot be told from the best first."""
    best, *others = result.deployments
    price = best.price(rented=result.rented)
    near = [best, *(it for it in others if it.gpus == best.gpus and it.price(rented=result.rented) == price
                    and it.largest_load >= best.largest_load * (1 - INDIFFERENCE))]  # fmt: skip
    chosen = min(near, key=_parts)
    return [chosen, *(it for it in result.deployments if it is not chosen)]


def _confirmed(demand: Demand, ordered: list[Deployment]) -> tuple[Deployment, int]:
    """The first deployment whose simulated instances keep the promises, and how many were simulated; the first of all
    where none of those tried does."""
    tried = ordered[:_MOST_SIMULATED]
    for number, deployment in enumerate(tried, 1):
        if simulated_service(demand, deployment).kept >= demand.promises.share:
            return deployment, number
    return ordered[0], len(tried)


def _best_of_layouts(ordered: list[Deployment]) -> list[Deployment]:
    """The first of each layout: others have other chunks."""
    by_layout: dict[str, Deployment] = {}
    for deployment in ordered:
        by_layout.setdefault(deployment_id(deployment), deployment)
    return list(by_layout.values())


def _parts(deployment: Deployment) -> tuple[int, int]:
    """Kinds of parallelism inside instances, then GPUs of an instance."""
    layouts = [fleet.instance.layout for fleet in deployment.fleets]
    kinds = sum((it.tp > 1) + (it.pp > 1) + (it.attention_dp > 1) + (it.ep > 1) for it in layouts)
    return kinds, max(it.gpus for it in layouts)


def _certificate(result: DeploymentResult, chosen: Deployment, demand: Demand, simulated: int) -> ServingCertificate:
    space = SpaceCount(
        total=result.total, by_axis=result.by_axis, ruled_out=result.ruled_out, dominated=result.dominated,
        out_of_memory=result.out_of_memory, bounded=result.bounded, priced=len(result.deployments), simulated=simulated,
    )  # fmt: skip
    (bound, unit), (value, _) = (_value(it, demand, result) for it in (result.deployments[0], chosen))
    gap = (bound / value if demand.load is None else value / bound) - 1.0
    return ServingCertificate(space=space, lower_bound=bound, unit=unit, gap=gap, proven=gap <= _EQUAL)


def _value(best: Deployment, demand: Demand, result: DeploymentResult) -> tuple[float, Unit]:
    if demand.load is None:
        return best.largest_load, "requests/s"
    return best.price(rented=result.rented), _UNITS[result.rented, bool(demand.rates)]


def _about_techniques(request: ServingRequest, served: Served, chosen: Deployment) -> list[str]:
    """Warnings on the techniques of a deployment, and on passes that give several tokens."""
    passes = about_passes(served.model, float(pool([chosen.decode.instance]).step_tokens[0]))
    return [*(about_serving(known, request.target) for known, _ in of(served.techniques)), *passes]


def _about_devices(cluster: ClusterSpec) -> list[str]:
    """Warnings on the nodes. Unlike ones are sites of their own here: what a uniform plan over all of them would lose
    is no matter."""
    texts = [notice.text for notice in cluster.warnings if notice.code != "uniform-plan"]
    sockets = dict.fromkeys(group.gpu.name for group in cluster.groups if is_cpu(group.gpu.arch))
    return [*texts, *(f"{name}: shares of its peaks, and seconds of the engine, are those of GPUs: no CPU was measured"
                      for name in sockets)]  # fmt: skip


def _document(
    request: ServingRequest, served: Served, cluster: ClusterSpec, engines: Engines, lengths: ServedLengths,
    listed: tuple[ServingCandidate, ...], certificate: ServingCertificate, warnings: tuple[str, ...],
) -> ServingPlan:  # fmt: skip
    canonical = rounded(request.model_dump(mode="json"))
    drafted = served.speculation.draft if served.speculation else None
    beside: dict[str, Any] = {"draft": rounded(spec_to_dict(drafted))} if drafted else {}
    if served.techniques:
        beside["techniques"] = {name: dict(knobs) for name, knobs in served.techniques}
    return ServingPlan(
        tool={"name": "meshwright", "version": __version__}, request_sha256=digest_of(canonical), request=canonical,
        origins=request.origins, lengths=lengths, candidates=listed, indifference=INDIFFERENCE, certificate=certificate,
        resolved={"model": rounded(spec_to_dict(served.model)), "cluster": rounded(cluster_to_dict(cluster)),
                  "engine": request.target, "constants": rounded(asdict(engines.constants)),
                  "host_s": engines.host_s(request.target, ""), **beside},
        assumptions=assumptions(served, request, cluster), warnings=warnings,
    )  # fmt: skip
