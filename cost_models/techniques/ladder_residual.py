"""Ladder-residual: a block reads the residual before the all-reduce of the block before it has ended."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import TP_OVERLAP, Knob, Knobs, Serves, Technique
from .overlap import SERVES_IN_PARTS, SPLITS_LAYERS, hiding_sums

if TYPE_CHECKING:
    from ..serving.pool import Pool
    from ..specs.stack import StackSpec


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    """The sums of so many layers run beside the products of the next block, and show only where these are shorter."""
    return hiding_sums(stack, knobs["layers"])


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    return replace(pool, methods=replace(pool.methods, hidden_sums=knobs["layers"]))


TECHNIQUE = Technique(
    name="ladder-residual",
    group="overlap",
    title="Ladder-residual: blocks do not wait for the sums of tensor parallelism of the block before",
    paper="Zhang et al. 2025, Ladder-residual: Parallelism-Aware Architecture for Accelerating Large Model Inference "
          "with Communication Overlapping, arXiv 2501.06589",
    bibtex="""@inproceedings{zhang2025ladder,
  title = {Ladder-Residual: Parallelism-Aware Architecture for Accelerating Large Model Inference with Communication
           Overlapping},
  author = {Zhang, Muru and Mishra, Mayank and Zhou, Zhongzhu and others},
  booktitle = {International Conference on Machine Learning},
  year = {2025}
}""",
    knobs=(Knob("layers", 1, 0, 1, "share of the layers that are built so", whole=False),),
    neutral={"layers": 0},
    needs=(SPLITS_LAYERS,),
    on_stack=_on_stack,
    serves=Serves(on_pool=_on_pool, needs=(SERVES_IN_PARTS,)),
    caveat="it is another network: its weights must be trained so, or adapted",
    chooses=(TP_OVERLAP,),
)  # fmt: skip
