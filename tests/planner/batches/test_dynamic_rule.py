"""The rule of Megatron's dynamic context parallelism: what it promises of every batch, and batches by hand.

tests/upstream/test_dynamic_rule.py compares it with Megatron's own packer.
"""

from __future__ import annotations

import numpy as np
import pytest
from meshwright.planner.batches.batch_plan import Group
from meshwright.planner.batches.dynamic_rule import dynamic_micro_batches
from meshwright.planner.batches.rule_groups import needed_ranks


@pytest.mark.parametrize("seed", range(20))
def test_every_document_is_placed_once_on_ranks_that_hold_its_group(seed: int) -> None:
    lengths = np.ceil(np.random.default_rng(seed).lognormal(6.0, 1.5, size=80).clip(1, 8 * 1000))
    micro_batches = dynamic_micro_batches(lengths, 1000, 8)
    assert sorted(k for groups in micro_batches for group in groups for k in group.sequences) == list(range(80))
    for groups in micro_batches:
        assert sum(group.degree for group in groups) == 8  # groups grow until no rank is free
        for group in groups:
            assert group.degree & (group.degree - 1) == 0
            assert lengths[list(group.sequences)].sum() <= 1000 * group.degree
            assert all(needed_ranks(lengths[k], 1000) <= group.degree for k in group.sequences)


def test_a_document_takes_more_ranks_than_it_needs_where_that_lowers_the_most_work() -> None:
    """101^2 / 2 is 5,100 on two ranks. The next document fits on one, with 10,000; on two others it has 5,000. The last
    one then joins the group with less work, although a rank of its own would have done."""
    assert dynamic_micro_batches(np.array([101.0, 100.0, 30.0]), 100, 4) == [[Group(2, (0,)), Group(2, (1, 2))]]


def test_documents_of_a_group_are_packed_within_the_tokens_of_a_rank() -> None:
    """Two ranks hold 200 tokens: 90 and 80 open groups, 20 joins the second, and 15 none: 80 + 20 + 15 > 100."""
    first, second = dynamic_micro_batches(np.array([90.0, 80.0, 20.0, 15.0]), 100, 2)
    assert first == [Group(1, (0,)), Group(1, (1, 2))]
    assert second == [Group(2, (3,))]


def test_documents_go_where_the_most_loaded_rank_has_the_least_work() -> None:
    """Both 60s open groups, and a 40 joins each: 5,200 of work and 100 tokens. The last one has no room."""
    first, second = dynamic_micro_batches(np.array([60.0, 60.0, 40.0, 40.0, 40.0]), 100, 2)
    assert first == [Group(1, (0, 2)), Group(1, (1, 3))]
    assert second == [Group(2, (4,))]


def test_groups_grow_over_free_ranks() -> None:
    assert dynamic_micro_batches(np.array([50.0]), 100, 4) == [[Group(4, (0,))]]
