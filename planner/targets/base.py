"""What a target is: the software that will run a plan, which layouts it can execute, and how its files are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...cost_models.arrays import Mask
from ...cost_models.layouts import Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities.stages import Partition
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Workload
from ..space.rules import Rule
from .launchers.base import Job
from .option_lists import OptionList, option_list
from .options import Settings, Table
from .setup import Setup


@dataclass(frozen=True)
class Trainer:
    """How the files of a target come about.

    table: its options in a release, None if it has none of its own (our runtime reads the plan). job: the files and the
    command, pure; the option list is that of the release they are for. cannot_build: what of a model and its training
    it cannot express there, in any layout; cannot: what else of a setup beside the layout. conflicts: what settings and
    environment together break, as (option, sentence). framework: its name, as in `Megatron-LM`. techniques: those that
    it trains by -> why not with the knobs of a plan (None: it can).
    """

    framework: str
    table: Callable[[OptionList], Table] | None
    job: Callable[[Setup, tuple[str, ...], OptionList | None], Job]
    cannot_build: Callable[[ModelSpec, Workload, OptionList | None], list[str]] = lambda model, workload, options: []
    cannot: Callable[[Setup], list[str]] = lambda setup: []
    conflicts: Callable[[Settings, Mapping[str, str]], list[tuple[str, str]]] = lambda settings, environment: []
    techniques: Mapping[str, Callable[[Setup, Mapping[str, float]], str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """One target: its default software stack and the rules its layouts obey. `source`: where these were read.

    stages: what it can be told about them. `even`: nothing; `layers`: how many each chunk has; `recompute`: also how
    many of them it recomputes. own_layers: whether each layer can have a strategy of its own.
    """

    name: str
    summary: str
    stack: str
    source: str
    rules: tuple[Rule, ...] = ()
    stages: Literal["even", "layers", "recompute"] = "even"
    own_layers: bool = False
    trainer: Trainer | None = None

    def supports(self, columns: Layouts, problem: Problem) -> tuple[Mask, list[str | None]]:
        """Which layouts the target can execute, and for each that it cannot, the first reason."""
        reasons: list[str | None] = [None] * len(columns)
        mask = np.ones(len(columns), dtype=bool)
        for rule in self.rules:
            ok = rule.allows(columns, problem)
            for row in np.flatnonzero(mask & ~ok).tolist():
                reasons[row] = rule.explain(columns.layout(row), problem)
            mask &= ok
        return mask, reasons

    def broken(self, setup: Setup) -> list[Rule]:
        """The rules that the layout of `setup` breaks."""
        columns = Layouts.of([setup.layout])
        return [rule for rule in self.rules if not bool(rule.allows(columns, setup.problem)[0])]

    @property
    def runs_plans(self) -> bool:
        """Whether it runs the plan itself: what it lacks nobody can add in a script or a model of their own."""
        return self.trainer is not None and self.trainer.table is None

    def cannot_build(self, model: ModelSpec, workload: Workload) -> list[str]:
        """What of a model and its training its newest release cannot express, in any layout."""
        if self.trainer is None:
            return []
        options = option_list(self.name)[0] if self.trainer.table is not None else None
        return self.trainer.cannot_build(model, workload, options)

    def cannot_train(self, model: ModelSpec, workload: Workload) -> str | None:
        """Why it trains a model in no layout: techniques of the workload (their knobs are looked at when its files are
        made) or, where it runs the plan itself, what it cannot build."""
        able = self.trainer.techniques if self.trainer is not None else {}
        if missing := [name for name, _ in workload.techniques if name not in able]:
            return f"it does not train by {', '.join(missing)}"
        return next(iter(self.cannot_build(model, workload)), None) if self.runs_plans else None

    def cannot_split(self, partition: Partition | None) -> str | None:
        """Why it cannot run stages of one's own; None where it can, and for the stages of a layout (None)."""
        if partition is None or self.stages == "recompute":
            return None
        if self.stages == "even":
            return "it divides the layers among the stages itself"
        return None if partition.redone is None else "it recomputes equally many layers of every stage"
