"""Plans of mixed lengths: exact where all plans can be tried, bounded elsewhere, never slower than one degree."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from meshwright.planner.batches import one_degree, shapes, unlike_degrees
from meshwright.planner.batches.batch_plan import BatchPlan, peak_tokens
from meshwright.planner.batches.costs import GroupCosts, powers_of_two
from meshwright.planner.batches.packing import Batch, pack
from meshwright.planner.batches.published_costs import flexsp_costs
from meshwright.planner.batches.relaxation import relaxed


def small_costs(seed: int) -> GroupCosts:
    """Costs of 8 ranks in which communication, the fixed part and the room of a rank matter."""
    rng = np.random.default_rng(seed)
    degrees = powers_of_two(8)
    compute = np.array([[1e-3], [5e-3]]) / degrees
    exchange = np.cumsum(rng.uniform(0, 3e-4, len(degrees))) * (degrees > 1)
    return GroupCosts(8, degrees, int(rng.integers(800, 2500)), np.array([1.0, 4000.0]), compute + exchange,
                      float(rng.uniform(0, 1.5)))  # fmt: skip


def brute_force_s(lengths: np.ndarray, costs: GroupCosts) -> float:
    """The fastest step over every division of the sequences into micro-batches, groups and degrees."""
    seconds, count = costs.seconds(lengths), len(lengths)
    tokens = [sum(lengths[k] for k in range(count) if subset >> k & 1) for subset in range(1 << count)]

    def group_s(subset: int, column: int) -> float:
        if tokens[subset] > costs.rank_tokens * costs.degrees[column]:
            return np.inf
        return float(sum(seconds[k, column] for k in range(count) if subset >> k & 1))

    def parts_with_first(subset: int) -> list[int]:
        """The subsets that have the first sequence of `subset`."""
        first, rest = subset & -subset, subset & (subset - 1)
        out, part = [], rest
        while True:
            out.append(part | first)
            if not part:
                return out
            part = (part - 1) & rest

    @cache
    def makespan_s(subset: int, ranks: int) -> float:
        if not subset:
            return 0.0
        return min((max(group_s(part, column), makespan_s(subset ^ part, ranks - int(degree)))
                    for part in parts_with_first(subset) for column, degree in enumerate(costs.degrees)
                    if degree <= ranks), default=np.inf)  # fmt: skip

    @cache
    def step_s(subset: int) -> float:
        if not subset:
            return costs.once_s
        return min(costs.micro_batch_s + makespan_s(part, costs.num_ranks) + step_s(subset ^ part)
                   for part in parts_with_first(subset))  # fmt: skip

    return step_s((1 << count) - 1)


@pytest.mark.parametrize("seed", range(4))
def test_small_batches_equal_brute_force(seed: int) -> None:
    rng, costs = np.random.default_rng(100 + seed), small_costs(seed)
    lengths = np.minimum(np.ceil(rng.lognormal(6.5, 1.0, 5 + seed % 3)), costs.longest)
    result = unlike_degrees.best_plan(lengths, costs)
    assert result.plan.step_s == pytest.approx(brute_force_s(lengths, costs), rel=1e-6)
    assert result.gap < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_eight_sequences_on_eight_ranks_equal_brute_force(seed: int) -> None:
    rng, costs = np.random.default_rng(200 + seed), small_costs(50 + seed)
    lengths = np.minimum(np.ceil(rng.lognormal(6.5, 1.2, 8)), costs.longest)
    result = unlike_degrees.best_plan(lengths, costs)
    assert result.plan.step_s == pytest.approx(brute_force_s(lengths, costs), rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_the_relaxation_is_below_the_best_plan(seed: int) -> None:
    """Batches of mostly long sequences, solved exactly: no bound for as many micro-batches is above the best plan."""
    rng, costs = np.random.default_rng(300 + seed), small_costs(seed)
    lengths = np.sort(np.minimum(np.ceil(rng.lognormal(7.3, 0.9, 5)), costs.longest))[::-1]
    plan, batch = unlike_degrees.best_plan(lengths, costs).plan, Batch(lengths, costs.seconds(lengths), costs)
    makespans_s = plan.step_s - costs.once_s - len(plan.micro_batches) * costs.micro_batch_s
    for near_s in ([], [0.5 * makespans_s]):
        assert relaxed(batch, len(plan.micro_batches), 1.001 * makespans_s, near_s)[0] <= makespans_s * (1 + 1e-6)


def test_long_sequences_may_share_a_group_in_the_relaxation() -> None:
    """Two of almost half of the tokens and of the seconds of a group: 8 ranks train them one after another."""
    token_s = np.full((2, 4), 1e-3) * [1, 0.5, 0.25, 0.08]
    costs = GroupCosts(8, powers_of_two(8), 1000, np.array([1.0, 1e6]), token_s, 0.5)
    lengths = np.array([3900.0, 3880.0])
    assert unlike_degrees.best_plan(lengths, costs).plan.step_s == pytest.approx(0.5 + 7.78 * 0.08)
    assert relaxed(Batch(lengths, costs.seconds(lengths), costs), 1, 0.63)[0] <= 7.78 * 0.08 * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_so_many_micro_batches_or_more_is_below_that_of_each_number(seed: int) -> None:
    """And above the seconds that any number needs, so that it proves something."""
    rng, costs = np.random.default_rng(seed), small_costs(seed)
    lengths = np.sort(rng.integers(50, 2 * costs.rank_tokens, 24).astype(float))[::-1]
    batch, extra_s = Batch(lengths, costs.seconds(lengths), costs), 0.05 + 0.2 * seed
    least = costs.least_micro_batches(lengths)
    each = [relaxed(batch, least + more, 100.0)[0] + more * extra_s for more in range(4)]
    together = relaxed(batch, least, 100.0, extra_s=extra_s)[0]
    assert 0.8 * min(each) <= together <= min(each) * (1 + 0.011)  # the programs end at a relative gap of 1 %


def assert_is_a_plan(plan: BatchPlan, lengths: np.ndarray, costs: GroupCosts) -> None:
    """Every sequence once, ranks and tokens within limits, the step as its groups sum up."""
    numbers = [k for groups in plan.micro_batches for group in groups for k in group.sequences]
    assert sorted(numbers) == list(range(len(lengths)))
    seconds, step_s = costs.seconds(lengths), costs.once_s
    for groups in plan.micro_batches:
        assert sum(group.degree for group in groups) <= costs.num_ranks
        columns = [list(costs.degrees).index(group.degree) for group in groups]
        step_s += costs.micro_batch_s + max(
            seconds[list(group.sequences), column].sum() for group, column in zip(groups, columns, strict=True)
        )
    assert peak_tokens(plan, lengths) <= costs.rank_tokens
    assert plan.step_s == pytest.approx(step_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(2))
def test_a_batch_of_512_is_planned_near_its_bound(seed: int) -> None:
    """Draws of a heavy tail on 64 ranks: every plan holds, is no slower than one degree, and near the proven bound."""
    costs = flexsp_costs("gpt-6.7b", 192)
    rng = np.random.default_rng(seed)
    lengths = np.minimum(np.ceil(rng.lognormal(6.0, 1.35, 512) / 128) * 128, 190_000.0)
    result = unlike_degrees.best_plan(lengths, costs)
    single, static = one_degree.adaptive(lengths, costs), one_degree.with_degree(lengths, costs, 64)
    assert static is not None
    for plan in (result.plan, single, static):
        assert_is_a_plan(plan, lengths, costs)
    assert result.bound_s <= result.plan.step_s <= single.step_s <= static.step_s
    assert result.gap <= 0.03
    assert unlike_degrees.best_plan(lengths, costs) == result


def test_groups_that_are_given_are_kept_and_fill_alike() -> None:
    degrees = powers_of_two(4)
    costs = GroupCosts(4, degrees, 1000, np.array([1.0, 1e6]), np.full((2, 3), 1e-3) / degrees, 0.0)
    lengths = np.array([1600.0, *[200.0] * 6])
    packed = pack(Batch(lengths, costs.seconds(lengths), costs), [0.9], ((2, 1, 0),))
    assert packed is not None
    step_s, (groups,) = packed
    assert sorted((group.degree, len(group.sequences)) for group in groups) == [(1, 3), (1, 3), (2, 1)]
    assert step_s == pytest.approx(0.8)
    assert pack(Batch(lengths, costs.seconds(lengths), costs), [0.9], ((4, 0, 0),)) is None


def test_the_bound_is_below_every_plan_that_is_known() -> None:
    """A batch cut into pieces that fill all ranks to the last second: the bound is not above that plan."""
    degrees = powers_of_two(16)
    costs = GroupCosts(16, degrees, 1000, np.array([1.0, 1e6]), np.full((2, 5), 1e-3) / degrees, 0.5)
    lengths = np.array([4000.0, 4000.0] + [1000.0] * 4 + [500.0] * 8)
    result = unlike_degrees.best_plan(lengths, costs)
    assert result.bound_s <= 1.5 + 1e-9
    assert result.plan.step_s == pytest.approx(1.5, rel=1e-6)


def test_sequences_of_one_length_train_on_the_static_plan() -> None:
    costs = flexsp_costs("gpt-6.7b", 192)
    lengths = np.full(512, 4096.0)
    static = one_degree.static_degree([lengths, lengths], costs, 4096)
    assert unlike_degrees.best_plan(lengths, costs).plan == one_degree.with_degree(lengths, costs, static)


def test_published_costs_give_the_memory_and_the_degrees_of_flexsp() -> None:
    """Tokens of a rank as FlexSP computes them: (28 GiB - 16 bytes x parameters / 64) / activations of a token."""
    costs = flexsp_costs("gpt-6.7b", 192)
    assert costs.rank_tokens == int((28 * 1024 - 7.1174468994140625 * 16 / 64 * 1024) / 4.480441895)
    assert one_degree.least_degree(190_000, costs) == 32
    seconds = costs.seconds(np.array([8192.0]))[0]
    a_token_ms = 5.128e-6 * 8192 + 0.1839576
    assert seconds[0] == np.inf  # one rank holds 5,992 tokens
    assert seconds[4] == pytest.approx(8.192 * (a_token_ms + 4 * 2 * 32 * 4096 * 2 / 2**20 / 10.33) / 16)


def test_a_climb_takes_micro_batches_that_are_empty() -> None:
    """The relaxation may put all sequences into one micro-batch and leave nothing for the others."""
    costs = GroupCosts(2, powers_of_two(2), 4000, np.array([1.0, 4000.0]), np.array([[1e-3, 5e-4]] * 2), 0.1)
    lengths = np.array([1000.0, 1000.0])
    climb = shapes.Climb(Batch(lengths, costs.seconds(lengths), costs), best_s=5.0, enough_s=0.0)
    climb.run(((2, 0), (0, 0)), [1.0, 0.0])
    assert climb.best_s == pytest.approx(1.0)
    assert [group.degree for groups in climb.found for group in groups] == [1, 1]
