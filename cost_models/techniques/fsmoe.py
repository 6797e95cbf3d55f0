"""FSMoE: the tokens of experts in r parts, so that messages of one run beside the products of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import EP_OVERLAP, Knob, Knobs, Technique
from .overlap import SENDS_TOKENS, hiding_tokens

if TYPE_CHECKING:
    from ..specs.stack import StackSpec


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    # Of r parts that follow each other only the messages of the first have no product of another beside them.
    return hiding_tokens(stack, 1.0 - 1.0 / knobs["parts"])


TECHNIQUE = Technique(
    name="fsmoe",
    group="overlap",
    title="FSMoE: tokens of experts in parts, messages of one beside the products of another",
    paper="Pan et al. 2025, FSMoE: A Flexible and Scalable Training System for Sparse Mixture-of-Experts Models, arXiv "
          "2501.10714",
    bibtex="""@inproceedings{pan2025fsmoe,
  title = {FSMoE: A Flexible and Scalable Training System for Sparse Mixture-of-Experts Models},
  author = {Pan, Xinglin and Lin, Wenxiang and Zhang, Lin and others},
  booktitle = {International Conference on Architectural Support for Programming Languages and Operating Systems},
  year = {2025}
}""",
    knobs=(Knob("parts", 4, 1, 16, "of the tokens of a rank, one after another"),),
    neutral={"parts": 1},
    needs=(SENDS_TOKENS,),
    on_stack=_on_stack,
    caveat="products of fewer tokens are less efficient, which is not counted: more parts always look better",
    chooses=(EP_OVERLAP,),
)  # fmt: skip
