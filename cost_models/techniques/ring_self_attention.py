"""Ring Self-Attention: keys go round until a rank has all scores of its queries, then values do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import RING, Knob, Knobs, Technique
from .rings import FORMS_RINGS, sending

if TYPE_CHECKING:
    from ..specs.stack import StackSpec


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    """All scores of a rank's queries are in memory, by kernels that are not fused."""
    return replace(sending(stack, "scores"), attention="unfused") if knobs["on"] else stack


TECHNIQUE = Technique(
    name="ring-self-attention",
    group="long context",
    title="Ring Self-Attention: keys travel round the ring, then values; scores are kept",
    paper="Li et al. 2021, Sequence Parallelism: Long Sequence Training from System Perspective, arXiv 2105.13120",
    bibtex="""@article{li2021sequence,
  title = {Sequence Parallelism: Long Sequence Training from System Perspective},
  author = {Li, Shenggui and Xue, Fuzhao and Baranwal, Chaitanya and Li, Yongbin and You, Yang},
  journal = {arXiv preprint arXiv:2105.13120},
  year = {2021}
}""",
    knobs=(Knob("on", 1, 0, 1, "0: keys and values travel together, and scores are not kept"),),
    neutral={"on": 0},
    needs=(FORMS_RINGS,),
    on_stack=_on_stack,
    caveat="scores grow with the square of the sequence; rings with fused attention keep none",
    chooses=(RING,),
)  # fmt: skip
