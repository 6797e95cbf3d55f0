"""T3: hardware watches the stores of a product and starts its reduction beside it; memory adds what arrives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import TP_OVERLAP, Knob, Knobs, Technique
from .overlap import SPLITS_LAYERS, hiding_sums

if TYPE_CHECKING:
    from ..specs.stack import StackSpec


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    if not knobs["on"]:
        return stack
    # No multiprocessor takes part in the reduction: products beside it are as fast as alone.
    return replace(hiding_sums(stack, 1.0), contention=0.0)


TECHNIQUE = Technique(
    name="t3",
    group="overlap",
    title="T3: hardware runs the reductions of tensor parallelism beside the products that feed them",
    paper="Pati et al. 2024, T3: Transparent Tracking & Triggering for Fine-grained Overlap of Compute & Collectives, "
          "arXiv 2401.16677",
    bibtex="""@inproceedings{pati2024t3,
  title = {T3: Transparent Tracking \\& Triggering for Fine-grained Overlap of Compute \\& Collectives},
  author = {Pati, Suchita and Aga, Shaizeen and Islam, Mahzabeen and Jayasena, Nuwan and Sinclair, Matthew D.},
  booktitle = {International Conference on Architectural Support for Programming Languages and Operating Systems},
  year = {2024}
}""",
    knobs=(Knob("on", 1, 0, 1, "0: GPUs without it"),),
    neutral={"on": 0},
    needs=(SPLITS_LAYERS,),
    on_stack=_on_stack,
    caveat="no GPU has it; the 22 % of memory traffic that it saves is not counted",
    chooses=(TP_OVERLAP,),
)  # fmt: skip
