"""Three-level partitioning: weights shared by few neighbours, gradients by a node, optimizer states by all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..quantities.exchanges import Exchanges, Hop
from .base import SHARERS, Columns, Knob, Knobs, Need, Technique
from .zero_plus_plus import SHARDED_WEIGHTS

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger


def _nested(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    knobs = dict(dict(problem.workload.techniques)["three-level"])
    weights, gradients = int(knobs["weights_over"]), int(knobs["gradients_over"])
    if weights == 0 and gradients == 0:
        return np.full(len(x["zero"]), True)
    inner, shard = _reach(gradients, problem), x["shard"] * x["cp"]
    divides = (shard % inner == 0) & (inner % _reach(weights, problem) == 0)
    # Experts have shard groups of their own, which the same sets would have to divide.
    folded = x["ep"] * x["etp"]
    return np.asarray(divides & ((x["zero"] == 0) | (folded == 1) | (folded == x["tp"])))


def _reach(ranks: int, problem: Problem) -> int:
    return ranks or problem.num_gpus


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    weights, gradients = int(knobs["weights_over"]), int(knobs["gradients_over"])
    if weights == 0 and gradients == 0:
        return ledger
    gather, scatter = Hop("all_gather", "neighbours", weights), Hop("reduce_scatter", "neighbours", gradients)
    plan = Exchanges(
        forward=(gather,), backward=(gather,), gradients=(scatter,),
        to_optimizer=(Hop("reduce_scatter", "across", gradients),),
        from_optimizer=(Hop("all_gather", "across", weights),),
        weights_over=weights, gradients_over=gradients,
    )  # fmt: skip
    return replace(ledger, exchanges=plan)


TECHNIQUE = Technique(
    name="three-level",
    group="memory",
    title="Three-level partitioning: weights over a pair of GPUs, gradients over a node, optimizer over all",
    paper="Xu et al. 2025, Scaling LLM Training on Frontier with Low-Bandwidth Partitioning, arXiv 2501.04266",
    bibtex="""@article{xu2025scaling,
  title = {Scaling Large Language Model Training on Frontier with Low-Bandwidth Partitioning},
  author = {Xu, Lang and others},
  journal = {arXiv preprint arXiv:2501.04266},
  year = {2025}
}""",
    # The paper's: the two GCDs of a card, the eight of a node.
    knobs=(
        Knob("weights_over", 2, 0, 4096, "neighbouring GPUs that share the weights; 0 (and gradients_over 0): all"),
        Knob("gradients_over", 8, 0, 4096, "neighbouring GPUs that share the gradients; weights_over divides it"),
    ),
    neutral={"weights_over": 0, "gradients_over": 0},
    needs=(*SHARDED_WEIGHTS, Need(("tp", "cp", "ep", "etp", "zero", "shard"), _nested,
           "shard groups that gradients_over divides, and which weights_over divides; experts folded alike")),
    rewrite=_rewrite,
    caveat="weights and gradients take more memory than ZeRO-3's: nothing else is unlike plain training",
    chooses=(SHARERS,), zero=3, order=2,
)  # fmt: skip
