"""Comet: tokens for experts travel tile by tile beside the grouped products that take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import EP_OVERLAP, Knob, Knobs, Technique
from .overlap import SENDS_TOKENS_WITHIN_NODE, hiding_tokens

if TYPE_CHECKING:
    from ..specs.stack import StackSpec


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    return hiding_tokens(stack, knobs["hidden"])


TECHNIQUE = Technique(
    name="comet",
    group="overlap",
    title="Comet: messages of experts travel in tiles beside the products of experts",
    paper="Zhang et al. 2025, Comet: Fine-grained Computation-communication Overlapping for Mixture-of-Experts, arXiv "
          "2502.19811",
    bibtex="""@inproceedings{zhang2025comet,
  title = {Comet: Fine-grained Computation-communication Overlapping for Mixture-of-Experts},
  author = {Zhang, Shulai and Zheng, Ningxin and Lin, Haibin and others},
  booktitle = {Proceedings of Machine Learning and Systems (MLSys)},
  year = {2025}
}""",
    # The abstract: 47 % of the time are messages, and the mean gain is 1.71. So 0.42 of the time hides, 0.88 of them.
    knobs=(Knob("hidden", 0.88, 0, 1, "share of the messages of experts that hides", whole=False),),
    neutral={"hidden": 0},
    needs=(SENDS_TOKENS_WITHIN_NODE,),
    on_stack=_on_stack,
    caveat="multiprocessors are divided between messages and products: `contention` of the software counts it",
    chooses=(EP_OVERLAP,),
)  # fmt: skip
