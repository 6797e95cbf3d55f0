"""TokenWeave: the tokens in two halves; the sums of one, fused with the norm, run beside the products of the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import TP_OVERLAP, Knob, Knobs, Serves, Technique
from .overlap import SERVES_IN_A_NODE, SPLITS_LAYERS_WITHIN_NODE, hiding_sums

if TYPE_CHECKING:
    from ..serving.pool import Pool
    from ..specs.stack import StackSpec

MULTIPROCESSORS = 132  # of the GPU of the paper, H100 SXM (data sheet)
LEAST_TOKENS = 1024  # of an iteration; fewer are not split, since each half then fills the GPU no more


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    taken = knobs["multiprocessors"]
    if not taken:
        return stack
    return replace(hiding_sums(stack, 1.0), contention=taken / MULTIPROCESSORS)


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    """Only prompts have the tokens that two halves need."""
    taken = knobs["multiprocessors"]
    if not taken:
        return pool
    return replace(pool, methods=replace(
        pool.methods, hidden_sums=1.0, sums_multiprocessors=taken / MULTIPROCESSORS, sums_in_halves=True,
        sums_of_prompts=True, hides_from_tokens=LEAST_TOKENS))  # fmt: skip


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
    serves=Serves(on_pool=_on_pool, needs=(SERVES_IN_A_NODE,)),
    caveat="its kernel is written for inference on GPUs whose switch sums; fewer than about 1,000 tokens gain nothing",
    chooses=(TP_OVERLAP,),
)  # fmt: skip
