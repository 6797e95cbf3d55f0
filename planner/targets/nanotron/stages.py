"""How nanotron cuts a model into pipeline stages: by the products of its blocks, not by the number of layers.

nanotron 2411b022, src/nanotron/models/base.py (build_model) and models/qwen.py (get_block_compute_costs).
"""

from __future__ import annotations

from ....cost_models.specs.model import FeedForward, ModelSpec


def sizes_of(*, layers: int, hidden: int, inner: int, vocab: int, num_stages: int) -> list[int]:
    """Layers of each stage. inner: width of the feed-forward block; vocab: rows of the head.

    Only layers and the head have costs. A stage ends with the first layer with which the sum of all costs so far
    exceeds the share of the stages so far.
    """
    layer = (4 * hidden + 3 * inner) * hidden
    total = layer * layers + vocab * hidden
    ends = [0]
    for stage in range(1, num_stages):
        ends.append(min(layers, max(ends[-1], int(total * (stage / num_stages) // layer)) + 1))
    return [end - start for start, end in zip(ends, [*ends[1:], layers], strict=True)]


def cut(model: ModelSpec, num_stages: int) -> tuple[int, ...] | None:
    """Layers of each stage of a model; None where its first feed-forward block is no dense one."""
    block = model.feed_forwards[0] if model.feed_forwards else None
    if not isinstance(block, FeedForward):
        return None
    return tuple(sizes_of(layers=model.num_layers, hidden=model.hidden, inner=block.inner, vocab=model.vocab,
                          num_stages=num_stages))  # fmt: skip
