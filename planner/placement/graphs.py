"""Connected parts and spanning trees of small graphs between nodes."""

from __future__ import annotations

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask


def connected_parts(joined: Mask) -> Ints:
    """[node] the number of its part, counted by the first node of each; joined [node, node] holds links, which join
    both ways."""
    both, parts, count = joined | joined.T, np.full(len(joined), -1, dtype=np.int64), 0
    while (parts < 0).any():
        ends = np.arange(len(parts)) == int((parts < 0).argmax())
        while ends.any():  # nodes that the part has reached last
            parts[ends] = count
            ends = both[ends].any(axis=0) & (parts < 0)
        count += 1
    return parts


def spanning_tree(weights: Array) -> Array:
    """The weights of the edges of a minimum spanning tree, by Prim's algorithm; of an edge the smaller direction.

    weights: [node, node], all above the diagonal and below it finite. Returns [node - 1] in the order of their choice.
    """
    both = np.minimum(weights, weights.T)
    nearest, outside = both[0].copy(), np.ones(len(both), dtype=bool)
    outside[0] = False
    chosen = np.empty(len(both) - 1)
    for step in range(len(chosen)):
        node = int(np.where(outside, nearest, np.inf).argmin())
        chosen[step], outside[node] = nearest[node], False
        nearest = np.minimum(nearest, both[node])
    return chosen
