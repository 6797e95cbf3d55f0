"""A plan whose numbers change while somebody looks: its layouts priced anew at once, and searched anew beside it.

Changes are those of `what-if --set`, and every price is that of `evaluate` or `plan`. Where links between
nodes differ, all count as the slowest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import NoFeasibleLayoutError
from ..api import plan_resolved
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..drivers.given_layout import compare_layouts
from ..drivers.watch import Watch
from ..evaluation.staged import Staged
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from ..request.target_choice import for_able_target
from ..search.executors import opened
from ..search.tasks import Answer, trace
from ..space.rules import violations
from ..studies import sensitivity
from ..studies.base import Question
from ..studies.changes import apply, is_knob
from ..studies.knobs import HARDWARE, Knob
from ..studies.paths import Value
from ..studies.pricing import HeldLayout, held_on
from ..studies.sensitivity import Sensitivity
from ..studies.values import parse_sets
from ..studies.what_if import refuse_groups
from .pipeline_chart import PipelineChart, pipeline_chart

FRONTIER_S = 20.0  # time limit of a frontier
Fields = tuple[tuple[str, Value], ...]
Check = Callable[[], None]  # raises where nobody waits for an answer any more


@dataclass(frozen=True)
class Repriced:
    """Layouts under changed numbers. illegal: reasons by id of a layout that the changes rule out."""

    plan: Plan
    illegal: Mapping[str, str]


class Exploration:
    """The request of a plan under changes."""

    def __init__(self, plan: Plan) -> None:
        """Raises InputError where the plan's layouts treat groups of nodes differently."""
        refuse_groups(plan.best, "explore")
        self.plan = plan
        self._request = resolve(request_from_dict(plan.request))
        self._bases: dict[Fields, Resolved] = {}  # by the changes of fields, which are resolved anew

    def changed(self, sets: Sequence[str]) -> Resolved:
        """The request with `path=value` each. Raises InputError and UnsupportedError."""
        values = parse_sets(sets)
        fields = tuple((path, value) for path, value in values.items() if not is_knob(path, value))
        if fields not in self._bases:
            self._bases[fields] = for_able_target(apply(self._request, dict(fields)))
        return apply(self._bases[fields], {path: value for path, value in values.items() if is_knob(path, value)})

    def knobs(self, resolved: Resolved) -> dict[Knob, float]:
        """The numbers of the hardware, in base units."""
        return {knob: value for knob in HARDWARE if (value := knob.read(resolved)) is not None}

    def repriced(self, resolved: Resolved, layouts: Sequence[HeldLayout]) -> Repriced:
        """The layouts, as far as they can `follow`. Raises NoFeasibleLayoutError where none is legal."""
        illegal, legal = dict[str, str](), list[HeldLayout]()
        for held in layouts:
            fitted = held_on(held, resolved)
            problems = violations(fitted.layout, resolved.problem)
            if problems:
                illegal[held.id] = problems[0]
            elif fitted not in legal:
                legal.append(fitted)
        if not legal:
            reasons = "\n".join(f"{name}: {reason}" for name, reason in illegal.items())
            hint = "a search may find others"
            raise NoFeasibleLayoutError(f"none of these layouts is legal here\n{reasons}", hint=hint)
        return Repriced(compare_layouts(resolved, [(held.layout, held.partition) for held in legal]), illegal)

    def searched(self, resolved: Resolved, check: Check) -> Plan:
        """The plan of the changed request. Raises what `check` raises, and NoFeasibleLayoutError."""
        with opened(1, None) as pool:
            return plan_resolved(resolved, Watch(lambda done, total, note: check(), None, pool))

    def frontier(self, resolved: Resolved, check: Check) -> Answer:
        """The frontier of time and memory; after FRONTIER_S the part that is known. Raises the errors of `check`."""
        ends_s = time.monotonic() + FRONTIER_S

        def should_stop() -> bool:
            check()
            return time.monotonic() >= ends_s

        return trace(resolved, should_stop=should_stop)

    def sensitivity(self, resolved: Resolved, candidate: Candidate) -> Sensitivity:
        """The sensitivity of the step of a layout."""
        return sensitivity.run(Question(resolved, held_of(candidate)))

    def pipeline(self, resolved: Resolved, candidate: Candidate) -> PipelineChart | None:
        """The simulated pipeline of a layout."""
        held = held_of(candidate)
        return pipeline_chart(Staged.of(resolved, held.layout, held.partition, simulate=True))


def held_of(candidate: Candidate) -> HeldLayout:
    """The layout of a candidate, as studies hold it. Raises UnsupportedError where layers have strategies of their
    own."""
    return HeldLayout(candidate.to_layout(), candidate.partition)
