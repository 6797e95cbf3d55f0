"""The proof of a plan: what the search counted, its bound, and what it compared beside its own space."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from .base import DocumentPart, without_none

Reason = Literal["offload", "axes"]


class SpaceCount(DocumentPart):
    """The number of layouts and their outcomes, which sum to `total`."""

    total: int
    by_axis: dict[str, int]  # values of each axis before any rule; empty for several spaces together
    ruled_out: dict[str, int]  # by rule
    dominated: int  # another layout is never slower and never larger
    out_of_memory: int  # by bound or by price
    bounded: int  # no better than the list, by their bound
    priced: int  # fit, and were priced
    unvisited: int = 0  # left by a search that was stopped
    simulated: int = 0  # of those priced


class Certificate(DocumentPart):
    """The proof of a search: no layout of the space is below `lower_bound_s`. The closed form proves it; where layouts
    near its best were simulated, their order is that of the simulator."""

    space: SpaceCount
    lower_bound_s: float | None  # None where bytes are minimised
    gap: float | None  # relative, between the bound and the best layout
    proven: bool
    stopped: str | None = None  # what cut the search: `interrupted` or `time limit`
    # Layouts within this share of the best closed form were kept for the simulator, and how many they are; None where
    # none of the list is simulated. `space.simulated` were run, those that may be the fastest first.
    kept_within: float | None = None
    kept: int | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plans whose layouts are not simulated look as they always did."""
        fields: dict[str, Any] = handler(self)
        for name in ("kept_within", "kept"):
            fields = without_none(fields, name)
        return fields


class Outside(DocumentPart):
    """A faster layout, and the target that runs it in that time by its own software."""

    layout_id: str
    step_s: float
    targets: tuple[str, ...]


class TargetBest(DocumentPart):
    """The fastest layout that a target runs by its own software."""

    target: str
    layout_id: str
    step_s: float
    device_bytes: float  # of the fullest GPU


class TargetComparison(DocumentPart):
    """All targets beside one another."""

    best: tuple[TargetBest, ...]  # that of the plan first, then in the order of `show targets`
    without: dict[str, str]  # target -> why it has no layout


class Preference(DocumentPart):
    """Why the choice of the plan is not the fastest layout, which the model does not tell from it."""

    fastest: str  # id of the fastest layout
    fastest_s: float  # its seconds per step
    indifference: float  # layouts within this share of the fastest one's time were compared
    reasons: tuple[Reason, ...]  # nothing offloaded, fewer parallel axes


class TechniqueChoice(DocumentPart):
    """A set of techniques that the search might have chosen: its best layout and that layout's value (seconds, or bytes
    where those are minimised), or why there is none."""

    names: tuple[str, ...]
    value: float | None = None
    layout_id: str | None = None
    why: str | None = None
