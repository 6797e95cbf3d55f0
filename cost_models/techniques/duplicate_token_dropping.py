"""Duplicate token dropping (DeepSpeed-TED): ranks of tensor parallelism share out tokens that all of them hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem
    from ..specs.stack import StackSpec

_UNPRICED = "the gather of copies behind the experts is not priced beside other work"
_HIDING = ("comet", "fsmoe", "speculative-moe", "ladder-residual", "tokenweave", "t3")


def _experts(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.full(len(x["tp"]), problem.model.is_moe)


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    """Layouts with experts and tp may do without sequence parallelism (expert_dispatch.py, add_duplicates)."""
    return replace(stack, drops_duplicate_tokens=True) if knobs["on"] else stack


TECHNIQUE = Technique(
    name="duplicate-token-dropping",
    group="less communication",
    title="Duplicate token dropping: tensor-parallel ranks without sequence parallelism share the tokens for experts",
    paper="Singh et al. 2023, A Hybrid Tensor-Expert-Data Parallelism Approach to Optimize Mixture-of-Experts "
          "Training, arXiv 2303.06318",
    bibtex="""@inproceedings{singh2023hybrid,
  title = {A Hybrid Tensor-Expert-Data Parallelism Approach to Optimize Mixture-of-Experts Training},
  author = {Singh, Siddharth and Ruwase, Olatunji and Awan, Ammar Ahmad and Rajbhandari, Samyam and He, Yuxiong and
            Bhatele, Abhinav},
  booktitle = {International Conference on Supercomputing},
  year = {2023}
}""",
    knobs=(Knob("on", 1, 0, 1, "0: experts with tensor parallelism need sequence parallelism"),),
    neutral={"on": 0},
    needs=(Need(("tp",), _experts, "experts"),),
    on_stack=_on_stack,
    only_costs=True,
    excludes=dict.fromkeys(_HIDING, _UNPRICED),
    caveat="sequence parallelism sends the same tokens and gathers nothing behind the experts",
)  # fmt: skip
