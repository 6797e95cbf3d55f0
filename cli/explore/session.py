"""Answers to an open page: its changes are priced, searched and drawn."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from .. import text
from ..pages import pictures
from ..pages.templates import render
from ..screens import conclusion, header
from ..screens.facts import Facts
from ..screens.memory import capacity
from ..screens.plan import candidate_cells
from ..screens.sensitivity import binding, sensitivity_cells
from ..screens.verdict import outlook_lines, verdict

if TYPE_CHECKING:
    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan
    from ...planner.explain.exploration import Exploration, Repriced
    from ...planner.request.resolve import Resolved
    from ...planner.studies.pricing import HeldLayout


class Ask(BaseModel):
    """The request of a page."""

    model_config = ConfigDict(extra="forbid")

    sets: tuple[str, ...] = ()  # changes, as `what-if --set` takes them
    listed: Annotated[int, Field(ge=0)] = 0  # number of the list of layouts that is shown
    shown: str = ""  # id of the layout that is looked at; empty: the first


Answer = dict[str, object]


class SupersededError(Exception):
    """A later search was asked for: nobody waits for this one."""


@dataclass
class Session:
    """A plan that is explored. lists: the layouts of the plan, then of every search."""

    exploration: Exploration
    path: str  # of the plan, empty without one
    lists: list[tuple[HeldLayout, ...]] = field(default_factory=list)
    wanted: tuple[str, ...] = ()  # the changes that were priced last
    _found: dict[tuple[str, ...], Answer] = field(default_factory=dict)  # searches by their changes
    _priced_last: tuple[Ask, Resolved, Repriced] | None = None
    _searching: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, plan: Plan, path: str) -> Session:
        """A session on a plan. Raises InputError where its layouts cannot be explored."""
        from ...planner.explain.exploration import Exploration

        session = cls(Exploration(plan), path)
        session._keep(plan, ())
        return session

    def price(self, ask: Ask) -> Answer:
        """The table, the seconds and the bytes of the layouts of a list under changed numbers."""
        self.wanted = ask.sets
        resolved, priced, candidate = self._priced(ask)
        plan = priced.plan
        slowest = ["Links between nodes differ. This table uses the slowest; a search places the nodes."]
        page = render(
            "explored.html", plan=plan, candidate=candidate, verdict=verdict(plan, candidate),
            header=header.header(plan), illegal=priced.illegal,
            lines=[*outlook_lines(plan, candidate), *(slowest if resolved.cluster.links is not None else [])],
            cells=candidate_cells(plan.candidates, Facts.of(plan).work.objective, capacity(plan)), limit=capacity(plan),
            time_bars=pictures.time_bars(candidate), sources=pictures.SOURCES,
            memory_bars=pictures.memory_bars(candidate, capacity(plan)), memory_kinds=pictures.MEMORY_KINDS,
        )  # fmt: skip
        knobs = {knob.path: text.value_at(knob.path, value, knob.dimension)
                 for knob, value in self.exploration.knobs(resolved).items()}  # fmt: skip
        return {"html": page, "knobs": knobs, "shown": candidate.layout_id, "command": self._command(ask.sets)}

    def pipeline(self, ask: Ask) -> Answer:
        """The picture of the pipeline of the layout shown."""
        resolved, _, candidate = self._priced(ask)
        chart = self.exploration.pipeline(resolved, candidate)
        return {"html": render("explored_pipeline.html", chart=chart, layout=candidate.layout)}

    def study(self, ask: Ask) -> Answer:
        """The sensitivity of the step of the layout shown."""
        resolved, _, candidate = self._priced(ask)
        study = self.exploration.sensitivity(resolved, candidate)
        return {"html": render("explored_study.html", binding=binding(study), sensitivity=sensitivity_cells(study))}

    def search(self, ask: Ask) -> Answer:
        """The layouts of a search, kept for when its changes come back. Raises SupersededError once other changes are
        priced."""
        if ask.sets not in self._found:
            resolved = self.exploration.changed(ask.sets)
            with self._searching:
                self._keep(self.exploration.searched(resolved, lambda: self._check(ask)), ask.sets)
        return self._found[ask.sets]

    def _keep(self, plan: Plan, sets: tuple[str, ...]) -> None:
        from ...planner.explain.exploration import held_of

        notes = [*conclusion.tie_lines(plan), conclusion.certificate_line(plan), *conclusion.outside_lines(plan)]
        page = render("explored_search.html", notes=notes, warnings=plan.warnings)
        self._found[sets] = {"listed": len(self.lists), "html": page}
        self.lists.append(tuple(held_of(candidate) for candidate in plan.candidates))

    def frontier(self, ask: Ask) -> Answer:
        """The curve of time and memory. Raises SupersededError once other changes are priced."""
        resolved = self.exploration.changed(ask.sets)
        with self._searching:
            frontier = self.exploration.frontier(resolved, lambda: self._check(ask))
        curve = pictures.frontier(frontier.rows) if frontier.rows else None
        gap = frontier.rows[0][0] / frontier.lower_bound - 1 if frontier.rows and frontier.lower_bound > 0 else None
        return {"html": render("explored_frontier.html", curve=curve, stopped=frontier.stopped, gap=gap)}

    def _check(self, ask: Ask) -> None:
        if ask.sets != self.wanted:
            raise SupersededError

    def _priced(self, ask: Ask) -> tuple[Resolved, Repriced, Candidate]:
        """The request, its layouts, and the one shown. The answers to one change share its prices."""
        key = ask.model_copy(update={"shown": ""})
        last = self._priced_last
        if last is None or last[0] != key:
            resolved = self.exploration.changed(ask.sets)
            layouts = self.lists[min(ask.listed, len(self.lists) - 1)]
            last = self._priced_last = (key, resolved, self.exploration.repriced(resolved, layouts))
        _, resolved, priced = last
        candidates = priced.plan.candidates
        shown = next((candidate for candidate in candidates if candidate.layout_id == ask.shown), candidates[0])
        return resolved, priced, shown

    def _command(self, sets: Sequence[str]) -> str:
        """The command that asks the same; empty where nothing is changed or the plan is in no file."""
        if not self.path or not sets:
            return ""
        flags = [word for change in sets for word in ("--set", change)]
        return shlex.join(["meshwright", "what-if", self.path, *flags, "--replan"])
