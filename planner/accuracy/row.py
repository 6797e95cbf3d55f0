"""A published run, and the checked reading of one row's fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...cost_models.layouts import Layout
from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.stack import StackSpec
from ...cost_models.specs.workload import Workload
from ...errors import FieldProblem
from ...profiles.io.document import Document, FieldPath, dotted

_REQUIRED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of a run; None where the source has none."""

    step_s: float | None = None
    peak_memory_bytes: float | None = None
    # allocated | reserved | nvidia-smi
    memory_kind: str = "nvidia-smi"
    # The ranks that the memory is of: max over ranks | one rank | last rank.
    memory_scope: str = "max over ranks"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A published run: its configuration and its measurements."""

    id: str
    # Repository, file and place in it.
    source: str
    # The software as published, with its version.
    stack_name: str
    # The kind of run that an interval holds for.
    regime: str
    # The sweep that the run belongs to, None for a single run.
    group: str | None
    # Whether the run is one of the core set that releases are judged by.
    core: bool
    # A, B or C; runs of quality C are not scored.
    quality: str
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    stack: StackSpec
    # Switches of the software, as stated.
    features: Mapping[str, Any]
    layout: Layout
    # The order of a pipeline that `layout` cannot name and is priced in another for; empty: it names it (order.py).
    order: str = ""
    # Whether outputs of feed-forward blocks go to the host, which no layout says (host_tensors.py).
    sends_outputs: bool = False
    # Layers of each pipeline chunk where they are uneven.
    chunks: tuple[int, ...] | None
    # Whether the source states what is recomputed.
    recompute_known: bool
    measured: Measured
    # Fields that the source leaves open, with the value that is taken.
    assumptions: tuple[str, ...] = ()

    @property
    def scored(self) -> bool:
        return self.quality != "C"

    @property
    def memory_scored(self) -> bool:
        """Memory is scored only where the recomputation is known, because saved activations depend on it."""
        return self.scored and self.recompute_known


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """A published run whose source leaves out a field that no prediction can do without."""

    id: str
    source: str
    stack_name: str
    regime: str
    group: str | None
    core: bool
    quality: str
    hardware: str  # GPU, canonical
    measured: Measured
    reason: str  # which field


@dataclass(slots=True)
class RowReader:
    """Checked fields of one row."""

    document: Document
    # Number of lines of the file above the row.
    before: int = 0
    # Whether problems begin with the id of the row.
    names_row: bool = False
    problems: list[FieldProblem] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)

    def fail(self, path: FieldPath, message: str, hint: str = "") -> None:
        """Record a problem; the first one of a field says enough."""
        if any(problem.field == dotted(path) for problem in self.problems):
            return
        line = self.document.line(path) + self.before
        if self.names_row and isinstance(name := self.get("id"), str):
            message = f"{name}: {message}"
        self.problems.append(FieldProblem(message, dotted(path), self.document.name, line, hint))

    def assume(self, label: str) -> None:
        self.assumptions.append(label)

    def get(self, *path: str) -> Any:
        return self.document.at(path)

    def part(self, *path: str, required: bool = False) -> Mapping[str, Any]:
        value = self.get(*path)
        if value is None and required:
            self.fail(path, f"`{dotted(path)}` is missing")
        elif value is not None and not isinstance(value, Mapping):
            self.fail(path, "must be a mapping")
        return value if isinstance(value, Mapping) else {}

    def whole(self, *path: str, default: Any = _REQUIRED, label: str = "", least: int = 1) -> int:
        """A whole number; a default that is used is an assumption if it has a label."""
        value = self.get(*path)
        if value is None:
            if default is _REQUIRED:
                self.fail(path, f"`{dotted(path)}` is missing")
                return least
            if label:
                self.assume(label)
            return int(default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(path, f"must be a whole number, is {value!r}")
        elif value < least or value > 10**9:
            self.fail(path, f"must be {least} or more, is {value}" if value < least else f"{value} is too large")
        else:
            return value
        return least

    def number(self, *path: str) -> float | None:
        """A positive number, or None where there is none."""
        value = self.get(*path)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            self.fail(path, f"must be a number, is {value!r}")
        elif not 0 < value < math.inf:
            self.fail(path, f"must be more than 0, is {value:g}" if value <= 0 else "must be finite")
        else:
            return float(value)
        return None

    def text(self, *path: str, default: str | None = None) -> str:
        value = self.get(*path)
        if value is None and default is None:
            self.fail(path, f"`{dotted(path)}` is missing")
        elif value is not None and not isinstance(value, str):
            self.fail(path, f"must be a text, is {value!r}")
        return value if isinstance(value, str) else default or ""

    def flag(self, *path: str) -> bool | None:
        value = self.get(*path)
        if value is not None and not isinstance(value, bool):
            self.fail(path, f"must be true or false, is {value!r}")
            return None
        return value
