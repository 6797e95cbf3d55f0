"""Parallel prompt decoding: prompt tokens propose a tree of next tokens, as large as the GPU checks for free."""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import PROPOSER, Knob, Knobs, PoolNeed, Serves, Technique
from .passes import DECODES

if TYPE_CHECKING:
    from ..arrays import Array
    from ..serving.pool import Pool

_MOST_NODES = 256


@lru_cache(maxsize=64)
def accepted_tokens(first: float, decay: float) -> tuple[float, ...]:
    """Mean tokens that an iteration gives with the best tree of 0, 1, 2 ... nodes.

    The guess of rank r at depth d is right with probability a (1 - a)^(r - 1), where a = first decay^(d - 1); a node is
    accepted if all on its path are right. The best tree has the most probable nodes (Medusa, arXiv 2401.10774, 2.3).
    """
    total, out = 1.0, [1.0]
    heap = [(-first, 1, 1.0)]  # (-probability of the node, depth, probability of the node above)
    for _ in range(_MOST_NODES):
        probability, depth, above = heapq.heappop(heap)
        total -= probability
        out.append(total)
        here, below = first * decay ** (depth - 1), first * decay**depth
        heapq.heappush(heap, (probability * (1.0 - here), depth, above))
        heapq.heappush(heap, (probability * below, depth + 1, -probability))
    return tuple(out)


def tree_nodes(pool: Pool, first: float, decay: float, sequences: float) -> Array:
    """[n] nodes of the tree with the most tokens per second: an iteration takes its products or the reads of its
    weights, whichever is longer."""
    nodes = np.arange(_MOST_NODES + 1.0)
    model = pool.model
    parameters = model.dense_parameters + model.head_parameters
    product_s = 2.0 * parameters / pool.flops_per_s * sequences
    read_s = (model.dense_parameters * pool.weight_bytes + 2.0 * model.head_parameters) / pool.memory_bw_bytes_per_s
    seconds = np.maximum(product_s[:, None] * (nodes + 1.0), read_s[:, None])
    return np.asarray(nodes[np.argmax(np.array(accepted_tokens(first, decay)) / seconds, axis=1)])


def _proposes_nothing_else(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray(pool.draft_tokens == 0)


def _one_stage(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray(pool.pp == 1)


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    if not knobs["accepted"]:
        return pool
    nodes = tree_nodes(pool, knobs["accepted"], knobs["decay"], knobs["sequences"])
    tokens = np.array(accepted_tokens(knobs["accepted"], knobs["decay"]))[nodes.astype(int)]
    return replace(pool, draft_tokens=nodes, step_tokens=tokens)


TECHNIQUE = Technique(
    name="prompt-decoding",
    group="serving: speculation",
    title="Parallel prompt decoding: prompt tokens propose a tree of next tokens that fits the GPU",
    paper="Chen et al. 2024, Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM "
          "Inference, arXiv 2405.18628",
    bibtex="""@article{chen2024prompt,
  title = {Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM Inference},
  author = {Chen, Hao and Luk, Wayne and Yiu, Ka Fai Cedric and others},
  journal = {arXiv preprint arXiv:2405.18628},
  year = {2024}
}""",
    knobs=(Knob("accepted", 0.6, 0, 0.99, "probability that the first guess of the next token is right (assumed)",
                whole=False),
           Knob("decay", 0.8, 0, 1, "of that probability from token to token (assumed)", whole=False),
           Knob("sequences", 1, 1, 4096, "that decode at once, for which the tree is made")),
    neutral={"accepted": 0},
    trains=False,
    serves=Serves(on_pool=_on_pool, needs=(
        PoolNeed(_proposes_nothing_else, "no `--speculate`"), PoolNeed(_one_stage, "one pipeline stage"), DECODES)),
    caveat="the prompt tokens must be trained; how often their guesses are right depends on the text",
    chooses=(PROPOSER,), order=1,  # the tree is as large as what the others leave of a GPU allows
)  # fmt: skip
