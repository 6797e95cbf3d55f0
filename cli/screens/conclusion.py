"""The lines below a plan's layouts: sources of its numbers, proof of the search, other things to try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .facts import Facts
from .header import space_line

if TYPE_CHECKING:
    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan
    from .parts import Part


def closing_lines(plan: Plan) -> list[Part]:
    """Share of the time that rests on measurements, layouts that the model cannot tell apart, proof of the search."""
    best = plan.best
    space = space_line(plan.certificate.space, stopped=bool(plan.certificate.stopped))
    lines = [sources_line(best), *interval_lines(best), *memory_lines(plan), *preference_lines(plan),
             *published_lines(plan), *tie_lines(plan), "", space, certificate_line(plan)]  # fmt: skip
    outside = [] if plan.by_target else outside_lines(plan)
    return [*lines, *outside, *technique_lines(plan), ""]


def outside_lines(plan: Plan) -> list[str]:
    """A faster layout of other software."""
    outside = plan.outside
    if outside is None or not outside.targets:
        return []
    gain = 1 - outside.step_s / plan.best.step_s
    target = outside.targets[0]
    return [
        text.wrapped(f"{outside.layout_id} on {target} would be {text.percent(gain)} % faster: `--target {target}`.")
    ]


_MOST_SETS = 8  # of techniques, that are named


def technique_lines(plan: Plan) -> list[Part]:
    """The sets of allowed techniques, best first; then those that cannot be used, with the reason."""
    rows, reasons = technique_rows(plan)
    if not rows and not reasons:
        return []
    indented = [(f"  {name}", *cells) for name, *cells in rows]
    choices = table("  techniques", "best", "layout", rows=indented, right=("best",))
    return ["", choices, *([""] if reasons else []), *(text.wrapped(reason, "  ") for reason in reasons)]


def technique_rows(plan: Plan) -> tuple[list[tuple[str, str, str]], list[str]]:
    """(techniques, value, layout) of every set that was left to the search, and a sentence for those that cannot be."""
    in_bytes = Facts.of(plan).work.objective == "memory"
    rows: list[tuple[str, str, str]] = []
    refused: dict[str, list[str]] = {}
    for choice in plan.technique_choices:
        name = " + ".join(choice.names) or "none"
        if choice.why:
            refused.setdefault(choice.why.splitlines()[0], []).append(name)
        else:
            value = f"{text.gib(choice.value)} GiB" if in_bytes else f"{text.significant(choice.value)} s"
            rows.append((name, value, choice.layout_id or ""))
    return rows, refused_sets(refused)


def refused_sets(refused: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence for each reason (reason -> names of sets) why sets of techniques cannot be used."""
    return [f"Not {text.listed(names, 'or') if len(names) <= _MOST_SETS else f'{len(names)} other sets'}: {why}"
            for why, names in refused.items()]  # fmt: skip


def sources_line(candidate: Candidate) -> str:
    """Shares of the step by where their seconds come from."""
    shares: dict[str, float] = {}
    for term in candidate.terms:
        if term.exposed:
            shares[term.source] = shares.get(term.source, 0.0) + term.seconds / candidate.step_s
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return text.wrapped("Sources of this time: " + ", ".join(f"{text.share(part)} {name}" for name, part in ordered))


def interval_lines(candidate: Candidate) -> list[str]:
    """The interval that holds nine of ten published runs of this kind."""
    low, high = candidate.step_s_low, candidate.step_s_high
    if low is None or high is None:
        return []
    return [f"90 % interval of its step: {text.significant(low)} to {text.significant(high)} s"]


def memory_lines(plan: Plan) -> list[str]:
    """The memory of the first layout beside the limit, and the chance that a run needs more than there is."""
    facts, best = Facts.of(plan), plan.best
    used, limit = best.least_room(facts.memory_bytes)
    left = f"{text.gib(limit - used)} left" if used <= limit else f"{text.gib(used - limit)} too many"
    headroom = f" (headroom {text.gib(facts.headroom_of(limit))})" if facts.headroom_bytes else ""
    chance = ""
    if best.overflow_chance is not None:
        chance = f"; chance of running out, by published runs: {text.share(best.overflow_chance)}"
    return [text.wrapped(f"Memory: {text.gib(used)} of {text.gib(limit)} GiB per GPU, {left}{headroom}{chance}")]


