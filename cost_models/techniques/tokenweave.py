"""TokenWeave: the tokens in two halves; the sums of one, fused with the norm, run beside the products of the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import TP_OVERLAP, Knob, Knobs, Technique
from .overlap import SPLITS_LAYERS_WITHIN_NODE, hiding_sums

if TYPE_CHECKING:
    from ..specs.stack import StackSpec

MULTIPROCESSORS = 132  # of the GPU of the paper, H100 SXM (data sheet)


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    taken = knobs["multiprocessors"]
    if not taken:
        return stack
    return replace(hiding_sums(stack, 1.0), contention=taken / MULTIPROCESSORS)


TECHNIQUE = Technique(
    name="tokenweave",
    group="overlap",
    title="TokenWeave: sums of one half of the tokens run beside the products of the other",
    paper="Gond et al. 2025, TokenWeave: Efficient Compute-Communication Overlap for Distributed LLM Inference, arXiv "
          "2505.11329",
    bibtex="""@article{gond2025tokenweave,
  title = {TokenWeave: Efficient Compute-Communication Overlap for Distributed LLM Inference},
  author = {Gond, Raja and Kwatra, Nipun and Ramjee, Ramachandran},
  journal = {arXiv preprint arXiv:2505.11329},
  year = {2025}
}""",
    # The paper: 2 to 8 multiprocessors run the fused kernel.
    knobs=(Knob("multiprocessors", 8, 0, 66, "that the fused sum and norm take from products; 0: no halves"),),
    neutral={"multiprocessors": 0},
    needs=(SPLITS_LAYERS_WITHIN_NODE,),
    on_stack=_on_stack,
    caveat="its kernel is written for inference on GPUs whose switch sums; fewer than about 1,000 tokens gain nothing",
    chooses=(TP_OVERLAP,),
)  # fmt: skip
