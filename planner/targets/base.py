"""Target: the software that runs a plan, the layouts that it can execute, and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ...cost_models.arrays import Mask
from ...cost_models.layouts import Layouts, encode
from ...cost_models.problem import Problem
from ...cost_models.quantities.even_stages import chunk_sizes
from ...cost_models.quantities.stages import Partition
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Workload
from ..space.rules import Rule
from .launch_config import LaunchConfig
from .launchers.base import Job
from .option_lists import OptionList, option_list
from .setup import Setup
from .switch_options import PLAIN_AXES


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The software behind a target: the files that start it, and which models and techniques it trains."""

    # Its name, as in `Megatron-LM`.
    framework: str
    # None where it has no options of its own: our runtime reads the plan.
    config: LaunchConfig | None
    # (setup, header lines, options of the release) -> the files and the command. Pure.
    job: Callable[[Setup, tuple[str, ...], OptionList | None], Job]
    # One sentence per part of a model or its training that a release cannot express in any layout.
    cannot_build: Callable[[ModelSpec, Workload, OptionList | None], list[str]] = lambda model, workload, options: []
    # (setup, options of the release) -> (fields, sentence) per reason why an older release cannot run its layout.
    cannot_run: Callable[[Setup, OptionList | None], list[tuple[tuple[str, ...], str]]] = lambda setup, options: []
    # Whether it trains models with a vision tower; `cannot_build` names towers that it lacks.
    sees_images: bool = False
    # Whether it trains diffusion transformers; `cannot_build` names those that it lacks.
    denoises: bool = False
    # Whether it trains an encoder before a decoder.
    encodes_source: bool = False
    # Technique -> why the framework cannot train by it with these knobs in any layout, or None.
    techniques: Mapping[str, Callable[[Problem, Mapping[str, float]], str | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A framework as the planner sees it: the layouts that it executes, its default stack, its files."""

    name: str
    # One line for screens.
    summary: str
    # Its default software stack.
    stack: str
    # The release and the files of the framework that the rules come from.
    source: str
    # They read no techniques: searches under several sets of techniques share what they exclude.
    rules: tuple[Rule, ...] = ()
    # Its further rules under the techniques of a workload.
    technique_rules: Callable[[Workload], tuple[Rule, ...]] = lambda workload: ()
    # Field of PLAIN_AXES (switch_options.py) that the target has -> the codes that a search compares. `zero`: the
    # stages that it has for a rank that shares its states with no other.
    axes: Callable[[Problem], Mapping[str, tuple[int, ...]]] = lambda problem: {}
    # The freedom of a plan in cutting stages. `even`: none; `layers`: the layers of each chunk; `recompute`: also the
    # number of layers that recompute.
    stages: Literal["even", "layers", "recompute"] = "even"
    # (model, stages) -> layers of each stage where the framework cuts them by its own rule, None for a model that it
    # does not build. Without a rule stages are as even as possible.
    cut: Callable[[ModelSpec, int], tuple[int, ...] | None] | None = None
    # The target that it is built on and whose layouts it runs, "" for none. A comparison shows the two as one row.
    built_on: str = ""
    # Whether each layer can have its own strategy.
    layerwise: bool = False
    # How it gives documents of mixed lengths degrees of their own: `planned`, as a sampler plan has them, or names of
    # its own rules (planner/batches/degree_rules.py), the usual one first. Empty: all documents of a run have one.
    mixed_lengths: tuple[str, ...] = ()
    # None where no files are written: plans for any software.
    trainer: Trainer | None = None

    @property
    def techniques(self) -> Mapping[str, Callable[[Problem, Mapping[str, float]], str | None]]:
        """Of its trainer."""
        return self.trainer.techniques if self.trainer is not None else {}

    @property
    def config(self) -> LaunchConfig | None:
        """Its launch config; None where it reads the plan itself or has no files."""
        return self.trainer.config if self.trainer is not None else None

    @property
    def framework(self) -> str:
        """The name of its software."""
        return self.trainer.framework if self.trainer is not None else self.name

    def compared(self, problem: Problem, fix: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Field of PLAIN_AXES -> the codes that a search compares: those in `axes`, or the one that a request fixes."""
        fixed = {name: (encode(name, fix[name]),) for name in PLAIN_AXES if name in fix}
        return {**self.axes(problem), **fixed}

    def rules_for(self, workload: Workload) -> tuple[Rule, ...]:
        """All its rules for a workload."""
        return self.rules + self.technique_rules(workload)

    def supports(self, columns: Layouts, problem: Problem) -> tuple[Mask, list[str | None]]:
        """Returns ([layouts] mask of executable layouts, the first reason against the others)."""
        reasons: list[str | None] = [None] * len(columns)
        mask = np.ones(len(columns), dtype=bool)
        for rule in self.rules_for(problem.workload):
            ok = rule.allows(columns, problem)
            if not ok.all():
                for row in np.flatnonzero(mask & ~ok).tolist():
                    reasons[row] = rule.explain(columns.layout(row), problem)
                mask &= ok
        return mask, reasons

    def broken(self, setup: Setup) -> list[Rule]:
        """The rules that the layout of `setup` breaks."""
        columns = Layouts.of([setup.layout])
        rules = self.rules_for(setup.workload)
        return [rule for rule in rules if not bool(rule.allows(columns, setup.problem)[0])]

    @property
    def runs_plans(self) -> bool:
        """Whether it runs the plan itself. A user's script or model then cannot supply missing features."""
        return self.trainer is not None and self.trainer.config is None

    def cannot_build(self, model: ModelSpec, workload: Workload) -> list[str]:
        """One sentence per part of a model or its training that its newest release cannot express in any layout."""
        if self.trainer is None:
            return []
        return self.lacks(model, workload, option_list(self.name)[0] if self.trainer.config is not None else None)

    def lacks(self, model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
        """The same for the release with these options."""
        if self.trainer is None:
            return []
        if model.diffusion is not None and not self.trainer.denoises:
            return ["model.diffusion: plans of diffusion transformers are not written for it"]
        if model.graph is not None:
            return ["model.graph: plans of graph networks are not written for it"]
        if model.encoder is not None and not self.trainer.encodes_source:
            return ["model.encoder: plans of models with an encoder and a decoder are not written for it"]
        if model.unmasks:
            return ["model.unmasks: plans of models that fill in masked tokens are not written for it"]
        if model.retrieval is not None:
            return ["model.retrieval: plans of two encoders are not written for it"]
        if model.bidirectional:
            return ["model.attention: plans of encoders such as BERT are not written for it"]
        if workload.reference:
            return ["workload.reference: plans with a frozen copy of the model are not written for it"]
        if workload.rounding is not None:
            return ["workload.rounding: plans that round weights or inputs are not written for it"]
        if not model.token_head:
            return ["model.token_head: plans of classifiers are not written for it"]
        if model.tower is not None and not self.trainer.sees_images:
            return ["model.tower: plans of vision towers are not written for it"]
        return self.trainer.cannot_build(model, workload, options)

    def cannot_train(self, problem: Problem) -> list[str]:
        """One sentence per reason why it cannot train a model in any layout: techniques, knobs, parts of the model.

        Empty for a target without software: its plans are only priced.
        """
        if self.trainer is None:
            return []
        able, chosen = self.techniques, problem.workload.techniques
        missing = [name for name, _ in chosen if name not in able]
        out = [f"it does not train by {', '.join(missing)}"] if missing else []
        for name, knobs in chosen:
            if name in able and (why := able[name](problem, dict(knobs))):
                out.append(f"{name}: {why}")
        return out + self.cannot_build(problem.model, problem.workload)

    def divides(self, model: ModelSpec, sizes: tuple[int, ...]) -> bool:
        """Whether `sizes` are the layers of the stages into which the framework itself divides a model."""
        if self.cut is not None:
            return sizes == self.cut(model, len(sizes))
        return sizes == tuple(chunk_sizes(model.num_layers, len(sizes)))

    def cannot_split(self, partition: Partition | None, model: ModelSpec) -> str | None:
        """Why it cannot run a custom partition; None where it can, and for the default partition (None)."""
        if partition is None or self.stages == "recompute":
            return None
        if self.stages == "even":
            own = self.divides(model, partition.sizes) and partition.recomputed is None
            return None if own else "it divides the layers among the stages itself"
        return None if partition.recomputed is None else "it recomputes equally many layers of every stage"
