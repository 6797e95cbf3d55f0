"""What a study is: a question about a plan, answered from the plan's request and layout.

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
from .changes import apply
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


class Point(Part):
    """One request of a study: the values that make it, the plan's layout on it, and the best layout if it was searched.

    why_not: why nothing was found.
    """

    values: dict[str, Value]
    held: Priced
    replanned: Priced | None = None
    why_not: str | None = None

    @property
    def best(self) -> Priced | None:
        """The best that is known to run."""
        return self.replanned or (self.held if self.held.runs else None)


class Result(Part):
    """What every study's result has. layout_id: the layout held; changes: the `--set` it was asked under."""

    format_version: str = FORMAT_VERSION
    kind: Literal["what-if"] = "what-if"
    study: str
    request_sha256: str
    layout_id: str
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """What is asked: a layout on a request (`plain`), that request after `--set` (`base`), and how to vary it."""

    plain: Resolved
    layout: HeldLayout
    sets: Values = field(default_factory=dict)
    axes: tuple[Axis, ...] = ()
    replan: bool = False
    assume: Mapping[str, str] = field(default_factory=dict)
    jobs: int = 1
    executor: str | None = None
    resume: Path | None = None
    progress: Progress | None = None
    should_stop: Stop | None = None

    @cached_property
    def base(self) -> Resolved:
        return apply(self.plain, self.sets)

    def common_fields(self, study: str, **more: Any) -> dict[str, Any]:
        """The fields that every result shares."""
        base = self.base
        changes = tuple(
            Change(path=path, dimension=dimension_of(path), before=current(self.plain, path),
                   after=_after(base, path, value))
            for path, value in self.sets.items()
        )  # fmt: skip
        warnings = tuple(warning.text for warning in base.warnings if warning not in self.plain.warnings)
        return {"study": study, "request_sha256": self.plain.request.sha256, "layout_id": self.layout.id,
                "changes": changes, "warnings": warnings, **more}  # fmt: skip

    def point(self, resolved: Resolved, values: Values, seeds: Seen, *, search: bool) -> Point:
        """`found` priced with the layout held and, if `search`, planned anew."""
        return self.filled(
            resolved, Point(values=dict(values), held=price_held(self.layout, [resolved])[0]), seeds, search=search
        )

    def filled(
        self, resolved: Resolved, point: Point, seeds: Seen, *, search: bool, shared: RateSweep | None = None
    ) -> Point:
        """`point` with the best layout of `found`, if `search`."""
        if not search:
            return point
        try:
            best = replanned(resolved, seeds, self.should_stop, explain=False, shared=shared)
        except NoFeasibleLayoutError as error:
            return point.model_copy(update={"why_not": error.message})
        return point.model_copy(update={"replanned": better(best, point.held)})


def _after(base: Resolved, path: str, given: Value) -> Value | None:
    now = current(base, path)
    return given if now is None else now
