"""Speculative MoE: the routing is guessed, and tokens and experts are placed so that most meet without a message."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import HOME, Knob, Knobs, Serves, Technique
from .overlap import SENDS_TOKENS, SERVES_EXPERTS

if TYPE_CHECKING:
    from ..serving.pool import Pool
    from ..specs.stack import StackSpec


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    return replace(stack, tokens_at_home=knobs["local"])


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    return replace(pool, methods=replace(pool.methods, tokens_at_home=knobs["local"]))


TECHNIQUE = Technique(
    name="speculative-moe",
    group="overlap",
    title="Speculative MoE: tokens are dealt to the ranks that hold their experts before they are routed",
    paper="Li et al. 2025, Speculative MoE: Communication Efficient Parallel MoE Inference with Speculative Token and "
          "Expert Pre-scheduling, arXiv 2503.04398",
    bibtex="""@article{li2025speculative,
  title = {Speculative MoE: Communication Efficient Parallel MoE Inference with Speculative Token and Expert
           Pre-scheduling},
  author = {Li, Yan and Zheng, Pengfei and Chen, Shuang and others},
  journal = {arXiv preprint arXiv:2503.04398},
  year = {2025}
}""",
    knobs=(Knob("local", 0.5, 0, 1, "share of the messages of experts that it saves; a routing trace gives it",
                whole=False),),
    neutral={"local": 0},
    needs=(SENDS_TOKENS,),
    on_stack=_on_stack,
    serves=Serves(on_pool=_on_pool, needs=(SERVES_EXPERTS,)),
    caveat="shown for inference; the share depends on the data, and the products of experts may be less even",
    chooses=(HOME,),
)  # fmt: skip
