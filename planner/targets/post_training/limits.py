"""The limits of a framework of post-training: its emitter refuses by these limits, and the search leaves out by
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import CP_ALGORITHMS, OFFLOADS, PRECISIONS, RECOMPUTE_MODES, Layout, Layouts
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import OptimizerName
from ....profiles.stack.engines import EngineDegrees
from ...space.rules import Columns, Rule


@dataclass(frozen=True, kw_only=True)
class RlStep:
    """A step before anything is placed."""

    models: Mapping[str, ModelSpec]  # by role
    algorithm: str
    prompts: int  # of a step
    samples: int  # answers to each prompt
    updates: int  # optimizer steps on the answers of a step
    optimizer: OptimizerName
    trainer: str  # target of the layouts that train
    engine: str


@dataclass(frozen=True)
class LayoutLimit:
    """A limit of the layouts that train. `allows(columns)` is True where the framework runs a layout."""

    fields: tuple[str, ...]  # that it reads
    allows: Callable[[Columns], Mask]
    message: str  # formatted with the fields of a layout

    def broken_by(self, layout: Layout) -> bool:
        return not self.allows(Layouts.of([layout]))[0]

    def explain(self, layout: Layout) -> str:
        """Why the framework does not run a layout."""
        return self.message.format(**asdict(layout), algorithm=CP_ALGORITHMS[layout.cp_algorithm],
                                   offload_name=OFFLOADS[layout.offload],
                                   precision_name=PRECISIONS[layout.precision])  # fmt: skip

    def rule(self, framework: str) -> Rule:
        """The same for a search."""
        return Rule(framework, self.fields, lambda x, _: self.allows(x), self.message)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a framework, which also has all calls of the trainer on the same GPUs (`misplaced`)."""

    step: Callable[[RlStep, int], list[str]]  # (step, lag) -> why it runs no placement of it
    # (step, whether the model leaves its GPUs for other calls) -> limits of the layouts of all models that train
    layouts: Callable[[RlStep, bool], tuple[LayoutLimit, ...]]
    engine: Callable[[EngineDegrees, int], list[str]]  # (instance, lag) -> why it does not start it
    # Fields in which the layouts of critic and policy are equal; empty: each has its own.
    joint: Callable[[RlStep], tuple[str, ...]] = lambda step: ()
    # Why no answer of a step has a context-parallel degree of its own; None: it has no rule that gives them.
    by_answer: Callable[[RlStep], list[str]] | None = None
    # Whether a model that does not train scores by the layout of the policy, where its layers are the policy's.
    scores_by_train: bool = False
    # (step, GPUs) -> parts of the layouts that train, and the bytes of a GPU that weights of the trainer's models take
    # while an engine generates there; empty: they leave it.
    staying: Callable[[RlStep, int], tuple[tuple[LayoutLimit, float], ...]] = lambda step, gpus: ()
    # Names of rules of its trainer that do not hold: what the framework has of its own instead.
    without: frozenset[str] = frozenset()


def dividing(step: RlStep) -> LayoutLimit:
    """Copies of a model among which the answers of an update are divided evenly."""
    answers = step.prompts * step.samples // step.updates
    return LayoutLimit(("dp",), lambda x: answers % x["dp"] == 0,
                       f"dp {{dp}} does not divide the {answers} answers of an update")  # fmt: skip


_ZERO_3 = 3
# Limits that frameworks share.
BF16 = LayoutLimit(("precision",), lambda x: x["precision"] == PRECISIONS.index("bf16"),
                   "precision {precision_name}: files are written for bf16")  # fmt: skip
WHOLE_SHARDS = LayoutLimit(("shard", "dp"), lambda x: x["shard"] >= x["dp"],
                           "shard {shard} of dp {dp}: the optimizer is sharded over all copies")  # fmt: skip
WHOLE_LAYERS = LayoutLimit(
    ("recompute", "recompute_layers"),
    lambda x: (x["recompute"] != RECOMPUTE_MODES.index("selective")) & (x["recompute_layers"] == 0),
    "recompute: whole layers, all of them, or none")  # fmt: skip
SHARDED_OPTIMIZER = LayoutLimit(
    ("zero", "dp", "cp"), lambda x: (x["zero"] == 1) | ((x["zero"] == 0) & (x["dp"] * x["cp"] == 1)),
    "z{zero}: the optimizer is always sharded, and nothing else (z1)")  # fmt: skip
WHOLE_WEIGHTS = LayoutLimit(("zero", "shard", "dp"), lambda x: (x["zero"] == _ZERO_3) & (x["shard"] >= x["dp"]),
                            "z{zero} over {shard} of {dp} copies: weights are sharded over all")  # fmt: skip
NO_OFFLOAD = LayoutLimit(
    ("offload", "offload_layers", "offload_modules"),
    lambda x: (x["offload"] == 0) & (x["offload_layers"] == 0) & (x["offload_modules"] == 0),
    "offload: states and activations stay on the GPU while they train")  # fmt: skip
_ACTIVATIONS = np.array(["act" in name for name in OFFLOADS])


def offloads_activations(x: Columns) -> Mask:
    """Whether saved activations go to the host."""
    return np.asarray(_ACTIVATIONS[x["offload"]])


KEEPS_ACTIVATIONS = LayoutLimit(("offload",), lambda x: ~offloads_activations(x),
                                "offload {offload_name}: saved activations are not offloaded")  # fmt: skip


def context_parallelism(*algorithms: str, message: str) -> LayoutLimit:
    """Context parallelism by these algorithms."""
    codes = [CP_ALGORITHMS.index(name) for name in algorithms]
    return LayoutLimit(("cp", "cp_algorithm"), lambda x: (x["cp"] == 1) | np.isin(x["cp_algorithm"], codes), message)
