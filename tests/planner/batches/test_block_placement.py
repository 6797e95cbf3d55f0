"""DCP's blocks: masks against their pairs token by token, and placements by hand."""

from __future__ import annotations

import numpy as np
import pytest
from meshwright.planner.batches.block_placement import MASKS, causal, pairs, place

TOKENS, BLOCK = 9000, 512


def attends(mask: str, query: int, key: int) -> bool:
    """The masks of DCP (chenyu-jiang/dcp at 942a2c7, `*_mask_fn`) for one pair of tokens of a document of TOKENS."""
    if key > query:
        return False
    if mask == "lambda":
        return key < 64 or query - key < 4096
    if mask == "shared_question":
        question = int(TOKENS * 0.2)
        answer = min(3, (query - question) // ((TOKENS - question) // 4))
        return query < question or key < question or key >= question + answer * ((TOKENS - question) // 4)
    if mask == "causal_blockwise":
        return key < 256 or query - key <= 512 or query // 256 == (TOKENS - 1) // 256
    return True


@pytest.mark.parametrize("mask", MASKS)
def test_ranges_are_the_pairs_of_the_mask(mask: str) -> None:
    counted = pairs(TOKENS, MASKS[mask], BLOCK)
    for query_block in (0, 3, 7, 10, 17):
        queries = np.arange(query_block * BLOCK, min((query_block + 1) * BLOCK, TOKENS), 61)
        first, end = MASKS[mask](TOKENS)
        for query in queries.tolist():
            keys = {key for low, high in zip(first[:, query], end[:, query], strict=True) for key in range(low, high)}
            assert keys == {key for key in range(TOKENS) if attends(mask, query, key)}
            assert len(keys) == (end - first).clip(0)[:, query].sum()  # ranges do not overlap
    first, end = MASKS[mask](TOKENS)
    assert counted.sum() == (end - first).clip(0).sum()


def test_a_causal_document_is_even_in_zigzag_and_moves_less_in_order() -> None:
    """Two nodes. In order the second one has 3/4 of the pairs and receives half of the keys. In zigzag both have half;
    the one with the last quarter receives half of the keys, the other one those before its own."""
    document = pairs(4096, causal, 512)
    even, short = (place([document], 512, 2, limit, heads=4.0) for limit in (0.1, 1.0))
    assert even.work == pytest.approx(1.0, abs=0.01)
    assert (even.received, even.moved) == (2048, 3072)
    assert short.work == pytest.approx(1.5, abs=0.01)
    assert (short.received, short.moved) == (2048, 2048)


def test_documents_inside_a_node_move_nothing() -> None:
    placement = place([pairs(1024, causal, 512)] * 8, 512, 4, 0.1, heads=4.0)
    assert placement.work == pytest.approx(1.0)
    assert placement.moved == 0.0


def test_queries_travel_where_one_block_of_them_needs_many_keys() -> None:
    """The last queries attend to 16 blocks of another node: they and their output are 4 blocks of keys and values."""
    document = np.eye(32)
    document[31] = 1.0
    placement = place([document], 1, 2, 1.0, heads=4.0)
    assert placement.moved == 4.0
    assert place([document], 1, 2, 1.0, heads=40.0).moved == 16.0
