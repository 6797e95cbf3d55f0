"""Megatron's rule for the degrees of documents: what it promises of every batch, and batches by hand.

tests/upstream/test_hybrid_rule.py compares it with Megatron's own scheduler.
"""

from __future__ import annotations

import numpy as np
import pytest
from meshwright.planner.batches.batch_plan import Group
from meshwright.planner.batches.hybrid_rule import hybrid_micro_batches
from meshwright.planner.batches.rule_groups import needed_ranks


@pytest.mark.parametrize(("tokens", "degree"), [(1, 1), (100, 1), (101, 2), (200, 2), (201, 4), (400, 4), (401, 8)])
def test_a_document_has_the_least_degree_that_holds_it(tokens: int, degree: int) -> None:
    assert needed_ranks(tokens, 100) == degree


@pytest.mark.parametrize("seed", range(20))
def test_every_document_is_placed_once_on_ranks_that_hold_it(seed: int) -> None:
    lengths = np.ceil(np.random.default_rng(seed).lognormal(6.0, 1.5, size=80).clip(1, 8 * 1000))
    micro_batches = hybrid_micro_batches(lengths, 1000, 8)
    assert sorted(k for groups in micro_batches for group in groups for k in group.sequences) == list(range(80))
    for groups in micro_batches:
        assert sum(group.degree for group in groups) == 8  # groups grow until no rank is free
        assert sorted((group.degree for group in groups), reverse=True) == [group.degree for group in groups]
        for group in groups:
            assert group.degree & (group.degree - 1) == 0
            assert all(needed_ranks(lengths[k], 1000) <= group.degree for k in group.sequences)


def test_short_documents_fill_ranks_beside_a_long_one() -> None:
    """Work: 400^2/4 on four ranks, 200^2/2 on two; a document of 100 on each of two."""
    (groups,) = hybrid_micro_batches(np.array([100.0, 400.0, 200.0, 100.0]), 100, 8)
    assert groups == [Group(4, (1,)), Group(2, (2,)), Group(1, (0,)), Group(1, (3,))]


def test_groups_grow_over_free_ranks() -> None:
    assert hybrid_micro_batches(np.array([50.0]), 100, 4) == [[Group(4, (0,))]]
    assert hybrid_micro_batches(np.array([50.0, 60.0]), 100, 4) == [[Group(2, (1,)), Group(2, (0,))]]


def test_the_last_document_of_the_fullest_group_waits_for_the_next_micro_batch() -> None:
    """80^2 on each of two ranks is balanced; the third document would double the work of one of them."""
    first, second = hybrid_micro_batches(np.array([80.0, 80.0, 80.0]), 100, 2)
    assert first == [Group(1, (0,)), Group(1, (1,))]
    assert second == [Group(2, (2,))]


def test_a_micro_batch_ends_when_ranks_are_balanced_and_degrees_fall() -> None:
    """Work: 200^2/2 on two ranks, then 4 x 70^2 = 19,600 on each of the others; the last document is left."""
    lengths = np.array([200.0, *[70.0] * 9])
    first, second = hybrid_micro_batches(lengths, 100, 4)
    assert first == [Group(2, (0,)), Group(1, (1, 3, 5, 7)), Group(1, (2, 4, 6, 8))]
    assert second == [Group(4, (9,))]
