"""The search of deployments under techniques of serving, and the choice among those that are left to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...cost_models.techniques.base import Applied
from ...cost_models.techniques.registry import SERVING, applied, exclusions, of
from ..document.serving_plan import ServingTechniqueChoice
from ..request.allowed_techniques import technique_sets
from .candidates import Demand, beside_one_another, deployment_id
from .disaggregated import DisaggregatedResult, search_disaggregated
from .hours import over_hours
from .search import Deployment, DeploymentResult, Incumbent, order, search
from .space import Spaces

Knobs = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class TechniqueSpaces:
    """The spaces that deployments are sought in."""

    spaces: Spaces  # without techniques
    wide: Spaces  # the same where tensor parallelism may span nodes
    between_bw: float  # bytes/s of a GPU from site to site

    def under(self, techniques: Applied) -> tuple[Spaces, tuple[str, ...]]:
        """The spaces under techniques, and what all of their instances lack."""
        across = any(known.serves and known.serves.across_nodes for known, _ in of(techniques))
        return (self.wide if across else self.spaces).under(techniques)


NO_SPACES = Spaces(aggregated=(), prefill=(), decode=())
NOTHING = DeploymentResult(
    deployments=(), rented=False, total=0, by_axis={}, ruled_out={}, out_of_memory=0, dominated=0
)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A set of techniques with its deployments, or the reason why it has none."""

    techniques: Applied
    names: tuple[str, ...] = ()  # of those that were left to the search
    spaces: Spaces = NO_SPACES
    aggregated: DeploymentResult = NOTHING
    disaggregated: DisaggregatedResult | None = None
    why: str | None = None

    def result(self, load: float | None) -> DeploymentResult:
        """Aggregated and disaggregated deployments in one order."""
        return self.aggregated if self.disaggregated is None else joined(self.aggregated, self.disaggregated, load)


def searched(
    field: TechniqueSpaces, demand: Demand, techniques: Applied, incumbent: Incumbent | None = None
) -> Searched:
    """The deployments under these techniques; with an incumbent those that may be better."""
    spaces, unmet = field.under(techniques)
    if unmet:
        return Searched(techniques=techniques, why=unmet[0])
    aggregated = search(spaces.aggregated, demand.load, demand.promises, demand.constants, incumbent)
    if demand.rates:
        aggregated = replace(aggregated, deployments=_by_day(aggregated.deployments, demand, rented=aggregated.rented))
    instances = [instance for space in (*spaces.aggregated, *spaces.prefill) for instance in space.instances]
    if not spaces.prefill or (instances and beside_one_another(instances[0])):
        return Searched(techniques=techniques, spaces=spaces, aggregated=aggregated)
    disaggregated = search_disaggregated(spaces.prefill, spaces.decode, demand.load, demand.promises, demand.constants,
                         field.between_bw, incumbent, demand.rates)  # fmt: skip
    if demand.rates:
        by_day = _by_day(disaggregated.deployments, demand, rented=aggregated.rented)
        disaggregated = replace(disaggregated, deployments=by_day)
    return Searched(techniques=techniques, spaces=spaces, aggregated=aggregated, disaggregated=disaggregated)


def _by_day(deployments: Sequence[Deployment], demand: Demand, *, rented: bool) -> tuple[Deployment, ...]:
    """The cheapest over all hours first."""
    priced = over_hours(deployments, demand.rates, demand.promises, demand.constants, rented=rented)
    return tuple(sorted(priced, key=lambda it: order(it, demand.load, rented=rented)))


