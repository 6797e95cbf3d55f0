"""Partitioned activation checkpoints (ZeRO-R): a rank keeps its share of what recomputation starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..layouts import RECOMPUTE_MODES
from .base import Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem
    from ..specs.stack import StackSpec

_EXPERTS = "partitioned-checkpoints needs whole sequences on all ranks, and no other technique of experts has them"
_FULL = RECOMPUTE_MODES.index("full")


def _whole_inputs(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["tp"] > 1) & (x["sequence_parallel"] == 0) & (x["recompute"] == _FULL))


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    """Every rank of tp has the whole input of a layer, keeps 1/tp of it, and all gather it in the backward pass
    (CheckpointFunction of Megatron-LM d98e8a64)."""
    return replace(stack, splits_layer_inputs=True) if knobs["on"] else stack


TECHNIQUE = Technique(
    name="partitioned-checkpoints",
    group="memory",
    title="Partitioned checkpoints: tensor-parallel ranks share the inputs of recomputed layers",
    paper="Rajbhandari et al. 2020, ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, section 6.1, "
          "arXiv 1910.02054",
    bibtex="""@inproceedings{rajbhandari2020zero,
  title = {{ZeRO}: Memory Optimizations Toward Training Trillion Parameter Models},
  author = {Rajbhandari, Samyam and Rasley, Jeff and Ruwase, Olatunji and He, Yuxiong},
  booktitle = {SC20: International Conference for High Performance Computing, Networking, Storage and Analysis},
  year = {2020}
}""",
    knobs=(Knob("on", 1, 0, 1, "0: every rank keeps whole inputs"),),
    neutral={"on": 0},
    needs=(Need(("tp", "sequence_parallel", "recompute"), _whole_inputs,
                "tensor parallelism without sequence parallelism, and recomputation of whole layers"),),
    on_stack=_on_stack,
    only_costs=True,
    excludes=dict.fromkeys(("comet", "fsmoe", "speculative-moe"), _EXPERTS),
    caveat="sequence parallelism keeps the same share and gathers nothing more",
)  # fmt: skip
