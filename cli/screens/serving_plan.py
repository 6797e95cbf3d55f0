"""The screen of `meshwright plan --workload serve`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .conclusion import refused_sets
from .header import space_line
from .parts import headless

if TYPE_CHECKING:
    from ...planner.document.serving_plan import (
        HourlyService,
        Percentiles,
        ServingCandidate,
        ServingPlan,
        ServingPool,
        TokenCounts,
    )
    from .parts import Part

ROLES = {"both": "prefill and decode", "prefill": "prefill", "decode": "decode"}
_FEW = 10.0  # per second, below which decimals count
_LONGEST_ID = 32
_HOURS_WIDTH = 56  # of the list of instances by hour
BINDS = {
    "ttft": "time to first token", "tpot": "time per output token", "queue": "prompts, which fill all iterations",
    "cache": "the KV cache, which holds no more sequences",
    "passes": "passes, which take longer for every request in them",
    "room": "room for passes, which is always taken",
    "sequences": "the engine's limit of sequences",
    "nothing": "nothing up to the largest load that was tried",
}  # fmt: skip


def screen(plan: ServingPlan, saved_as: str | None) -> list[Part]:
    """The deployments, then the first of them: pools, latencies, what binds, the proof."""
    best = plan.best
    lines = [*header(plan), "", *_candidates(plan), "", f"Deployment {best.choice}: {best.deployment_id}"]
    return [*lines, *_details(plan, best), "", *separation(plan), *techniques(plan), *closing(plan), "",
            _next(saved_as)]  # fmt: skip


def header(plan: ServingPlan) -> list[Part]:
    """Model, nodes, engine, requests, promises."""
    work = plan.request["workload"]
    groups = plan.resolved["cluster"]["groups"]
    nodes = " + ".join(f"{group['num_nodes']} x {group['gpus_per_node']} {group['gpu']['name']}" for group in groups)
    load = _load(plan, work)
    promised = [f"{name} {text.duration(float(str(work[key])))}" for name, key in (("TTFT", "ttft"), ("TPOT", "tpot"))
                if work[key]]  # fmt: skip
    first = (f"{plan.resolved['model']['name']} on {nodes}, {plan.resolved['engine']}, weights in {work['precision']}; "
             f"prompts of {_tokens(plan.lengths.prompt)} tokens, answers of {_tokens(plan.lengths.output)}, {load}")
    used = ", ".join(f"{name} ({_knobs(knobs)})" if knobs else name
                     for name, knobs in plan.resolved.get("techniques", {}).items())  # fmt: skip
    by = [text.wrapped(f"Served by {used}")] if used else []
    stated = (f"Promised to {work['percentile']:g} % of the requests: {text.listed(promised)}" if promised else
              f"No latency is promised; those below hold for {work['percentile']:g} % of the requests")  # fmt: skip
    return [text.wrapped(first), *by, stated]


def promises(plan: ServingPlan) -> bool:
    """Whether the request has a latency that the deployment must keep."""
    work = plan.request["workload"]
    return bool(work["ttft"] or work["tpot"])


def within(plan: ServingPlan) -> str:
    """The limit of a load that a deployment carries, in words."""
    return " within the promises" if promises(plan) else ""


def _knobs(knobs: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in knobs.items())


def _load(plan: ServingPlan, work: Mapping[str, object]) -> str:
    rates = (work["rate"], max(plan.hourly.rates) if plan.hourly else None,
             None if work["concurrency"] else plan.lengths.trace_rate)  # fmt: skip
    rate = next((rate for rate in rates if rate), None)
    load = (f"{rate:.4g}/s" if rate else f"{work['concurrency']} at any time" if work["concurrency"]
            else "as many as can be")  # fmt: skip
    load += (" at the peak" if plan.hourly else "") + (" as in the trace" if plan.lengths.trace_rate else "")
    hit = float(str(work["prefix_hit"]))
    return load + (f", {text.percent(hit)} % of a prompt in the cache" if hit else "")


def _tokens(counts: TokenCounts) -> str:
    """The mean; of unlike lengths the 90th percentile, too."""
    unlike = counts.most > counts.mean * (1 + 1e-9)
    return f"{counts.mean:,.0f}" + (f" (p90 {counts.p90:,.0f})" if unlike else "")


def _candidates(plan: ServingPlan) -> list[Part]:
    """Long names stand below the table."""
    promised, latencies = promised_columns(plan.candidates)
    names = ("GPUs", *promised, "carries", *(("GPU-hours",) if plan.hourly else ()), "USD/Mtoken")
    numbers = [(str(it.gpus), *both, text.significant(it.largest_load),
                *(() if it.gpu_hours is None else (text.significant(it.gpu_hours),)),
                text.significant(it.usd_per_mtoken))
               for it, both in zip(plan.candidates, latencies, strict=True)]  # fmt: skip
    ids = [it.deployment_id for it in plan.candidates]
    if max(map(len, ids)) > _LONGEST_ID:
        short = [(str(number), *row) for number, row in enumerate(numbers, 1)]
        return [table("#", *names, rows=short, right=names), "", *(f"{n}  {name}" for n, name in enumerate(ids, 1))]
    rows = [(str(n), name, *row) for n, (name, row) in enumerate(zip(ids, numbers, strict=True), 1)]
    return [table("#", "deployment", *names, rows=rows, right=names)]


def _details(plan: ServingPlan, best: ServingCandidate) -> list[Part]:
    rows = [row for pool in best.pools for row in _pool(plan, pool)]
    if best.simulated is not None:
        kept = f"by {text.percent(best.simulated.kept)} % of {best.simulated.requests:,} simulated requests"
        rows += [_spread("TTFT", best.simulated.ttft_s), _spread("TPOT", best.simulated.tpot_s)]
        rows += [("promises kept", kept)] if promises(plan) else []
    unit = _unit(plan)
    stable = f"; stable up to {text.significant(best.stable_load)}/s" if best.stable_load is not None else ""
    rows += [
        ("throughput", f"{whole_number(best.output_tokens_per_s)} tokens/s, "
                       f"{whole_number(best.output_tokens_per_s_per_gpu)} per GPU"),
        ("carries", f"{text.significant(best.largest_load)}{unit}{within(plan)}{stable}"),
        ("goodput", f"{text.significant(best.goodput_per_gpu)}{unit} per GPU"),
        ("binds", BINDS[best.binds]),
    ]  # fmt: skip
    rows += _hourly(plan.hourly)
    return [headless([(f"  {name}", value) for name, value in rows])]


def whole_number(rate: float) -> str:
    """A rate without decimals, unless little else is left of it."""
    return f"{rate:,.0f}" if rate >= _FEW else text.significant(rate)


def _unit(plan: ServingPlan) -> str:
    """The unit of loads."""
    return "/s" if plan.best.stable_load is not None else " requests at once"


def _hourly(hours: HourlyService | None) -> list[tuple[str, str]]:
    """Instances by hour, `+` between pools."""
    if hours is None:
        return []
    by_hour = ["+".join(map(str, number)) for number in hours.instances]
    lines = textwrap.wrap(" ".join(by_hour), width=_HOURS_WIDTH)
    price = "" if hours.usd_per_mtoken is None else f", {text.significant(hours.usd_per_mtoken)} USD/Mtoken"
    used = f"{hours.gpu_hours:,.0f}, {hours.gpu_hours_at_peak:,.0f} without changes{price}"
    return [("instances by hour", lines[0]), *(("", line) for line in lines[1:]), ("GPU-hours", used)]


def fills_in(plan: ServingPlan) -> bool:
    """Whether the model fills in its answers, and has room for passes in place of a cache."""
    model = plan.resolved["model"]
    return bool(model.get("unmasks") or model.get("diffusion"))


def room_name(plan: ServingPlan) -> str:
    return "room for passes" if fills_in(plan) else "KV cache"


def _pool(plan: ServingPlan, pool: ServingPool) -> list[tuple[str, str]]:
    fills = fills_in(plan)
    cache, pays = pool.cache_sequences, pool.speculation_pays_up_to
    return [
        (ROLES[pool.role], f"{pool.instances} x {pool.gpus // pool.instances} {pool.gpu}"),
        ("engine", f"chunks of {pool.chunk_tokens:,} prompt tokens, at most {pool.max_sequences:,} sequences"),
        (room_name(plan),
         f"{text.gib(pool.cache_bytes)} GiB of a GPU{'' if fills else f' in {pool.kv_cache}'}: {cache:,} sequences"),
        *([] if pool.tower is None else [
            ("tower", f"of its {pool.tower.pieces} pieces {pool.tower.device} on the device, {pool.tower.edge} at the "
             f"edge, {pool.tower.instance} here")]),
        *([] if pays is None else [
            ("speculation", f"{pool.proposed_tokens} tokens, pays up to {pays:,} sequences of an instance at once")]),
    ]  # fmt: skip


def separation(plan: ServingPlan) -> list[Part]:
    """Why prefill and decode are aggregated or disaggregated, and the GPUs that each role needs."""
    disagg, best = plan.separation, plan.best
    if disagg is None:
        return []
    chosen, most = len(best.pools) > 1, plan.certificate.unit.startswith("requests")
    if disagg.best is None or disagg.largest_load is None:
        able = "keeps the promises" if promises(plan) else "is possible"
        reason = f"no deployment of separate prefill and decode {able} on these GPUs"
    elif chosen:
        better = "carries more" if most else "is cheaper, or as cheap and carries more"
        reason = f"no deployment with both on the same instances {better}"
    elif most:
        reason = (f"{disagg.best} (prefill + decode), which carries most of the disaggregated ones, carries "
                  f"{text.significant(disagg.largest_load)}{_unit(plan)}")  # fmt: skip
    else:
        hours = "" if disagg.gpu_hours is None else f", takes {text.significant(disagg.gpu_hours)} GPU-hours"
        reason = (f"the cheapest, {disagg.best} (prefill + decode), has {disagg.gpus} GPUs{hours} and carries "
                  f"{text.significant(disagg.largest_load)}{_unit(plan)}")  # fmt: skip
    lines: list[Part] = [text.wrapped(f"{'Disaggregated' if chosen else 'Not disaggregated'}: {reason}.")]
    if disagg.prefill_gpus is not None and disagg.decode_gpus is not None:
        together = "" if disagg.together_gpus is None else f"; aggregated {text.significant(disagg.together_gpus)}"
        lines.append(text.wrapped(
            f"GPUs for 1/s, in parts of instances: disaggregated {text.significant(disagg.prefill_gpus)} that prefill "
            f"and {text.significant(disagg.decode_gpus)} that decode (1 : "
            f"{text.significant(disagg.decode_gpus / disagg.prefill_gpus)}){together}."))  # fmt: skip
    return [*lines, ""]


def techniques(plan: ServingPlan) -> list[Part]:
    """The sets of techniques that were left to the search, the best first; then those that are no better, and why."""
    if not plan.technique_choices:
        return []
    rows, refused = list[tuple[str, ...]](), dict[str, list[str]]()
    for choice in plan.technique_choices:
        name = " + ".join(choice.names) or "none"
        if choice.why is not None or choice.largest_load is None:
            refused.setdefault(choice.why or "", []).append(name)
        else:
            hours = () if choice.gpu_hours is None else (text.significant(choice.gpu_hours),)
            rows.append((f"  {name}", str(choice.gpus), text.significant(choice.largest_load), *hours,
                         choice.deployment_id or ""))  # fmt: skip
    numbers = ("GPUs", "carries", *(("GPU-hours",) if plan.hourly else ()))
    made = table("  techniques", *numbers, "deployment", rows=rows, right=numbers)
    return [made, "", *([*(text.wrapped(it, "  ") for it in refused_sets(refused)), ""] if refused else [])]


def closing(plan: ServingPlan) -> list[Part]:
    """The proof, and what the simulation adds."""
    space, broken = plan.certificate.space, _broken_when_simulated(plan)
    lines: list[Part] = [text.wrapped(f"Assumed: {it}.") for it in plan.assumptions]
    lines += [*([""] if lines else []), space_line(space, stopped=bool(plan.certificate.stopped), noun="deployments"),
                         text.wrapped(f"{'By' if broken else 'Proven by'} the closed form: {_proof(plan)}.")]
    if broken:
        lines.append(text.wrapped(f"Deployment 1 is not proven to keep them: {broken}."))
    if space.simulated > 1:
        outcome = ("none of them keeps the promises there" if broken else
                   "deployment 1 is the first of them that keeps the promises there, too")  # fmt: skip
        lines.append(text.wrapped(f"{space.simulated} of the best were simulated: {outcome}."))
        return lines
    equals = [it.largest_load for it in plan.candidates if it.gpus == plan.best.gpus]
    if (ahead := max(equals) / plan.best.largest_load - 1) > 0:
        lines.append(text.wrapped(f"Deployment 1 is simpler than one of as many GPUs that carries "
                                  f"{text.percent(ahead)} % more, less than the error of the model."))  # fmt: skip
    return lines


def _proof(plan: ServingPlan) -> str:
    """The value that no deployment is better than, where deployment 1 does not have it."""
    proof, keeps = plan.certificate, " that keeps the promises" if promises(plan) else ""
    none = f"deployment of this space{keeps}"
    cheapest = not proof.unit.startswith("requests")
    if proof.proven:
        return f"no other {none} {'is cheaper' if cheapest else 'carries more'}"
    bound, gap = f"{text.significant(proof.lower_bound)} {proof.unit}", text.percent(proof.gap)
    if cheapest:
        return f"no {none} costs less than {bound}; deployment 1 costs {gap} % more"
    return f"no {none} carries more than {bound}, {gap} % more than deployment 1"


def _broken_when_simulated(plan: ServingPlan) -> str:
    """Empty: as many simulated requests keep the promises as are promised."""
    simulated, promised = plan.best.simulated, plan.request["workload"]["percentile"]
    if simulated is None or simulated.kept >= promised / 100.0:
        return ""
    return f"{text.percent(simulated.kept)} % of the simulated requests do, fewer than {promised:g} %"


def _next(saved_as: str | None) -> str:
    return f"Next: meshwright emit {saved_as}" if saved_as else "Next: add `-o plan.json` to keep this plan"


def _spread(name: str, values: Percentiles) -> tuple[str, str]:
    named, (p50, p90, p99) = text.latencies(name, (values.p50, values.p90, values.p99))
    return named, f"p50 {p50}, p90 {p90}, p99 {p99}"


def promised_columns(candidates: Sequence[ServingCandidate]) -> tuple[tuple[str, str], list[tuple[str, str]]]:
    """Names of the columns of TTFT and TPOT at the promised percentile, and both of each deployment."""
    ttft, first = text.latencies("TTFT", [it.ttft_promised_s for it in candidates])
    tpot, following = text.latencies("TPOT", [it.tpot_promised_s for it in candidates])
    return (ttft, tpot), list(zip(first, following, strict=True))
