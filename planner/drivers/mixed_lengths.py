"""Plans for documents of mixed lengths: one degree for all batches, one for each batch, one for each sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..._version import __version__
from ...cost_models.arrays import Array
from ...cost_models.layouts import Layout
from ...errors import InputError, NoFeasibleLayoutError
from ..batches.batch_plan import BatchPlan, Group
from ..batches.costs import GroupCosts
from ..batches.degree_rules import DegreeRule
from ..batches.draws import draw
from ..batches.family_choice import Candidate, FamilyPlans, best_adaptive, best_static, least_bound
from ..batches.ledger_costs import Family, families, ledger_costs, longest_held
from ..batches.policy import Policy
from ..batches.unlike_degrees import BatchResult, best_plan
from ..document.lengths_plan import CostsPart, DegreePolicyPart, LengthsPlan, RefusedSchemePart, SchemePart
from ..document.plan import digest_of
from ..document.sampler_plan import SamplerBatch, SamplerGroup
from ..request.load import request_to_dict
from ..request.resolve import Resolved
from .assembly import resolved_part
from .watch import Progress

NUM_BATCHES = 20  # drawn
_MOST_DOUBLINGS = 8  # of the nodes, tried where the longest document does not fit


@dataclass(frozen=True)
class DegreePolicy(Policy):
    """Plans of the drawn batches, group by group, on the family of layouts that suits them best."""

    plans: tuple[BatchPlan, ...]
    family: Family
    costs: GroupCosts

    @classmethod
    def of(cls, name: str, best: FamilyPlans) -> DegreePolicy:
        return cls(name, best.plans, best.family, best.costs)

    @property
    def widest_layout(self) -> Layout:
        """The layout of its widest groups; their micro-batches hold tokens, not sequences."""
        return self.family.layout(self.degrees[-1], self.costs.num_ranks * self.family.tp * self.family.pp)


@dataclass(frozen=True)
class MixedLengthsPlan:
    """Policies side by side."""

    resolved: Resolved
    batches: tuple[Array, ...]  # [batch][document] tokens
    static: DegreePolicy
    adaptive: DegreePolicy
    per_sequence: DegreePolicy
    max_gap: float  # of the per-sequence plans to their bounds, relative
    mean_gap: float
    seed: int
    rule: tuple[DegreeRule, int] | None = None  # of the framework that chooses degrees, and the tokens of a rank
    schemes: tuple[SchemePart, ...] = ()  # published ones, on the same batches
    refused_schemes: tuple[RefusedSchemePart, ...] = ()

    @property
    def policies(self) -> tuple[DegreePolicy, DegreePolicy, DegreePolicy]:
        return self.static, self.adaptive, self.per_sequence

    @property
    def costs(self) -> GroupCosts:
        """Those of the per-sequence plans."""
        return self.per_sequence.costs

    def document(self) -> LengthsPlan:
        """The plan as it is written to a file."""
        request = request_to_dict(self.resolved.request)
        return LengthsPlan(
            tool={"name": "meshwright", "version": __version__}, request=request, request_sha256=digest_of(request),
            layout_id=str(self.static.widest_layout),
            widest_layout_id=str(self.per_sequence.widest_layout),
            rank_tokens=self.costs.rank_tokens, ranks=self.costs.num_ranks, seed=self.seed,
            batches=len(self.batches), max_gap=self.max_gap, mean_gap=self.mean_gap,
            costs=_costs_part(self.costs), **self._by_rule(),
            policies=tuple(map(_policy_part, self.policies)),
            schemes=self.schemes, refused_schemes=self.refused_schemes, resolved=resolved_part(self.resolved),
            warnings=(*(warning.text for warning in self.resolved.warnings), *self._slower()),
        )  # fmt: skip

    def _by_rule(self) -> dict[str, Any]:
        """Fields of LengthsPlan."""
        if self.rule is None:
            return {}
        rule, tokens = self.rule
        return {"rule": rule.name, "rule_tokens": tokens, "one_by_one": rule.one_by_one}

    def _slower(self) -> Iterator[str]:
        static, own = self.static, self.per_sequence
        if own.mean_s > static.mean_s:
            yield (f"one degree for all batches is faster than the rule of {self.resolved.target.framework}: "
                   f"{static.mean_s:.3g} s per step, not {own.mean_s:.3g} s")  # fmt: skip

    def sampler_lines(self) -> Iterator[str]:
        """The sampler plan of the per-sequence policy: a header, then a JSON line per batch."""
        yield self.document().header.model_dump_json()
        for number, (plan, lengths) in enumerate(zip(self.per_sequence.plans, self.batches, strict=True)):
            yield SamplerBatch(
                batch=number, lengths=tuple(int(length) for length in lengths),
                microbatches=tuple(tuple(_placed(groups)) for groups in plan.micro_batches),
            ).model_dump_json()  # fmt: skip


def _policy_part(policy: DegreePolicy) -> DegreePolicyPart:
    return DegreePolicyPart(
        name=policy.name, mean_s=policy.mean_s, p95_s=policy.p95_s, degrees=policy.degrees,
        mean_micro_batches=policy.mean_micro_batches, layout_id=str(policy.widest_layout),
        costs=_costs_part(policy.costs),
    )  # fmt: skip


def _costs_part(costs: GroupCosts) -> CostsPart:
    """The costs as they are written: numbers of numpy become those of Python."""
    return CostsPart(
        degrees=tuple(costs.degrees.tolist()), grid=tuple(costs.grid.tolist()),
        token_s=tuple(map(tuple, costs.token_s.tolist())), micro_batch_s=costs.micro_batch_s, once_s=costs.once_s,
        ranks=costs.num_ranks, rank_tokens=costs.rank_tokens,
    )  # fmt: skip


def _placed(groups: Sequence[Group]) -> Iterator[SamplerGroup]:
    """Groups with their ranks: descending degrees, so that each begins at a multiple of its own."""
    first = 0
    for group in groups:
        yield SamplerGroup(cp=group.degree, ranks=tuple(range(first, first + group.degree)), seqs=group.sequences)
        first += group.degree


def plan_mixed_lengths(
    resolved: Resolved, progress: Progress | None = None, seed: int = 0, num_batches: int = NUM_BATCHES
) -> MixedLengthsPlan:
    """Plan `num_batches` drawn batches under the three policies.

    Raises InputError for what is not planned by sequence, NoFeasibleLayoutError where all ranks together do not hold
    the longest document.
    """
    check(resolved)
    batches = draw(resolved.workload.lengths, resolved.workload.global_batch, num_batches, seed)
    longest = max(length for length, _ in resolved.workload.lengths)
    candidates = _candidates(resolved, longest)
    adaptive = best_adaptive(candidates, batches)
    family, costs = least_bound(candidates, batches)
    results = _best_plans(batches, costs, progress)
    if sum(result.plan.step_s for result in results) >= adaptive.total_s:
        family, costs = adaptive.family, adaptive.costs
        results = _best_plans(batches, costs, progress)
    return _beside(resolved, batches, best_static(candidates, batches, longest), adaptive,
                   (family, costs), results, seed)  # fmt: skip


def _best_plans(batches: Sequence[Array], costs: GroupCosts, progress: Progress | None) -> list[BatchResult]:
    results = list[BatchResult]()
    for number, lengths in enumerate(batches):
        if progress is not None:
            progress(number, len(batches), "planning batches")
        results.append(best_plan(lengths, costs))
    return results


def beside_one_degree(
    resolved: Resolved, candidate: Candidate, batches: Sequence[Array], longest: int, results: Sequence[BatchResult],
    seed: int, rule: tuple[DegreeRule, int],
) -> MixedLengthsPlan:  # fmt: skip
    """The plans of a framework's rule (`results`) beside those of one degree on the same family of layouts. longest:
    tokens of the longest document that a run may meet. rule: with the tokens of a rank."""
    static, adaptive = best_static([candidate], batches, longest), best_adaptive([candidate], batches)
    return _beside(resolved, batches, static, adaptive, candidate, results, seed, rule)


def _beside(
    resolved: Resolved, batches: Sequence[Array], static: FamilyPlans, adaptive: FamilyPlans, own: Candidate,
    results: Sequence[BatchResult], seed: int, rule: tuple[DegreeRule, int] | None = None,
) -> MixedLengthsPlan:  # fmt: skip
    gaps = [result.gap for result in results]
    return MixedLengthsPlan(
        resolved, tuple(batches), DegreePolicy.of("static", static), DegreePolicy.of("adaptive", adaptive),
        DegreePolicy("per sequence", tuple(result.plan for result in results), *own),
        max_gap=float(max(gaps)), mean_gap=float(np.mean(gaps)), seed=seed, rule=rule,
    )  # fmt: skip


def check(resolved: Resolved) -> None:
    """Raises InputError for what is not planned by sequence."""
    request, hint = resolved.request, "leave it out, or `--max-len`"
    refused = {"--fix": request.fix, "--stages": request.stages, "--pad": not request.workload.packed,
               "--technique": request.workload.techniques, "--lora": request.workload.train.lora,
               "--objective memory": request.workload.objective == "memory"}  # fmt: skip
    if given := [name for name, value in refused.items() if value]:
        raise InputError(f"--max-len and {given[0]}: a degree for every sequence is not planned with it", hint=hint)
    if resolved.model.is_moe:
        text = f"--max-len: {resolved.model.name} has experts, whose groups would cross those of sequences"
        raise InputError(text, hint=hint)
    if len(resolved.cluster.groups) > 1 or resolved.cluster.links is not None:
        raise InputError("--max-len: nodes that differ are not planned by sequence", hint="name one kind of node")


def _candidates(resolved: Resolved, longest: int) -> list[Candidate]:
    """The families that hold the longest document, with their costs."""
    priced = [(family, costs) for family in families(resolved) if (costs := ledger_costs(resolved, family))]
    if able := [(family, costs) for family, costs in priced if costs.longest >= longest]:
        return able
    raise too_long(resolved, longest, max((costs.longest for _, costs in priced), default=0), families)


def too_long(
    resolved: Resolved, longest: int, held: int, compared: Callable[[Resolved], Iterable[Family]]
) -> NoFeasibleLayoutError:
    """No family holds the longest document: the least number of GPUs that would, in doublings of those there are."""
    gpus = resolved.problem.num_gpus
    text = f"a document of {longest:,} tokens does not fit: {gpus:,} GPUs together hold {held:,} tokens of one"
    group = resolved.cluster.groups[0]
    for doublings in range(1, _MOST_DOUBLINGS + 1):
        more = replace(group, num_nodes=group.num_nodes << doublings)
        larger = replace(resolved, cluster=replace(resolved.cluster, groups=(more,)))
        if any(longest_held(larger, family) >= longest for family in compared(larger)):
            shorter = f", or `--max-len {held}`" if held else ""
            return NoFeasibleLayoutError(text, hint=f"{more.num_gpus:,} GPUs hold it{shorter}")
    return NoFeasibleLayoutError(text, hint=f"{more.num_gpus:,} GPUs do not hold it: shorter documents")
