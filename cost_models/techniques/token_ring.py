"""TokenRing: queries travel round the ring and outputs return against them, while keys and values stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import RING, Columns, Knob, Knobs, Need, Technique
from .rings import FORMS_RINGS, sending

if TYPE_CHECKING:
    from ..problem import Problem
    from ..specs.stack import StackSpec


def _many_keys(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    """A query of each head is shorter than a key and a value of each of theirs; latent attention has one per head."""
    longer = [each.is_mla or each.heads < 2 * each.kv_heads for each in problem.model.attentions]
    return np.full(len(x["cp"]), all(longer))


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    return sending(stack, "queries") if knobs["on"] else stack


TECHNIQUE = Technique(
    name="token-ring",
    group="long context",
    title="TokenRing: queries travel round the ring, outputs return the other way, keys and values stay",
    paper="Wang et al. 2024, TokenRing: An Efficient Parallelism Framework for Infinite-Context LLMs via Bidirectional "
          "Communication, arXiv 2412.20501",
    bibtex="""@article{wang2024tokenring,
  title = {TokenRing: An Efficient Parallelism Framework for Infinite-Context LLMs via Bidirectional Communication},
  author = {Wang, Zongwu and Liu, Fangxin and Li, Mingshuai and Jiang, Li},
  journal = {arXiv preprint arXiv:2412.20501},
  year = {2024}
}""",
    knobs=(Knob("on", 1, 0, 1, "0: keys and values travel"),),
    neutral={"on": 0},
    needs=(FORMS_RINGS, Need(("cp",), _many_keys, "fewer heads than keys and values together: no grouped heads")),
    on_stack=_on_stack,
    caveat="its code is of inference: the backward pass is derived; links must send both ways at once",
    chooses=(RING,),
)  # fmt: skip
