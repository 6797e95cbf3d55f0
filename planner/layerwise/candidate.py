"""The best layer-wise plan as a candidate of a plan, and the requests that have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.layerwise.costs import REDUCE, STEADY
from ...cost_models.layouts import RECOMPUTE_MODES, Layout, Layouts
from ...cost_models.quantities.flops import model_flops, recomputed_flops, useful_flops
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.rates.kernel_seconds import kernel_seconds
from ...cost_models.rates.layer_seconds import COMPONENTS
from ...cost_models.rates.rates import Rates
from ...cost_models.step.step import TERMS
from ...errors import InputError
from ..document.base import rounded
from ..document.candidate import Candidate
from ..document.layer_plan import LAYERS_OF_THEIR_OWN, LayerPlan, LayerRun, UniformPlan
from ..document.plan import Plan
from ..evaluation.candidates import candidates
from ..evaluation.staged import Staged
from ..request.resolve import Resolved
from ..targets.registry import TARGETS
from .search import Assignment, LayerwiseOutcome, search
from .space import Instance

_EQUAL = 1e-8  # relative: a smaller gap is one of rounding
_NOTHING_FITS = "no plan with strategies of their own fits without offload"
# Terms of a step (step.TERMS) that no such plan has: its strategies offload nothing, and `check` refuses the others.
ABSENT_TERMS = frozenset({"offload", "imbalance", "vocabulary"})


def check(resolved: Resolved, *, custom_stages: bool, techniques: bool, islands: bool) -> None:
    """Raises InputError for requests whose layer-wise plans are not priced, with the flag to leave out."""
    workload, model = resolved.workload, resolved.model
    reasons = {
        "and stages of their own are not planned together yet": custom_stages,
        "save time, and the objective is memory": workload.objective == "memory",
        "are not priced with techniques": techniques,
        "over groups of nodes that are not alike are not planned yet": islands,
        "where links between nodes differ are not planned yet": resolved.cluster.links is not None,
        f"of models with experts are not planned yet, and {model.name} has some": model.is_moe,
        f"of models with a vision tower are not planned yet, and {model.name} has one": model.tower is not None,
        f"of models with an encoder are not planned yet, and {model.name} has one": model.encoder is not None,
        f"of diffusion transformers are not planned yet, and {model.name} is one": model.diffusion is not None,
        f"of graph networks are not planned yet, and {model.name} is one": model.graph is not None,
        f"of models with multi-token prediction are not planned yet, and {model.name} has it": model.mtp_layers > 0,
        "are not priced for documents of different lengths": bool(workload.lengths),
        "are not priced with muon, whose matrices ranks share out over all layers": workload.optimizer == "muon",
    }
    for reason, applies in reasons.items():
        if applies:
            raise InputError(f"strategies of their own {reason}", hint="leave out `--layers own`")


def best_layers(resolved: Resolved, should_stop: Callable[[], bool] = lambda: False) -> LayerwiseOutcome:
    """Search all layer-wise plans of the request (space.py)."""
    return search(resolved.space, resolved.rates, resolved.budget_bytes, should_stop=should_stop)


def candidate(resolved: Resolved, outcome: LayerwiseOutcome) -> Candidate | None:
    """The best plan of the search; None where it gives all layers one strategy, or nothing fits."""
    if outcome.best is None or len(set(outcome.best.rows)) == 1:
        return None
    best = _in_runs(outcome.best)
    layouts = best.instance.prices.whole.layouts
    base = layouts.layout(max(set(best.rows[1:-1]), key=lambda row: (best.rows[1:-1].count(row), -row)))
    terms = step_terms_of(best)
    step_s = sum(terms.values())
    like = candidates(resolved, [Staged.of(resolved, base)])[0]
    scale = step_s / like.step_s
    plan = _layer_plan(best, outcome)
    peak = resolved.rates.peak_flops_per_s * resolved.cluster.num_gpus * step_s
    model = model_flops(resolved.problem)
    changed: dict[str, Any] = {
        "layout_id": f"{base}-x{plan.digest}", "layerwise": plan.model_dump(), "step_s": step_s,
        "mfu": useful_flops(resolved.problem) / peak, "hfu": (model + _recomputed(resolved, best)) / peak,
        "tokens_per_s_per_gpu": like.tokens_per_s_per_gpu / scale,
        "terms": _as_terms(terms, like), "memory": _memory(resolved, best), "stages": _stages(best, like),
        "targets": {name: _cannot_run(resolved, name, plan) or reason for name, reason in like.targets.items()},
    }  # fmt: skip
    names = ("step_s_low", "step_s_high", "cost_usd_per_mtoken", "days", "gpu_hours", "cost_usd")
    times = {name: value * scale for name in names if (value := getattr(like, name)) is not None}
    return Candidate.model_validate(rounded({**like.model_dump(), **times, **changed}))


def _cannot_run(resolved: Resolved, target: str, plan: LayerPlan) -> str | None:
    """Why a target cannot run the plan, whatever it does with the layout of most layers."""
    if not TARGETS[target].layerwise:
        return LAYERS_OF_THEIR_OWN
    reasons = TARGETS[target].supports(Layouts.of(plan.layouts), resolved.problem)[1]
    return next((reason for reason in reasons if reason is not None), None)


def added(resolved: Resolved, plan: Plan, outcome: LayerwiseOutcome) -> Plan:
    """`plan` with the best layer-wise plan in its list, and the proof of both searches."""
    best, proof = candidate(resolved, outcome), plan.certificate
    if best is None and outcome.stopped:
        text = f"{outcome.stopped} before plans with strategies of their own were compared"
        return plan.with_warnings([text], cut_short=[outcome.stopped])
    if best is None:
        text = "no plan with strategies of their own for its layers is faster than the best with one for all"
        return plan.with_warnings([text if outcome.best else _NOTHING_FITS])
    listed = sorted([best, *plan.candidates[: max(resolved.request.top - 1, 1)]], key=lambda choice: choice.step_s)
    listed = [choice.model_copy(update={"choice": index + 1}) for index, choice in enumerate(listed)]
    stopped, best_s = proof.stopped or outcome.stopped, listed[0].step_s
    bound = min(best_s, outcome.lower_bound_s, proof.lower_bound_s if proof.lower_bound_s is not None else 0.0)
    gap = max(0.0, 1.0 - bound / best_s)
    changed = {"lower_bound_s": rounded(bound), "gap": rounded(gap), "stopped": stopped,
               "proven": stopped is None and gap < _EQUAL}  # fmt: skip
    return plan.model_copy(update={"candidates": tuple(listed), "certificate": proof.model_copy(update=changed)})


def _in_runs(best: Assignment) -> Assignment:
    """The same plan with fewer runs of equal strategies, for a shorter document.

    Neighbours of one stage that cut sequences alike and are equal layers may change places: sums, bytes and resharding
    stay. So their strategies are sorted.
    """
    instance = best.instance
    rows = list(best.rows)
    start = 0
    split = instance.prices.split
    for items in instance.items:
        if len({item for item in items if item >= 0}) == 1:
            keys = [(item, int(split[rows[start + position]])) for position, item in enumerate(items)]
            for (item, _), group in groupby(range(len(items)), key=keys.__getitem__):
                positions = [start + position for position in group]
                if item >= 0:
                    rows[positions[0] : positions[-1] + 1] = sorted(rows[position] for position in positions)
        start += len(items)
    return Assignment(instance, tuple(rows), best.step_s)


def _layer_plan(best: Assignment, outcome: LayerwiseOutcome) -> LayerPlan:
    layouts = best.instance.prices.whole.layouts
    runs = []
    start = 0
    for row, group in groupby(best.rows[1:-1]):
        size = len(list(group))
        runs.append(LayerRun(layers=(start, start + size - 1), strategy=str(layouts.layout(row))))
        start += size
    used = dict.fromkeys(sorted(best.rows[1:-1], key=lambda row: -best.rows[1:-1].count(row)))
    uniform = outcome.uniform
    return LayerPlan(
        embedding=str(layouts.layout(best.rows[0])), runs=tuple(runs), head=str(layouts.layout(best.rows[-1])),
        best_alike=_uniform(uniform.instance, uniform.rows[0]) if uniform is not None else None,
        used=tuple(_uniform(best.instance, row) for row in used),
        lower_bound_s=rounded(outcome.lower_bound_s), gap=rounded(outcome.gap),
        pipelines=outcome.instances, strategies=outcome.strategies,
    )  # fmt: skip


def _uniform(instance: Instance, row: int) -> UniformPlan:
    """The plan with one strategy everywhere."""
    step_s, device_bytes = instance.uniform()
    at = int(np.flatnonzero(instance.rows == row)[0])
    layout = instance.prices.whole.layouts.layout(row)
    numbers = {"step_s": float(step_s[at]), "device_bytes": float(device_bytes[at])}
    return UniformPlan(strategy=str(layout), **rounded(numbers))


def step_terms_of(best: Assignment) -> dict[str, float]:
    """Seconds of every term (step.TERMS); they sum to the step."""
    instance = best.instance
    prices = best.instance.prices
    rows = best.rows
    pipe, sums = instance.pipeline, instance.sums_of(best.rows)
    cycle, room = pipe.cycle_s(sums)
    slowest, traffic = int(cycle.argmax()), pipe.exposed_s(sums)
    first, items = sum(len(items) for items in instance.items[:slowest]), instance.items[slowest]
    compute = np.zeros(len(COMPONENTS))
    accumulate = copies = 0.0
    for item, row in zip(items, rows[first : first + len(items)], strict=True):
        for kind in instance.kinds_of(slowest, item):
            compute += _components(prices.whole, prices.rates, kind, row)
            accumulate += float(prices.accumulate_s[kind, row])
            copies += float(prices.copies_s[kind, row])
    m, total = pipe.m, float(cycle.sum())
    steady, most = float(sums[slowest, STEADY]), sums[:, REDUCE:].max(axis=0)
    terms = {name: m * float(seconds) for name, seconds in zip(COMPONENTS, compute, strict=True)}
    terms |= {
        "accumulate": m * accumulate, "fsdp": m * (float(traffic[slowest, :2].sum()) + copies),
        "resharding": m * max(steady - accumulate - copies, 0.0), "bubble": max(total - float(cycle[slowest]), 0.0),
        "pp": float(pipe.hops_s(np.array(total), cycle[slowest])),
        "dp": float(pipe.data_parallel_s(most, room[slowest])), "optimizer": float(most[2] + most[3]),
    }  # fmt: skip
    for name, seconds in prices.once_terms.items():
        terms[name] = terms.get(name, 0.0) + float(seconds[rows[-1]])
    return {**terms, "stragglers": pipe.straggler_share * sum(terms.values())}


def _components(whole: Ledger, rates: Rates, kind: int, row: int) -> Array:
    """[component] seconds per micro-batch of one layer of a kind under the strategy of a row."""
    key, code = int(whole.key[row]), whole.codes[int(whole.code[row])]
    kernels = kernel_seconds(whole.tables, rates)
    seconds = kernels.layers[kind]
    return np.asarray(seconds.forward[:, key] + seconds.backward[:, key] + kernels.recompute_s(*code)[kind][:, key])


def _as_terms(terms: dict[str, float], like: Candidate) -> list[dict[str, Any]]:
    """The terms as a candidate has them. Their sources are those of the layout that most layers have."""
    sources: dict[str, str] = {term.name: term.source for term in like.terms}
    return [
        {"name": TERMS[name][0], "seconds": seconds, "exposed": True,
         "overlaps": [TERMS[other][0] for other in TERMS[name][1]],
         "source": sources.get(TERMS[name][0], "assumed")}
        for name, seconds in terms.items() if seconds > 0
    ]  # fmt: skip


def _recomputed(resolved: Resolved, best: Assignment) -> float:
    """FLOPs of one step that are computed a second time."""
    layers, kinds = best.rows[1:-1], resolved.problem.pattern
    total = 0.0
    for row in set(layers):
        with_row = [kind for kind, strategy in zip(kinds, layers, strict=True) if strategy == row]
        layers_of_kind = [float(with_row.count(kind)) for kind in range(resolved.problem.num_kinds)]
        total += recomputed_flops(resolved.problem, _layout(best, row), [*layers_of_kind, 0.0])  # it takes no tower
    return total


def _layout(best: Assignment, row: int) -> Layout:
    return best.instance.prices.whole.layouts.layout(row)


def _memory(resolved: Resolved, best: Assignment) -> list[dict[str, Any]]:
    """Bytes of each stage."""
    out = []
    for stage, num_bytes in enumerate(best.instance.memory_of(best.rows)):
        buffers = {name: size for name, size in num_bytes.items() if name not in ("context", "unusable")}
        context, allocated = num_bytes["context"], sum(buffers.values())
        reserved = allocated * best.instance.reserved + num_bytes["unusable"]
        out.append({
            "stage": stage, **{f"{name}_bytes": size for name, size in buffers.items()}, "allocated_bytes": allocated,
            "reserved_bytes": reserved, "context_bytes": context, "device_bytes": reserved + context, "host_bytes": 0.0,
        })  # fmt: skip
    return out


def _stages(best: Assignment, like: Candidate) -> list[dict[str, Any]]:
    """The chunks, with the number of their layers under full recompute."""
    out: list[dict[str, Any]] = []
    layers: Sequence[int] = best.rows[1:-1]
    for chunk in like.stages:
        first, last = chunk.layers[0], chunk.layers[-1]
        full = sum(RECOMPUTE_MODES[_layout(best, row).recompute] == "full" for row in layers[first : last + 1])
        out.append({**chunk.model_dump(), "recompute_layers": full})
    return out


__all__ = ["added", "best_layers", "candidate", "check", "step_terms_of"]
