"""Studies: questions about a plan, answered from the plan's request and layout.

One study is one file with a `run(question)` and one line in `registry`. Results are frozen objects that the screens,
`--json`, `--csv` and the plots read; a study prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ...errors import NoFeasibleLayoutError
from ..request.resolve import Resolved
from ..search.rate_sweep import RateSweep
from .axes import Axis
from .changes import apply, is_knob
from .knobs import fastest_pair, per_of
from .paths import Value, Values, current, dimension_of
from .pricing import HeldLayout, Priced, Seen, Stop, better, price_held, replanned

FORMAT_VERSION = "1.0"
Progress = Callable[[float, float, str], None]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class Change(Part):
    """One `--set`: values in base units of `dimension`, or words."""

    path: str
    dimension: str | None
    before: Value | None
    after: Value | None
    per: str = ""  # whose bandwidth it is: `gpu`, `nic`, `node`; empty where all pairs of nodes are alike
    fastest_before: float | None = None  # of the fastest pair of nodes; before and after are then of the slowest
    fastest_after: float | None = None


class Point(Part):
    """One request of a study."""

    values: dict[str, Value]  # path -> value, which make the request out of the plan's
    held: Priced  # the plan's layout on it
    replanned: Priced | None = None  # the best layout, if it was searched
    why_not: str | None = None  # why the search has none

    @property
    def best(self) -> Priced | None:
        """The best that is known to run."""
        return self.replanned or (self.held if self.held.runs else None)


class Result(Part):
    """The fields that every study's result has."""

    format_version: str = FORMAT_VERSION
    kind: Literal["what-if"] = "what-if"
    study: str
    request_sha256: str
    layout_id: str  # of the layout held
    changes: tuple[Change, ...] = ()  # every `--set`
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def table(self) -> tuple[Part, ...]:
        """Numbers of a study that has no points, a line of CSV each."""
        return ()


@dataclass(frozen=True)
class Question:
    """A layout on a request, and how the request is changed and varied."""

    plain: Resolved  # the request of the plan
    layout: HeldLayout
    sets: Values = field(default_factory=dict)  # changes that hold for all points: see `base`
    axes: tuple[Axis, ...] = ()
    replan: bool = False  # whether the best layout of every point is searched too
    assume: Mapping[str, str] = field(default_factory=dict)  # name -> value of the study's assumptions
    jobs: int = 1  # processes that search
    executor: str | None = None  # a cluster that searches instead
    resume: Path | None = None  # file of the points that are done
    progress: Progress | None = None
    should_stop: Stop | None = None

    @cached_property
    def base(self) -> Resolved:
        return apply(self.plain, self.sets)

    def with_values(self, values: Values) -> Resolved:
        """The request with more changes. A field of the request is read anew, and numbers of `sets` hold there, too."""
        if all(is_knob(path, value) for path, value in values.items()):
            return apply(self.base, values)
        return apply(self.plain, {**self.sets, **values})

    def common_fields(self, study: str, **more: Any) -> dict[str, Any]:
        """The fields that every result shares."""
        base = self.base
        changes = tuple(
            Change(path=path, dimension=dimension_of(path), before=current(self.plain, path),
                   after=_after(base, path, value), **_ends(self.plain, base, path))
            for path, value in self.sets.items()
        )  # fmt: skip
        warnings = tuple(warning.text for warning in base.warnings if warning not in self.plain.warnings)
        return {"study": study, "request_sha256": self.plain.request.sha256, "layout_id": self.layout.id,
                "changes": changes, "warnings": warnings, **more}  # fmt: skip

    def point(self, resolved: Resolved, values: Values, seeds: Seen, *, search: bool) -> Point:
        """`resolved` priced with the layout held and, if `search`, planned anew."""
        return self.filled(
            resolved, Point(values=dict(values), held=price_held(self.layout, [resolved])[0]), seeds, search=search
        )

    def filled(
        self, resolved: Resolved, point: Point, seeds: Seen, *, search: bool, shared: RateSweep | None = None
    ) -> Point:
        """`point` with the best layout of `resolved`, if `search`."""
        if not search:
            return point
        try:
            best = replanned(resolved, seeds, self.should_stop, explain=False, shared=shared)
        except NoFeasibleLayoutError as error:
            return point.model_copy(update={"why_not": error.message})
        return point.model_copy(update={"replanned": better(best, point.held)})


def _ends(plain: Resolved, base: Resolved, path: str) -> dict[str, Any]:
    """The fields of a Change where pairs of nodes differ."""
    before, after = fastest_pair(plain, path), fastest_pair(base, path)
    if before is None and after is None:
        return {}
    return {"per": per_of(base, "inter_node"), "fastest_before": before, "fastest_after": after}


def _after(base: Resolved, path: str, given: Value) -> Value | None:
    now = current(base, path)
    counted = isinstance(given, str) and " per " in given  # `50 GB/s per node`: counted in another way than before
    return given if now is None or counted else now
