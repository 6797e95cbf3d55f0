"""Prices of one layout under many rates, and of the best layout under each.

Only seconds depend on rates (docs/concepts/pricing.md), so requests that differ in rates alone are priced together: a
row per request, the numbers in which their rates differ as columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from ...cost_models import build_ledger
from ...cost_models.layouts import PRECISIONS, Layout, Layouts
from ...cost_models.quantities.stages import Partition
from ...cost_models.quantities.tables import build, index_keys
from ...cost_models.rates.rates import Rates
from ...cost_models.step import step
from ...cost_models.units import HOUR_S
from ...errors import InputError, NoFeasibleLayoutError
from ..document.candidate import Candidate
from ..document.partitions import layout_id
from ..drivers.headroom import leaving_most
from ..evaluation.infeasible import does_not_fit, no_headroom, no_legal_layout
from ..evaluation.interruptions import on_spot
from ..heterogeneous.islands import applies
from ..request.resolve import Resolved
from ..search.rate_sweep import RateSweep
from ..search.run import search_of
from ..search.top_k import TIE
from ..space.rules import violations

_LABELS = ("source", "sources", "name")  # of where a number comes from: they change no price
# What knobs of the hardware turn: the formulas only multiply and divide by these, so they may be arrays.
_TURNED = ("peak_flops_per_s", "memory_bw_bytes_per_s", "bw_bytes_per_s", "latency_s", "pcie_bw_bytes_per_s",
           "host_memory_bw_bytes_per_s", "ramp_k", "vector_flops_per_s")  # fmt: skip
_TRILLION = 1e12


class Priced(BaseModel):
    """A layout with its price."""

    model_config = ConfigDict(frozen=True)

    layout_id: str
    num_gpus: int
    step_s: float
    terms: dict[str, float]  # exposed seconds by name; they sum to step_s
    device_bytes: float  # of the fullest GPU
    memory_bytes: float  # that a layout may use of each GPU
    budget_bytes: float  # that a layout may use of each GPU to be chosen: it leaves the headroom
    tokens_per_s: float  # of uninterrupted steps, also on spot nodes
    usd_per_ttoken: float | None  # dollars per trillion tokens; None: no price is known
    price_source: str  # of usd_per_ttoken; empty without one
    mwh_per_ttoken: float | None  # MWh of the GPUs, at their board power, per trillion tokens; None: it is not known
    problems: tuple[str, ...] = ()  # why it cannot run

    @property
    def runs(self) -> bool:
        return not self.problems

    @property
    def eligible(self) -> bool:
        """Whether a search would list it: it runs and leaves the headroom."""
        return self.runs and self.device_bytes <= self.budget_bytes


@dataclass(frozen=True)
class _Row:
    """The numbers of one layout on one request, before they are worded."""

    step_s: float
    device_bytes: float
    host_bytes: float
    terms: Mapping[str, float]


_ILLEGAL = _Row(math.nan, math.nan, 0.0, {})  # a layout that is not legal has no seconds


@dataclass(frozen=True)
class HeldLayout:
    """The layout that a question holds."""

    layout: Layout
    partition: Partition | None = None  # where its stages are not the even ones

    @property
    def id(self) -> str:
        return layout_id(self.layout, self.partition)


def price_held(held_layout: HeldLayout | Layout, variants: Sequence[Resolved]) -> list[Priced]:
    """The layout on each request, as far as it can `follow`, by the closed form."""
    held_layout = held_layout if isinstance(held_layout, HeldLayout) else HeldLayout(held_layout)
    out: list[Priced | None] = [None] * len(variants)
    groups: list[tuple[HeldLayout, list[int]]] = []
    for index, variant in enumerate(variants):
        fitted = held_on(held_layout, variant)
        for known, members in groups:
            if known == fitted and _same_problem(variants[members[0]], variant):
                members.append(index)
                break
        else:
            groups.append((fitted, [index]))
    for fitted, members in groups:
        chosen = [variants[index] for index in members]
        problems = tuple(violations(fitted.layout, chosen[0].problem))
        rows = [_ILLEGAL] * len(members) if problems else _rows(fitted, chosen)
        problems = problems or _not_for(chosen[0], fitted)
        for index, row in zip(members, rows, strict=True):
            out[index] = _priced(variants[index], fitted, row, problems)
    return [price for price in out if price is not None]


def held_on(held_layout: HeldLayout, resolved: Resolved) -> HeldLayout:
    """The layout as it can `follow`, with its own stages where the model has the layers for them."""
    fits = held_layout.partition is not None and sum(held_layout.partition.sizes) == resolved.model.num_layers
    return HeldLayout(follow(held_layout.layout, resolved), held_layout.partition if fits else None)


def _not_for(resolved: Resolved, held_layout: HeldLayout) -> tuple[str, ...]:
    """Why a legal layout is none of the space that is searched: the target cannot run it, or a value is fixed."""
    columns, target = Layouts.of([held_layout.layout]), resolved.target
    cannot = target.supports(columns, resolved.problem)[1][0]
    if reason := cannot or target.cannot_split(held_layout.partition, resolved.model):
        return (f"{target.name} cannot run it: {reason}",)
    broken = [rule.name for rule in resolved.fixes if not bool(rule.allows(columns, resolved.problem)[0])]
    return (f"fixed otherwise: {', '.join(broken)}",) if broken else ()


def follow(layout: Layout, resolved: Resolved) -> Layout:
    """The layout in the precision and on the number of GPUs of a request: dp takes the difference, and a shard group
    that spans dp goes on doing so."""
    layout = replace(layout, precision=PRECISIONS.index(resolved.workload.precision))
    num_gpus, rest = resolved.cluster.num_gpus, layout.tp * layout.cp * layout.pp
    if num_gpus == layout.num_gpus or num_gpus % rest:
        return layout
    dp = num_gpus // rest
    whole = layout.shard == layout.dp or dp % layout.shard
    return replace(layout, dp=dp, shard=dp if whole else layout.shard)


def _same_problem(resolved: Resolved, other: Resolved) -> bool:
    return resolved.problem is other.problem or resolved.problem == other.problem


def _rows(held_layout: HeldLayout, variants: Sequence[Resolved]) -> list[_Row]:
    """Prices under the rates of each request; all have the same problem."""
    try:
        rates: Rates = _stacked([variant.rates for variant in variants])
    except _DifferentInKindError:
        return [row for variant in variants for row in _rows(held_layout, [variant])]
    columns = Layouts.of([held_layout.layout] * len(variants))
    keys, index = index_keys(columns)
    if len(variants) > 1:  # a key per row, since the rates differ
        keys, index = {name: np.repeat(key, len(variants)) for name, key in keys.items()}, np.arange(len(variants))
    priced = build(variants[0].problem, keys)
    if len(variants) > 1:  # equal keys have other seconds under other rates
        priced = replace(priced, operations=tuple(replace(ops, alike=None) for ops in priced.operations))
    batch = build_ledger.build(variants[0].problem, priced, columns, index, held_layout.partition)
    estimate = step.price(batch, rates, detail=True)
    terms = {step.TERMS[name][0]: np.broadcast_to(s, len(variants)).tolist() for name, s in estimate.terms.items()}
    return [
        _Row(float(estimate.step_s[i]), float(estimate.device_bytes[i]), float(estimate.host_bytes[i]),
             {name: seconds[i] for name, seconds in terms.items() if seconds[i] > 0})
        for i in range(len(variants))
    ]  # fmt: skip


class _DifferentInKindError(Exception):
    """Rates that differ in more than numbers: other fits, another kind of link, another number of levels."""


def _stacked(values: Sequence[Any]) -> Any:
    """One value out of many alike: numbers of _TURNED that differ become an array, the rest is the same in all."""
    first = values[0]
    if all(value is first for value in values):
        return first
    if is_dataclass(first) and not isinstance(first, type):
        parts = {field.name: [getattr(value, field.name) for value in values] for field in fields(first)}
        turned = {n for n in _TURNED if isinstance(getattr(first, n, None), int | float) and len({*parts[n]}) > 1}
        changed = {n: np.array(p) if n in turned else _stacked(p) for n, p in parts.items() if n not in _LABELS}
        return replace(first, **changed)
    if isinstance(first, Mapping):
        if any(value.keys() != first.keys() for value in values):
            raise _DifferentInKindError
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        if any(len(value) != len(first) for value in values):
            raise _DifferentInKindError
        return tuple(_stacked([value[i] for value in values]) for i in range(len(first)))
    if all(value == first for value in values):
        return first
    raise _DifferentInKindError


def of_candidate(resolved: Resolved, candidate: Candidate) -> Priced:
    """A candidate of a plan as it was priced there: simulated, where it has a pipeline."""
    terms = {term.name: term.seconds for term in candidate.terms if term.exposed}
    on_host = max(stage.host_bytes for stage in candidate.memory)
    row = _Row(candidate.step_s, candidate.device_bytes, on_host, terms)
    return _priced(resolved, HeldLayout(candidate.to_layout(), candidate.partition), row, ())


def _priced(resolved: Resolved, held_layout: HeldLayout, row: _Row, problems: tuple[str, ...]) -> Priced:
    """The row with money, energy and what stands in its way."""
    if row.device_bytes > resolved.memory_bytes:
        problems += ("out of memory",)
    if row.host_bytes > resolved.host_bytes:
        problems += ("out of host memory",)
    usd, watts = resolved.cluster.usd_per_hour, gpu_watts(resolved)
    expected = on_spot(resolved)
    hours = _TRILLION / resolved.workload.tokens_per_step * row.step_s / HOUR_S
    hours /= 1.0 if expected is None else expected.goodput
    return Priced(
        layout_id=held_layout.id, num_gpus=resolved.cluster.num_gpus, step_s=row.step_s, terms=dict(row.terms),
        device_bytes=row.device_bytes, memory_bytes=resolved.memory_bytes,
        budget_bytes=resolved.budget_bytes, tokens_per_s=resolved.workload.tokens_per_step / row.step_s,
        usd_per_ttoken=None if usd is None else usd * hours, price_source=resolved.cluster.price_source,
        mwh_per_ttoken=None if watts is None else watts * hours / 1e6, problems=problems,
    )  # fmt: skip


def gpu_watts(resolved: Resolved) -> float | None:
    """Board power of all GPUs by their data sheets; None if one has none. No host, network or cooling in it."""
    powers = [(group.gpu.tdp_w, group.num_gpus) for group in resolved.cluster.groups]
    return sum(w * n for w, n in powers if w) if all(watts for watts, _ in powers) else None


Seen = list[Layout]
Stop = Callable[[], bool]


def replanned(
    resolved: Resolved, seeds: Seen, should_stop: Stop | None = None, *, explain: bool = True,
    shared: RateSweep | None = None,
) -> Priced:  # fmt: skip
    """The best layout of `resolved`, searched exactly. `seeds`: layouts that were best nearby; their price here bounds
    the search from its start, and the best layout is put in front of them. `shared`: the search of all requests that
    differ from it in rates alone. A seed that leaves less than the headroom bounds nothing: the search keeps to it.
    Where no layout leaves it, the result is that of a plan (`leaving_most`).

    Raises InputError for unlike groups of nodes, NoFeasibleLayoutError if nothing is legal or nothing fits; `explain`:
    with what would fit, which takes a few searches more.
    """
    if resolved.request.stages is None and applies(resolved):
        raise InputError(f"{resolved.cluster.name} has unlike groups of nodes, and what-if prices all GPUs alike: no "
                         "layout is searched that uses each as it is",
                         hint="`meshwright plan` searches them")  # fmt: skip
    near = [follow(seed, resolved) for seed in seeds[:2]]
    by_memory = resolved.workload.objective == "memory"
    prices = [price_held(seed, [resolved])[0] for seed in near]
    values = [price.device_bytes if by_memory else price.step_s for price in prices if price.eligible]
    bound = min(values, default=float("inf")) * (1 + 2 * TIE)  # ties are still found, and ordered by id
    best, _ = leaving_most(resolved, lambda within: _found(within, bound, should_stop, explain, shared))
    if best in seeds:
        seeds.remove(best)
    seeds.insert(0, best)
    return price_held(best, [resolved])[0]


def _found(
    resolved: Resolved, bound: float, should_stop: Stop | None, explain: bool, shared: RateSweep | None
) -> Layout:  # fmt: skip
    """The best layout by the search that requests share, or by one of its own."""
    if shared is None or resolved.headroom_share is not None:  # the shared one keeps no layout beyond the headroom
        return _searched(resolved, bound, should_stop, explain)
    try:
        return shared.best(resolved.rates, memory_bytes=resolved.budget_bytes, incumbent=bound, should_stop=should_stop)
    except NoFeasibleLayoutError as error:
        raise no_headroom(resolved) or error from None


def _searched(resolved: Resolved, bound: float, should_stop: Stop | None, explain: bool) -> Layout:
    """The best layout of a search of its own. Where nothing is within `bound`, which may be that of a layout outside of
    the space, the search is made again without it: only then nothing fits."""
    objective = "memory" if resolved.workload.objective == "memory" else "step"
    search = search_of(resolved, resolved.space, objective=objective, incumbent=bound, should_stop=should_stop)
    outcome = search.run()
    if outcome.stopped:
        raise KeyboardInterrupt
    if outcome.top.rows:
        return outcome.top.rows[0][2]
    if math.isfinite(bound):
        return _searched(resolved, math.inf, should_stop, explain)
    legal = outcome.count.total - sum(outcome.count.ruled_out.values())
    if not explain:
        raise (legal and no_headroom(resolved)) or NoFeasibleLayoutError(f"no layout {'fits' if legal else 'is legal'}")
    raise does_not_fit(resolved, outcome.count) if legal else no_legal_layout(resolved, outcome.count)


def better(searched: Priced, held: Priced) -> Priced:
    """The result of the search, unless the layout held is faster and leaves the headroom: with custom stages it is
    outside of the space."""
    return held if held.eligible and held.step_s < searched.step_s else searched