def choose(field: TechniqueSpaces, demand: Demand, given: Knobs, allowed: Knobs) -> tuple[Searched, list[Searched]]:
    """The set of the allowed techniques with the best deployment, and all sets, the best first. given: techniques that
    are always used. A set is compared with the best of those before it, so that most of it need not be priced where the
    load is one rate."""
    every: list[Searched] = []
    best, deployment, incumbent = None, None, None
    ended = set[tuple[str, ...]]()
    for names in technique_sets(allowed, ended):
        chosen = {**given, **{name: allowed[name] for name in names}}
        if excluded := next(exclusions(chosen), None):
            every.append(Searched(techniques=(), names=names, why=excluded[2]))
            ended.add(names)
            continue
        one = replace(searched(field, demand, applied(chosen, SERVING), incumbent if names else None), names=names)
        if one.why is not None and len(names) == 1:
            ended.add(names)
        result = one.result(demand.load)
        if result.deployments:
            first = result.deployments[0]
            if deployment is None or _better(first, deployment, demand.load, rented=result.rented):
                best, deployment = one, first
                incumbent = None if demand.rates else _incumbent(first, rented=result.rented)
        every.append(one)
    return best or every[0], every


def choices(every: Sequence[Searched], load: float | None) -> tuple[ServingTechniqueChoice, ...]:
    """The sets as the plan lists them: those with a deployment, the best first, then the others."""
    return tuple(_choice(one, load) for one in sorted(every, key=lambda it: _rank(it, load)))


def _rank(one: Searched, load: float | None) -> tuple[bool, tuple[float, ...], int]:
    result = one.result(load)
    if not result.deployments:
        return True, (), len(one.names)
    return False, order(result.deployments[0], load, rented=result.rented)[:2], len(one.names)


def summed(best: Searched, every: Sequence[Searched], load: float | None) -> DeploymentResult:
    """The deployments of the best set, with the counts of all sets."""
    mine = best.result(load)
    for result in (one.result(load) for one in every if one is not best):
        names = {**mine.ruled_out, **result.ruled_out}
        mine = replace(
            mine, total=mine.total + result.total, out_of_memory=mine.out_of_memory + result.out_of_memory,
            dominated=mine.dominated + result.dominated,
            bounded=mine.bounded + result.bounded + len(result.deployments),
            ruled_out={name: mine.ruled_out.get(name, 0) + result.ruled_out.get(name, 0) for name in names},
        )  # fmt: skip
    return mine


def joined(result: DeploymentResult, disaggregated: DisaggregatedResult, load: float | None) -> DeploymentResult:
    """Aggregated and disaggregated deployments in one order."""
    every = sorted((*result.deployments, *disaggregated.deployments),
                   key=lambda it: order(it, load, rented=result.rented))  # fmt: skip
    ruled_out = {**result.ruled_out, "promise": result.ruled_out.get("promise", 0) + disaggregated.broken}
    ruled_out |= {"transfer": disaggregated.unlike} if disaggregated.unlike else {}
    return replace(result, deployments=tuple(every), total=result.total + disaggregated.total, ruled_out=ruled_out,
                   out_of_memory=result.out_of_memory + disaggregated.out_of_memory,
                   bounded=result.bounded + disaggregated.bounded)  # fmt: skip


def _better(one: Deployment, other: Deployment, load: float | None, *, rented: bool) -> bool:
    """Whether one is better by more than the rounding of a search, so that techniques are only used where they give
    something."""
    ours, theirs = (order(it, load, rented=rented)[:2] for it in (one, other))
    if load is None:
        return ours[0] < theirs[0] * (1 + 1e-6)  # loads, negative
    return ours[0] < theirs[0] * (1 - 1e-9) or (ours[0] <= theirs[0] and ours[1] < theirs[1] * (1 + 1e-6))


def _incumbent(best: Deployment, *, rented: bool) -> Incumbent:
    return Incumbent(price=best.price(rented=rented), largest_load=best.largest_load, rented=rented)


def _choice(one: Searched, load: float | None) -> ServingTechniqueChoice:
    result = one.result(load)
    if one.why is not None:
        return ServingTechniqueChoice(names=one.names, why=one.why)
    if not result.deployments:
        why = "no better than fewer of them" if result.bounded else "no deployment keeps the promises"
        return ServingTechniqueChoice(names=one.names, why=why)
    best = result.deployments[0]
    return ServingTechniqueChoice(
        names=one.names, deployment_id=deployment_id(best), gpus=best.gpus, usd_per_hour=best.usd_per_hour,
        gpu_hours=best.gpu_hours, largest_load=best.largest_load,
    )  # fmt: skip
