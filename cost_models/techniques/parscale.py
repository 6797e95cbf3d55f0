"""ParScale: several streams of one model compute each token, from inputs that learned prefixes tell apart."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import PROPOSER, Columns, Knob, Knobs, Need, PoolNeed, Serves, Technique
from .passes import DECODES

if TYPE_CHECKING:
    from ..problem import Problem
    from ..serving.pool import Pool
    from ..specs.stack import StackSpec


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


def _on_stack(stack: StackSpec, knobs: Knobs) -> StackSpec:
    """Layers compute tokens of all streams, whose prefixes and weighted sum are parameters (quantities)."""
    if knobs["streams"] == 1:
        return stack
    return replace(stack, streams=int(knobs["streams"]), prefix_tokens=int(knobs["prefix"]))


def _trained_whole(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    model = problem.model
    keys = all(kind.is_transformer and kind.cross_attention is None for kind in model.kinds)
    keys = keys and not any(attention.is_mla or attention.index is not None for attention in model.attentions)
    one_head = model.token_head and not (model.mtp_layers or model.head_transform or model.pooled_classes)
    one_head = one_head and model.diffusion is None and model.retrieval is None and model.graph is None
    workload = problem.workload
    whole = workload.lora is None and workload.trains_layers is None and not workload.freeze_language
    return np.full(len(x["dp"]), keys and one_head and model.residual_streams == 1 and whole)


TECHNIQUE = Technique(
    name="parscale",
    group="quality",
    title="ParScale: several streams of one model compute each token, and their outputs are weighted",
    paper="Chen et al. 2025, Parallel Scaling Law for Language Models, arXiv 2505.10475",
    bibtex="""@article{chen2025parscale,
  title = {Parallel Scaling Law for Language Models},
  author = {Chen, Mouxiang and Hui, Binyuan and Cui, Zeyu and others},
  journal = {arXiv preprint arXiv:2505.10475},
  year = {2025}
}""",
    knobs=(Knob("streams", 8, 1, 64, "computed for each token; 1: the plain model"),
           Knob("prefix", 48, 0, 1024, "learned keys and values of a stream in each attention, in training")),
    neutral={"streams": 1},
    needs=(Need(("dp",), _trained_whole, "all weights to train, of a decoder with one head whose layers are attention "
                "with keys of its own and a feed-forward block"),),
    on_stack=_on_stack,
    serves=Serves(on_pool=_on_pool, needs=(PoolNeed(_proposes_nothing, "no `--speculate`"), DECODES), only_costs=True),
    caveat="a stream counts as many FLOPs as the model, which shows in no loss here: P streams learn as O(log P) "
           "times the parameters would; in serving, prefixes (0.2 % more parameters per stream) are not counted, and "
           "the head is counted for every stream",
    chooses=(PROPOSER,), only_costs=True,
    excludes={"vocabulary-parallel": "streams are summed before the head, which vocabulary-parallel has on all stages",
              "gnnpipe": "one needs a model of sequences, the other a graph"},
)  # fmt: skip
