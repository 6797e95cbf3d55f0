"""The report on a plan for documents of mixed lengths as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import text
from ..screens import header
from ..screens import mixed_lengths as screens
from ..screens.facts import Facts
from .report import grouped
from .templates import render

if TYPE_CHECKING:
    from ...planner.document.lengths_plan import LengthsPlan
    from ...planner.explain.mixed_lengths import LengthsExplanation
    from ...planner.explain.report import Fact


def lengths_page(plan: LengthsPlan, explanation: LengthsExplanation, facts: Sequence[Fact]) -> str:
    """The whole document."""
    subject = Facts.of(plan)
    degrees = plan.policy("per sequence").degrees
    return render(
        "mixed_lengths.html", plan=plan, explanation=explanation, degrees=degrees,
        title=f"{subject.model} on {header.cluster_text(subject)}", header=screens.header(plan),
        verdict=_verdict(plan, explanation), tiles=_tiles(plan, explanation), lines=list(screens.layout_lines(plan)),
        policies=screens.policy_cells(plan, explanation), lengths=screens.length_cells(explanation),
        groups=screens.degree_cells(explanation), step=screens.step_cells(explanation),
        step_title=screens.step_title(explanation), boxes=list(_boxes(plan, explanation)), facts=grouped(facts),
    )  # fmt: skip


def _verdict(plan: LengthsPlan, explanation: LengthsExplanation) -> str:
    static, own = plan.policy("static"), plan.policy("per sequence")
    idle = {policy.name: policy.idle for policy in explanation.policies}
    return (f"A degree for every document: {text.significant(own.mean_s)} s per step in the mean, "
            f"{text.fixed(static.mean_s / own.mean_s, 2)} times as fast as degree {static.degrees[0]} for all. Ranks "
            f"wait {text.percent(idle['per sequence'])} % of the time of micro-batches, not "
            f"{text.percent(idle['static'])} %.")  # fmt: skip


def _tiles(plan: LengthsPlan, explanation: LengthsExplanation) -> Iterator[tuple[str, str, str]]:
    """(name, number, note)."""
    waits = {policy.name: policy for policy in explanation.policies}
    for policy in plan.policies:
        idle = f"ranks wait {text.significant(waits[policy.name].waits_s)} s of it"
        yield policy.name, f"{text.significant(policy.mean_s)} s", idle
    tokens = explanation.step.tokens / explanation.step.seconds
    yield "tokens per second", text.fixed(tokens, 0), f"step {explanation.step.number}"


@dataclass(frozen=True)
class Box:
    """A group on the picture of a step; a picture is 1,000 wide and as high as there are ranks."""

    x: float
    y: int  # first rank
    width: float
    degree: int  # height
    title: str


def _boxes(plan: LengthsPlan, explanation: LengthsExplanation) -> Iterator[Box]:
    scale = 1000 / explanation.step.seconds
    start_s = 0.0
    for micro_batch in explanation.step.micro_batches:
        start_s += plan.costs.micro_batch_s
        for group in micro_batch.groups:
            words = f"{group.documents} documents, {group.tokens:,} tokens, the longest {group.longest:,}"
            waits = f"{text.duration(group.busy_s)}, then waits {text.duration(group.waits_s)}"
            yield Box(scale * start_s, group.first_rank, scale * group.busy_s, group.degree,
                      f"degree {group.degree}: {words}; {waits}")  # fmt: skip
        start_s += micro_batch.seconds
