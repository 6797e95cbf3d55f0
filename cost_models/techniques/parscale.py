"""ParScale: several streams of one model compute each token, from inputs that learned prefixes tell apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import PROPOSER, Knob, Knobs, PoolNeed, Serves, Technique
from .passes import DECODES

if TYPE_CHECKING:
    from ..serving.pool import Pool


def _proposes_nothing(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray(pool.draft_tokens == 0)


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    streams = knobs["streams"]
    if streams == 1:
        return pool
    # A stream has a cache of its own, and an iteration as many tokens of a sequence as streams, of which one is given.
    model = replace(pool.model, kv_elements=pool.model.kv_elements * streams,
                    window_kv_elements=pool.model.window_kv_elements * streams)  # fmt: skip
    return replace(pool, model=model, draft_tokens=pool.draft_tokens + streams - 1.0,
                   methods=replace(pool.methods, streams=streams))  # fmt: skip


TECHNIQUE = Technique(
    name="parscale",
    group="serving: prompts and answers",
    title="ParScale: several streams of one model compute each token, and their outputs are weighted",
    paper="Chen et al. 2025, Parallel Scaling Law for Language Models, arXiv 2505.10475",
    bibtex="""@article{chen2025parscale,
  title = {Parallel Scaling Law for Language Models},
  author = {Chen, Mouxiang and Hui, Binyuan and Cui, Zeyu and others},
  journal = {arXiv preprint arXiv:2505.10475},
  year = {2025}
}""",
    knobs=(Knob("streams", 8, 1, 64, "computed for each token; 1: the plain model"),),
    neutral={"streams": 1},
    trains=False,
    serves=Serves(on_pool=_on_pool, needs=(PoolNeed(_proposes_nothing, "no `--speculate`"), DECODES), only_costs=True),
    caveat="the model must be trained so, which takes as many times the compute; prefixes (0.2 % more parameters per "
           "stream) are not counted, and the head is counted for every stream",
    chooses=(PROPOSER,),
)  # fmt: skip
