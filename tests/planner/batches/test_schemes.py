"""Published schemes for documents of mixed lengths: each has what its authors say that it has, on batches by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.planner.batches import one_degree
from meshwright.planner.batches.costs import GroupCosts, powers_of_two
from meshwright.planner.batches.draws import draw
from meshwright.planner.batches.ledger_costs import Family, ledger_costs
from meshwright.planner.batches.published_costs import flexsp_costs
from meshwright.planner.batches.schemes import bytescale, wlb, zeppelin
from meshwright.planner.batches.schemes.base import Subject
from meshwright.planner.batches.schemes.equal_work import packs_of_equal_work
from meshwright.planner.request.lengths import parse_lengths
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

WIKIPEDIA = tuple((length, share) for length, share in parse_lengths("wikipedia").items() if length <= 196_608)


def costs_of(num_ranks: int, room: int, *, exchange_s: float = 0.0, fixed_s: float = 0.0) -> GroupCosts:
    """A token takes 1 ms, and 1 ms more for every 1,000 tokens before it; `exchange_s` more per token on many ranks."""
    degrees, grid = powers_of_two(num_ranks), np.array([1.0, 100_000.0])
    alone = 1e-3 + 1e-6 * (grid[:, None] - 1.0)
    return GroupCosts(num_ranks, degrees, room, grid, alone / degrees + exchange_s * (degrees > 1) / degrees, fixed_s)


class TestByteScale:
    def test_documents_that_a_rank_holds_never_communicate(self) -> None:
        costs = costs_of(8, 1000, exchange_s=1.0)
        lengths = np.full(32, 900.0)
        step = bytescale.step(lengths, costs)
        assert step.degrees == (1,)
        assert step.step_s == pytest.approx(4 * costs.seconds(np.array([900.0]))[0, 0])

    def test_a_document_takes_as_many_ranks_as_it_needs(self) -> None:
        assert bytescale.step(np.array([2500.0]), costs_of(8, 1000)).degrees == (3,)  # a power of two would be 4

    def test_rank_seconds_on_other_numbers_of_ranks_lie_between_powers_of_two(self) -> None:
        costs = costs_of(8, 1000, exchange_s=1e-3)
        by_ranks = [num * bytescale.sequence_s(2000.0, num, costs) for num in (1, 2, 3, 4, 8)]
        assert (np.diff(by_ranks) >= -1e-9).all()
        assert by_ranks[1] == pytest.approx(2 * costs.seconds(np.array([2000.0]))[0, 1])

    def test_ranks_do_not_wait_for_others_between_micro_batches(self) -> None:
        """One document takes as long as two others one after another: with a wait the step would be half as long again.
        """
        costs = costs_of(2, 2000)
        long_s, short_s = costs.seconds(np.array([2000.0, 1200.0]))[:, 0]
        step = bytescale.step(np.array([2000.0, 1200.0, 1200.0]), costs)
        assert step.step_s == pytest.approx(max(long_s, 2 * short_s))
        assert step.step_s < long_s + short_s
        assert step.num_micro_batches == 1.5

    def test_it_gains_more_the_longer_the_context(self) -> None:
        costs, gains = flexsp_costs("gpt-6.7b", 192), []
        for most in (12 << 10, 192 << 10):
            batches = draw(tuple(pair for pair in WIKIPEDIA if pair[0] <= most), 512, 3)
            degree = one_degree.static_degree(batches, costs, most)
            static = [one_degree.with_degree(lengths, costs, degree) for lengths in batches]
            steps = [bytescale.step(lengths, costs) for lengths in batches]
            gains.append(sum(plan.step_s for plan in static if plan) / sum(step.step_s for step in steps))
        assert gains == sorted(gains)
        assert gains[0] > 1.2
        assert gains[-1] < 8


class TestZeppelin:
    ZONES = zeppelin.Zones(costs_of(16, 1000, exchange_s=1e-3), node=4, moved_s=0.0)

    @pytest.mark.parametrize(("tokens", "degree"), [(1000.0, 1), (1001.0, 4), (4000.0, 4), (4001.0, 16)])
    def test_the_zone_of_a_document_is_that_of_its_length(self, tokens: float, degree: int) -> None:
        assert zeppelin.step(np.array([tokens]), self.ZONES).degrees == (degree,)

    def test_a_document_moves_up_a_zone_where_no_rank_has_room(self) -> None:
        """Five documents of 700 tokens on the four ranks of one node: two do not fit on a rank."""
        one_node = zeppelin.Zones(costs_of(4, 1000), node=4, moved_s=0.0)
        priced = one_node.micro_batch_s(np.full(5, 700.0))
        assert priced is not None
        assert priced[1] == {1, 4}
        assert one_node.micro_batch_s(np.full(6, 700.0)) is None  # 4,200 tokens, 4 ranks hold 4,000

    def test_remapping_balances_the_linear_layers(self) -> None:
        """One rank has 1,000 tokens, the others one each: attention stays, the linear layers are shared by four."""
        costs = costs_of(4, 1000)
        lengths = np.array([1000.0, 1.0, 1.0, 1.0])
        free, dear = (zeppelin.Zones(costs, 4, moved_s).micro_batch_s(lengths) for moved_s in (0.0, 1.0))
        assert free is not None
        assert dear is not None
        attention_s = 1000 * 1e-6 * 999
        assert dear[0] == pytest.approx(1.0 + attention_s)  # 1,000 tokens of 1 ms
        assert free[0] == pytest.approx(1.003 / 4 + attention_s)

    def test_routing_speeds_up_rings_between_nodes_alone(self) -> None:
        """The paper: a ring uses one card of a node; with routing all eight carry its messages."""
        asked = {"model": "llama-2-7b", "cluster": "dgx-h100:2", "lengths": "512:9,4096:1", "max_len": "4K"}
        resolved = resolve(load_request(None, {**asked, "global_batch": 64}))
        family = Family(1, "ring", "full", 1)
        plain, faster = (ledger_costs(priced, family) for priced in (resolved, zeppelin.routed(resolved, 8)))
        assert plain is not None
        assert faster is not None
        assert faster.token_s[:, :4] == pytest.approx(plain.token_s[:, :4])  # up to 8 ranks
        saved = plain.token_s[:, 4] / faster.token_s[:, 4]
        assert (saved > 1.0).all()
        assert saved[0] > 1.5  # short documents wait for messages, not for attention
        assert saved.max() < 8.0

    def test_every_document_is_trained(self) -> None:
        """Where attention costs nothing and tokens move freely, a step is all tokens over all ranks."""
        costs = costs_of(16, 1000)
        flat = replace(costs, token_s=np.tile(1e-3 / costs.degrees, (2, 1)))
        lengths = np.random.default_rng(0).integers(1, 9000, 60).astype(float)
        step = zeppelin.step(lengths, zeppelin.Zones(flat, 4, 0.0))
        assert step.step_s == pytest.approx(1e-3 * lengths.sum() / 16)


class TestWlb:
    def test_it_is_priced_with_the_layout_and_degree_that_suit_it_best(self) -> None:
        asked = {"model": "llama-2-7b", "cluster": "dgx-a100-40gb:8", "lengths": "wikipedia", "max_len": "192K"}
        resolved = resolve(load_request(None, {**asked, "global_batch": 128}))
        longest = max(length for length, _ in resolved.workload.lengths)
        subject = Subject(resolved, draw(resolved.workload.lengths, 128, 2), longest)
        planned = wlb.SCHEME.plan(subject).policy
        others = [float(np.mean([step.step_s for step in wlb.steps_of_degree(subject.batches, costs, degree)]))
                  for _, costs in subject.candidates("allgather", 3) for degree in costs.degrees.tolist()
                  if degree >= one_degree.least_degree(longest, costs)]  # fmt: skip
        assert planned.mean_s == pytest.approx(min(others))

    def test_packs_have_equal_work_and_unequal_tokens(self) -> None:
        lengths = np.array([1000.0, *[100.0] * 20])
        work = lengths**2 + 1000 * lengths
        packs = packs_of_equal_work(lengths, work, 3000, 2)
        assert packs is not None
        loads = [work[pack].sum() for pack in packs]
        tokens = [lengths[pack].sum() for pack in packs]
        assert max(loads) < 1.05 * min(loads)
        assert max(tokens) > 1.5 * min(tokens)

    def test_packs_hold_every_document_once_within_their_room(self) -> None:
        lengths = np.random.default_rng(1).integers(1, 900, 50).astype(float)
        packs = packs_of_equal_work(lengths, lengths**2, 2500, 12)
        assert packs is not None
        assert sorted(k for pack in packs for k in pack) == list(range(50))
        assert max(lengths[pack].sum() for pack in packs) <= 2500
        assert packs_of_equal_work(lengths, lengths**2, 2500, 2) is None

    @pytest.mark.parametrize("lengths", [[64.0], [48.0, 16.0], [8.0, 8.0, 40.0, 8.0], [30.0, 34.0]])
    def test_imbalance_of_a_row_is_that_of_its_tokens(self, lengths: list[float]) -> None:
        """Each token attends to itself and those before it in its document; chunks have 8 tokens, ranks two chunks."""
        attended = np.concatenate([np.arange(int(length)) + 0.5 for length in lengths])
        chunks = attended.reshape(8, 8).sum(axis=1)
        ranks = np.array([chunks[rank] + chunks[7 - rank] for rank in range(4)])
        assert wlb.row_imbalance(np.array(lengths), 4) == pytest.approx(ranks.max() / ranks.mean())

    def test_queries_of_short_chunks_leave_tiles_empty(self) -> None:
        """4 ranks cut a document into 8 chunks, and a tile has 128 queries."""
        assert wlb.tile_waste(np.array([1024.0, 2048.0, 1032.0, 512.0]), 4) == pytest.approx([1, 1, 2048 / 1032, 2])

    def test_the_faster_sharding_is_taken(self) -> None:
        """One document alone is balanced as a row; two unlike long ones are not, and their chunks fill whole tiles."""
        costs = costs_of(8, 100_000)
        alone, beside = np.array([5000.0]), np.array([8192.0, 2048.0])
        for lengths, free in ((alone, True), (beside, True), (np.array([7001.0, 1003.0]), False)):
            exact_s = float(costs.seconds(lengths)[:, 2].sum())
            pack_s = wlb._Pricer(lengths, costs, 4).pack_s(range(len(lengths)))
            assert (pack_s == pytest.approx(exact_s)) is free
            attention_s = exact_s - 1e-3 * lengths.sum() / 4
            worst = min(wlb.row_imbalance(lengths, 4), wlb.tile_waste(lengths, 4).max()) - 1
            assert exact_s <= pack_s + 1e-12
            assert pack_s <= exact_s + worst * attention_s * 1.001

    def test_equal_work_is_faster_than_equal_tokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        costs = flexsp_costs("gpt-6.7b", 192)
        batches = draw(WIKIPEDIA, 512, 3)
        best_fit = sum(plan.step_s for lengths in batches if (plan := one_degree.with_degree(lengths, costs, 16)))
        by_work = sum(step.step_s for step in wlb.steps_of_degree(batches, costs, 16))
        monkeypatch.setattr(wlb, "packs_of_equal_work",
                            lambda lengths, _, *sizes: packs_of_equal_work(lengths, lengths, *sizes))  # fmt: skip
        by_tokens = sum(step.step_s for step in wlb.steps_of_degree(batches, costs, 16))
        assert by_work < by_tokens / 1.01
        assert 1.0 < best_fit / by_work < 1.6
