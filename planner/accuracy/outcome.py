"""One run, predicted and measured, and the statistics of such errors. Errors are predicted / measured - 1."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

REFUSED_ERROR = 1.0  # a run that is refused counts as one predicted 100 % off


@dataclass(slots=True, kw_only=True)
class RunOutcome:
    """One run, predicted and measured."""

    id: str
    source: str  # repository and file that the run is published in
    hardware: str  # GPU
    regime: str  # kind of run that an interval holds for
    stack: str  # software and version
    family: str  # software
    group: str | None  # sweep that the run belongs to
    core: bool
    quality: str  # A, B or C
    scored: bool  # whether its step time counts
    memory_scored: bool  # whether its peak memory counts
    step_s: float | None  # predicted; None: refused
    measured_step_s: float | None  # None: not published
    peak_memory_bytes: float | None  # predicted, of the kind that was measured
    measured_peak_memory_bytes: float | None  # None: not published
    memory_kind: str
    refused: str | None  # why it cannot be priced
    tp_pp: int  # tp x pp
    micro_batch: int  # sequences
    layout: str  # id
    step_s_low: float | None = None  # 90 % interval of step_s
    step_s_high: float | None = None
    assumptions: tuple[str, ...] = ()  # what was assumed because the source leaves it open

    @property
    def step_error(self) -> float | None:
        """Signed relative error of the step time; None where it is not scored."""
        return _error(self.scored, self.refused, self.step_s, self.measured_step_s)

    @property
    def memory_error(self) -> float | None:
        """Signed relative error of the peak memory; None where it is not scored."""
        return _error(self.memory_scored, self.refused, self.peak_memory_bytes, self.measured_peak_memory_bytes)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: a row of `validate --json`."""
        row = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NOT_WRITTEN}
        return row | {"step_error": self.step_error, "memory_error": self.memory_error}


_NOT_WRITTEN = ("tp_pp", "micro_batch", "quality")  # a row has the layout, which says both


def _error(scored: bool, refused: str | None, predicted: float | None, measured: float | None) -> float | None:
    if not scored or measured is None:
        return None
    return -REFUSED_ERROR if refused or predicted is None else predicted / measured - 1


@dataclass(frozen=True, kw_only=True)
class ErrorStatistics:
    """Statistics of the errors of some runs; all but `bias` are of absolute values."""

    count: int
    mean: float
    median: float
    p90: float  # 90th percentile
    max: float
    bias: float  # mean of the signed errors

    @classmethod
    def of(cls, errors: Sequence[float]) -> ErrorStatistics:
        """Statistics of at least one error."""
        absolute = sorted(abs(error) for error in errors)
        return cls(
            count=len(errors), mean=statistics.fmean(absolute), median=statistics.median(absolute),
            p90=quantile(absolute, 0.9), max=absolute[-1], bias=statistics.fmean(errors),
        )  # fmt: skip


def error_statistics(errors: Sequence[float]) -> ErrorStatistics | None:
    """Statistics of the errors; None of none."""
    return ErrorStatistics.of(errors) if errors else None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the order statistics, as numpy's default."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
