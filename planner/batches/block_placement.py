"""DCP's blocks of attention, placed on nodes: how much the busiest node computes, and which keys it receives.

DCP (Jiang et al., SOSP 2025; chenyu-jiang/dcp at 942a2c7) cuts documents into blocks of tokens, and attention into the
products of a block of queries and one of keys that the mask leaves. Blocks and products are placed, first on nodes,
then on the devices of each, so that the fewest bytes move within limits on the imbalance of work and of tokens.

DCP partitions a hypergraph. Here the better of two placements is taken: the blocks of the batch in order, and those of
each document in zigzag. Both have as many tokens on every node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array, Ints

Ranges = tuple[Ints, Ints]  # first and end of the keys [range, query] that each query attends to; ranges do not overlap
Mask = Callable[[int], Ranges]  # of a document of so many tokens


def causal(tokens: int) -> Ranges:
    """Every token attends to those before it."""
    query = np.arange(tokens)
    return np.zeros((1, tokens), dtype=np.int64), query[None] + 1


def _lambda(tokens: int, first: int = 64, window: int = 4096) -> Ranges:
    """The first tokens, and a window (`lambda_mask_fn` of its flash attention, as the next two)."""
    end = np.arange(tokens) + 1
    head = np.minimum(first, end)
    return np.stack([np.zeros_like(end), np.maximum(head, end - window)]), np.stack([head, end])


def _shared_question(tokens: int, question_share: float = 0.2, answers: int = 4) -> Ranges:
    """Answers attend to the question and to themselves."""
    query = np.arange(tokens)
    question = int(tokens * question_share)
    length = max(1, (tokens - question) // answers)
    answer = np.clip((query - question) // length, 0, answers - 1)
    own = np.where(query < question, query + 1, question + answer * length)
    return np.stack([np.zeros_like(query), own]), np.stack([np.minimum(query + 1, question), query + 1])


def _causal_blockwise(tokens: int, block: int = 256, local: int = 2) -> Ranges:
    """The first block, and the blocks before a token; the last block attends to all."""
    query = np.arange(tokens)
    number = query // block
    is_last = number == (tokens - 1) // block
    head = np.minimum(block, query + 1)
    near = np.where(is_last, head, np.maximum(head, query - local * block))
    return np.stack([np.zeros_like(query), near]), np.stack([head, query + 1])


MASKS: Mapping[str, Mask] = {"causal": causal, "lambda": _lambda, "shared_question": _shared_question,
                             "causal_blockwise": _causal_blockwise}  # fmt: skip


def pairs(tokens: int, mask: Mask, block: int) -> Array:
    """[block of queries, block of keys] pairs of tokens that the mask leaves."""
    first, end = mask(tokens)
    edges = np.arange(0, tokens, block)
    out = np.zeros((len(edges), len(edges)))
    for number, start in enumerate(edges.tolist()):
        low, high = (ends[:, start : start + block, None] for ends in (first, end))
        out[number] = np.clip(np.minimum(high, edges + block) - np.maximum(low, edges), 0, None).sum(axis=(0, 1))
    return out


@dataclass(frozen=True)
class Placement:
    """The work of the busiest node of a placement. Sizes are in tokens of keys and values."""

    work: float  # its pairs of tokens over the mean of the nodes
    received: float  # that reach it from other nodes, the most of any node
    moved: float  # that reach all nodes


def place(documents: Sequence[Array], block: int, num_nodes: int, limit: float, heads: float) -> Placement:
    """The placement of the documents [query, key] `pairs` that moves least, with at most 1 + `limit` times the mean
    work on a node; the most even one where none is within the limit. heads: of queries, per head of keys."""
    sizes = [len(of_document) for of_document in documents]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    in_order = np.arange(starts[-1]) * num_nodes // starts[-1]
    chunks = np.concatenate([np.arange(size) * 2 * num_nodes // size for size in sizes])
    zigzag = np.where(chunks < num_nodes, chunks, 2 * num_nodes - 1 - chunks)
    placements = []
    for owner in (in_order, zigzag):
        work, received = np.zeros(num_nodes), np.zeros(num_nodes)
        for start, of_document in zip(starts, documents, strict=False):
            _add(of_document, owner[start : start + len(of_document)], heads, work, received)
        moved = block * received
        placements.append(Placement(float(work.max() / work.mean()), float(moved.max()), float(moved.sum())))
    able = [placement for placement in placements if placement.work <= 1 + limit]
    return min(able, key=lambda placement: placement.moved) if able else min(placements, key=lambda each: each.work)


def _add(of_document: Array, owner: Ints, heads: float, work: Array, received: Array) -> None:
    """Add the products of a document, whose blocks are on nodes `owner`, and the blocks of keys that nodes receive.

    A node gets the keys of another one. A block of queries that alone needs no fewer bytes of them than its own goes
    there instead, and what comes out returns, each as large as heads / 2 blocks of keys and values.
    """
    for node in np.unique(owner):
        work[node] += of_document[owner == node][:, owner == node].sum()
        for other in np.unique(owner[owner != node]):
            products = of_document[owner == node][:, owner == other]
            alone = (products > 0) & ((products > 0).sum(axis=0) == 1)
            travels = alone.sum(axis=1) >= heads
            received[other] += heads / 2 * travels.sum()
            received[node] += heads / 2 * travels.sum() + (products[~travels] > 0).any(axis=0).sum()
            work[other] += products[travels].sum()
            work[node] += products[~travels].sum()