_REASONS = {
    "offload": "offloads nothing",
    "axes": "has fewer parallel axes",
}


def preference_lines(plan: Plan) -> list[str]:
    """Why the first layout is not the fastest."""
    preference = plan.preference
    if preference is None:
        return []
    why = text.listed([_REASONS[reason] for reason in preference.reasons])
    line = (f"Layout 1 {why}. The fastest, {_fastest(plan)}, leads by less than the error of the model in six of ten "
            f"pairs ({text.percent(preference.indifference)} %): `--fastest` chooses it.")  # fmt: skip
    return [text.wrapped(line)]


def _fastest(plan: Plan) -> str:
    """The fastest layout, by its number where it is listed."""
    name = plan.preference.fastest if plan.preference else plan.best.layout_id
    number = next((candidate.choice for candidate in plan.candidates if candidate.layout_id == name), None)
    return name if number is None else f"layout {number}"


def published_lines(plan: Plan) -> list[str]:
    """The published run whose mesh a layout of the list is nearest to."""
    near = next((candidate for candidate in plan.candidates if candidate.near_run), None)
    if near is None:
        return []
    return [text.wrapped(f"Layout {near.choice} is nearest to a published run of the model: {near.near_run}.")]


def tie_lines(plan: Plan) -> list[str]:
    """Layouts that the model cannot tell apart from the first."""
    best, lead = plan.best, plan.ranking_lead
    if not lead or Facts.of(plan).work.objective == "memory":
        return []
    ties = [candidate for candidate in plan.candidates[1:] if candidate.step_s <= best.step_s * (1 + lead)]
    if not ties:
        return []
    numbers = text.listed([str(candidate.choice) for candidate in (best, *ties)])
    line = f"Layouts {numbers} are nearer to each other than the error of the model ({text.percent(lead)} %): try them."
    return [text.wrapped(line)]


def certificate_line(plan: Plan) -> str:
    """The proof that the search gives of the best layout."""
    certificate = plan.certificate
    better = {"memory": "smaller", "cost": "cheaper"}.get(Facts.of(plan).work.objective, "faster")
    if certificate.stopped:
        sentence = f"The search was stopped ({certificate.stopped}): a {better} layout may exist"
        if certificate.gap is not None and certificate.gap < 1:
            sentence += f", but none is {better} by more than {text.percent(certificate.gap)} %"
        return text.wrapped(f"{sentence}.")
    if certificate.proven and certificate.kept is not None:
        return _simulated_line(plan, certificate.kept, certificate.kept_within or 0.0)
    if certificate.proven and plan.preference is not None:
        return text.wrapped(f"Proven by this model's prices: {_fastest(plan)} is the fastest of this space.")
    if certificate.proven:
        return text.wrapped(f"Proven by this model's prices: no other layout of this space is {better}.")
    if certificate.gap is None:
        return "Not searched: this is the layout that was asked for."
    return text.wrapped(
        f"Proven to {text.percent(certificate.gap)} % by this model's prices: no layout of this space, in "
        f"{_freedom(plan)}, is {better} by more than that."
    )


def _simulated_line(plan: Plan, kept: int, within: float) -> str:
    """The proof by the closed form, and how the simulator ordered the layouts near its best."""
    run = text.count(plan.certificate.space.simulated)
    return text.wrapped(
        f"Proven by this model's prices: all but {text.count(kept)} of the layouts are more than "
        f"{text.percent(within)} % slower than the best by the closed form. {run} of these and of the list were "
        f"simulated: {_fastest(plan)} is the fastest."
    )


def _freedom(plan: Plan) -> str:
    """The decisions beside the layout that the bound covers as well."""
    if layered(plan):
        return "any choice of a strategy for every layer"
    if plan.ways:
        return "any way to use the groups of nodes and any split"
    if plan.best.placement.order is not None:
        return "any order of the nodes"
    return "any split of its layers over the stages"


def layered(plan: Plan) -> bool:
    """Whether a layout of the plan gives layers strategies of their own."""
    return any(candidate.layerwise for candidate in plan.candidates)
