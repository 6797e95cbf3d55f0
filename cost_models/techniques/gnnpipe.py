"""GNNPipe: layers of a graph network over stages, and the graph through them in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..schedule_kinds import CODE
from .base import Columns, Knob, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem


# Further technique -> why a graph in one pipeline has no place for it.
_APART = {
    **dict.fromkeys(("1-bit-adam", "econtrol", "diloco", "co2", "noloco", "zero++", "three-level", "cpu-offload",
                     "zero-infinity", "fuyou", "luwu", "gradient-coding", "dadao"),
                    "gnnpipe has one pipeline, and it needs replicas or shards of them"),
    **dict.fromkeys(("ladder-residual", "tokenweave", "t3", "partitioned-checkpoints"),
                    "layers of a graph network are not split over tensor-parallel GPUs"),
    **dict.fromkeys(("comet", "fsmoe", "speculative-moe", "duplicate-token-dropping"),
                    "a graph network has no experts"),
    **dict.fromkeys(("token-ring", "ring-self-attention"), "a graph network has no attention"),
    "vocabulary-parallel": "gnnpipe fills its pipeline by gpipe, vocabulary-parallel by 1f1b",
}  # fmt: skip


def _is_graph(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.full(len(x["pp"]), problem.model.graph is not None)


def _all_forward_first(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["pp"] == 1) | (x["schedule"] == CODE["gpipe"]))


def _one_pipeline(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["dp"] == 1) & (x["micro_batch"] == 1))


TECHNIQUE = Technique(
    name="gnnpipe",
    group="pipelines",
    title="GNNPipe: stages of a graph network, and chunks of the graph that take old embeddings of later chunks",
    paper="Chen et al. 2023, GNNPipe: Scaling Deep GNN Training with Pipelined Model Parallelism, arXiv 2308.10087",
    bibtex="""@article{chen2023gnnpipe,
  title = {{GNNPipe}: Scaling Deep {GNN} Training with Pipelined Model Parallelism},
  author = {Chen, Jingji and Chen, Zhuoming and Qian, Xuehai},
  journal = {arXiv preprint arXiv:2308.10087},
  year = {2023}
}""",
    knobs=(Knob("chunks", 32, 1, 100_000, "parts of the graph that follow one another through the stages; 1: the whole "
                "graph, stage after stage"),),
    # The request makes a chunk of the graph a sequence of the step (planner/request/graphs.py).
    neutral={"chunks": 1},
    needs=(Need(("pp",), _is_graph, "a graph network"),
           Need(("pp", "schedule"), _all_forward_first, "all chunks forward, then backward: the gpipe schedule"),
           Need(("dp", "micro_batch"), _one_pipeline, "one pipeline that takes a chunk at a time")),
    excludes=_APART,
    caveat="embeddings of later chunks are those of the last step: accuracy after as many steps is in no price",
)  # fmt: skip
