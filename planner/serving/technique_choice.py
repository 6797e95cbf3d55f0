"""The search of deployments under techniques of serving, and the choice among those that are left to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...cost_models.techniques.base import Applied
from ...cost_models.techniques.registry import SERVING, applied, of, reasons_apart
from ..document.serving_plan import ServingTechniqueChoice
from ..request.allowed_techniques import technique_sets
from .apart import Apart, search_apart
from .candidates import Question, beside_one_another, deployment_id
from .hours import over_hours
from .search import Deployment, Found, Rival, order, search
from .space import Spaces

Knobs = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Field:
    """The spaces that deployments are sought in."""

    spaces: Spaces  # without techniques
    wide: Spaces  # the same where tensor parallelism may span nodes
    between_bw: float  # bytes/s of a GPU from site to site

    def under(self, techniques: Applied) -> tuple[Spaces, tuple[str, ...]]:
        """The spaces under techniques, and what all of their instances lack."""
        across = any(known.serves and known.serves.across_nodes for known, _ in of(techniques))
        return (self.wide if across else self.spaces).under(techniques)


NO_SPACES = Spaces(together=(), prefill=(), decode=())
NOTHING = Found(deployments=(), rented=False, total=0, by_axis={}, ruled_out={}, out_of_memory=0, dominated=0)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """A set of techniques with its deployments, or the reason why it has none."""

    techniques: Applied
    names: tuple[str, ...] = ()  # of those that were left to the search
    spaces: Spaces = NO_SPACES
    together: Found = NOTHING
    apart: Apart | None = None
    why: str | None = None

    def found(self, load: float | None) -> Found:
        """Deployments together and apart in one order."""
        return self.together if self.apart is None else joined(self.together, self.apart, load)


def searched(field: Field, question: Question, techniques: Applied, rival: Rival | None = None) -> Searched:
    """The deployments under these techniques; with a rival those that may be better."""
    spaces, unmet = field.under(techniques)
    if unmet:
        return Searched(techniques=techniques, why=unmet[0])
    together = search(spaces.together, question.load, question.promises, question.constants, rival)
    if question.rates:
        together = replace(together, deployments=_by_day(together.deployments, question, rented=together.rented))
    instances = [instance for space in (*spaces.together, *spaces.prefill) for instance in space.instances]
    if not spaces.prefill or (instances and beside_one_another(instances[0])):
        return Searched(techniques=techniques, spaces=spaces, together=together)
    apart = search_apart(spaces.prefill, spaces.decode, question.load, question.promises, question.constants,
                         field.between_bw, rival, question.rates)  # fmt: skip
    if question.rates:
        apart = replace(apart, deployments=_by_day(apart.deployments, question, rented=together.rented))
    return Searched(techniques=techniques, spaces=spaces, together=together, apart=apart)


def _by_day(deployments: Sequence[Deployment], question: Question, *, rented: bool) -> tuple[Deployment, ...]:
    """The cheapest over all hours first."""
    priced = over_hours(deployments, question.rates, question.promises, question.constants, rented=rented)
    return tuple(sorted(priced, key=lambda it: order(it, question.load, rented=rented)))


def choose(field: Field, question: Question, given: Knobs, allowed: Knobs) -> tuple[Searched, list[Searched]]:
    """The set of the allowed techniques with the best deployment, and all sets, the best first. given: techniques that
    are always used. A set is compared with the best of those before it, so that most of it need not be priced where the
    load is one rate."""
    every: list[Searched] = []
    best, deployment, rival = None, None, None
    ended = set[tuple[str, ...]]()
    for names in technique_sets(allowed, ended):
        chosen = {**given, **{name: allowed[name] for name in names}}
        if apart := next(reasons_apart(chosen), None):
            every.append(Searched(techniques=(), names=names, why=apart[2]))
            ended.add(names)
            continue
        one = replace(searched(field, question, applied(chosen, SERVING), rival if names else None), names=names)
        if one.why is not None and len(names) == 1:
            ended.add(names)
        found = one.found(question.load)
        if found.deployments:
            first = found.deployments[0]
            if deployment is None or _better(first, deployment, question.load, rented=found.rented):
                best, deployment = one, first
                rival = None if question.rates else _rival(first, rented=found.rented)
        every.append(one)
    return best or every[0], every


def choices(every: Sequence[Searched], load: float | None) -> tuple[ServingTechniqueChoice, ...]:
    """The sets as the plan lists them: those with a deployment, the best first, then the others."""
    return tuple(_choice(one, load) for one in sorted(every, key=lambda it: _rank(it, load)))


def _rank(one: Searched, load: float | None) -> tuple[bool, tuple[float, ...], int]:
    found = one.found(load)
    if not found.deployments:
        return True, (), len(one.names)
    return False, order(found.deployments[0], load, rented=found.rented)[:2], len(one.names)


def summed(best: Searched, every: Sequence[Searched], load: float | None) -> Found:
    """The deployments of the best set, with the counts of all sets."""
    mine = best.found(load)
    for found in (one.found(load) for one in every if one is not best):
        names = {**mine.ruled_out, **found.ruled_out}
        mine = replace(
            mine, total=mine.total + found.total, out_of_memory=mine.out_of_memory + found.out_of_memory,
            dominated=mine.dominated + found.dominated,
            bounded=mine.bounded + found.bounded + len(found.deployments),
            ruled_out={name: mine.ruled_out.get(name, 0) + found.ruled_out.get(name, 0) for name in names},
        )  # fmt: skip
    return mine


def joined(found: Found, apart: Apart, load: float | None) -> Found:
    """Deployments together and apart in one order."""
    every = sorted((*found.deployments, *apart.deployments), key=lambda it: order(it, load, rented=found.rented))
    ruled_out = {**found.ruled_out, "promise": found.ruled_out.get("promise", 0) + apart.broken}
    ruled_out |= {"transfer": apart.unlike} if apart.unlike else {}
    return replace(found, deployments=tuple(every), total=found.total + apart.total, ruled_out=ruled_out,
                   out_of_memory=found.out_of_memory + apart.out_of_memory,
                   bounded=found.bounded + apart.bounded)  # fmt: skip


def _better(one: Deployment, other: Deployment, load: float | None, *, rented: bool) -> bool:
    """By more than the rounding of a search, so that techniques are only used where they give something."""
    ours, theirs = (order(it, load, rented=rented)[:2] for it in (one, other))
    if load is None:
        return ours[0] < theirs[0] * (1 + 1e-6)  # loads, negative
    return ours[0] < theirs[0] * (1 - 1e-9) or (ours[0] <= theirs[0] and ours[1] < theirs[1] * (1 + 1e-6))


def _rival(best: Deployment, *, rented: bool) -> Rival:
    return Rival(price=best.price(rented=rented), largest_load=best.largest_load, rented=rented)


def _choice(one: Searched, load: float | None) -> ServingTechniqueChoice:
    found = one.found(load)
    if one.why is not None:
        return ServingTechniqueChoice(names=one.names, why=one.why)
    if not found.deployments:
        why = "no better than fewer of them" if found.bounded else "no deployment keeps the promises"
        return ServingTechniqueChoice(names=one.names, why=why)
    best = found.deployments[0]
    return ServingTechniqueChoice(
        names=one.names, deployment_id=deployment_id(best), gpus=best.gpus, usd_per_hour=best.usd_per_hour,
        gpu_hours=best.gpu_hours, largest_load=best.largest_load,
    )  # fmt: skip
