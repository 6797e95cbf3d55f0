"""Mirror-SD: a draft on another device proposes tokens while the upper layers of the model run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import PROPOSER, Knob, Knobs, PoolNeed, Serves, Technique

if TYPE_CHECKING:
    from ..serving.pool import Pool


def _has_a_draft(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray((pool.draft_tokens > 0) & (pool.draft.layers > 0))


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    """The draft starts from the tokens that the model would give after `exit` of its layers."""
    if knobs["exit"] >= 1:
        return pool
    return replace(pool, methods=replace(pool.methods, draft_elsewhere=True, draft_from_share=knobs["exit"],
                                         draft_speed=knobs["speed"]))  # fmt: skip


TECHNIQUE = Technique(
    name="mirror-sd",
    group="serving: speculation",
    title="Mirror-SD: a draft on another device runs beside the upper layers of the model",
    paper="Bhendawade et al. 2025, Mirror Speculative Decoding: Breaking the Serial Barrier in LLM Inference, arXiv "
          "2510.13161",
    bibtex="""@article{bhendawade2025mirror,
  title = {Mirror Speculative Decoding: Breaking the Serial Barrier in LLM Inference},
  author = {Bhendawade, Nikhil and Nishu, Kumari and Kundu, Arnav and others},
  journal = {arXiv preprint arXiv:2510.13161},
  year = {2025}
}""",
    knobs=(Knob("exit", 0.3, 0, 1, "share of the layers after which the draft starts; 1: after all, on the same GPUs",
                whole=False),
           Knob("speed", 1, 0.01, 100, "speed of the draft over that on the GPUs, of one token after another",
                whole=False)),
    neutral={"exit": 1},
    trains=False,
    serves=Serves(on_pool=_on_pool, needs=(PoolNeed(_has_a_draft, "a draft (`--speculate TOKENS:ACCEPTED:DRAFT`)"),)),
    caveat="the other device and the way to it are not priced, nor is the training of the early exit",
    chooses=(PROPOSER,),
)  # fmt: skip
