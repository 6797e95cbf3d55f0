"""Schemes of pipelines: Hydraulis' proposal against brute force, and the chunks of ChunkFlow."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from meshwright.planner.batches.costs import GroupCosts
from meshwright.planner.batches.ledger_costs import Family
from meshwright.planner.batches.schemes import chunkflow, hydraulis
from meshwright.planner.batches.schemes.pipelines import Shape

GPUS, BINS = 8, 5


def shape_of(tp: int, pp: int, *, room: int = 4000, fixed_s: float = 0.0, num: int = 2) -> Shape:
    """A pipeline whose tokens take 1 ms / (tp pp), and 1 us more for each token before them; `num` stand side by side.
    """
    grid = np.array([1.0, 100_000.0])
    alone = (1e-3 + 1e-6 * (grid[:, None] - 1.0)) / (tp * pp)
    costs = GroupCosts(num, np.array([1]), room, grid, alone, fixed_s, fill=pp - 1.0)
    return Shape(Family(tp, "ring", "none", 1, pp=pp), costs)


def random_work(seed: int) -> hydraulis.Work:
    """Shapes of 1, 2 and 4 GPUs; the smaller do not hold the documents of the last bins."""
    rng = np.random.default_rng(seed)
    sums = np.cumsum(rng.uniform(0.5, 2.0, (3, BINS)), axis=1) / np.array([[1], [1.8], [3.2]])
    longest = sums / rng.uniform(2, 5)
    longest[0, 2:], longest[1, 4:] = np.inf, np.inf
    return hydraulis.Work(sums, longest, np.array([0.0, 1.0, 3.0]), (1, 2, 4))


def brute_force_s(work: hydraulis.Work, gpus: int, end: int) -> float:
    """Every division of the bins below `end` into spans, each on any number of pipelines of a shape."""

    @cache
    def least(before: int, free: int) -> float:
        if not before:
            return 0.0
        return min((max(least(first, free - num * work.gpus[shape]), work.between(shape, first, before) / num)
                    for shape in range(len(work.gpus)) for num in range(1, free // work.gpus[shape] + 1)
                    for first in range(before)), default=np.inf)  # fmt: skip

    return least(end, gpus)


def spans_s(work: hydraulis.Work, pipelines: hydraulis.Proposal, end: int) -> float:
    """The least seconds in which these pipelines train the bins below `end`, those for the shortest first."""
    if not pipelines or not end:
        return np.inf if end else 0.0
    (shape, num), before = pipelines[-1], pipelines[:-1]
    return min(max(spans_s(work, before, first), work.between(shape, first, end) / num) for first in range(end))


class TestHydraulis:
    @pytest.mark.parametrize("seed", range(10))
    def test_the_proposal_is_that_of_brute_force(self, seed: int) -> None:
        work = random_work(seed)
        least, _ = hydraulis.propose(work, GPUS)
        for gpus in range(GPUS + 1):
            for end in range(BINS + 1):
                assert least[gpus, end] == pytest.approx(brute_force_s(work, gpus, end))

    @pytest.mark.parametrize("seed", range(10))
    def test_the_pipelines_of_every_bin_take_as_long_as_it_states(self, seed: int) -> None:
        work = random_work(seed)
        least, chosen = hydraulis.propose(work, GPUS)
        for end in range(1, BINS + 1):
            assert sum(num * work.gpus[shape] for shape, num in chosen[end]) <= GPUS
            assert spans_s(work, chosen[end], end) == pytest.approx(least[GPUS, end])

    def test_a_proposal_for_512_gpus(self) -> None:
        """Alike documents and shapes that gain nothing from more GPUs: as many of the least shape as there are."""
        sums = np.tile(np.array([[1.0], [0.5], [0.25], [0.125]]), (1, 12))
        work = hydraulis.Work(sums, sums / 1000, np.zeros(4), (1, 2, 4, 8))
        least, chosen = hydraulis.propose(work, 512)
        assert least[512, 12] == pytest.approx(12 / 512)
        assert sum(num * work.gpus[shape] for shape, num in chosen[12]) == 512

    @pytest.mark.parametrize("seed", range(10))
    def test_the_proposal_is_monotone_in_gpus_and_length(self, seed: int) -> None:
        least, _ = hydraulis.propose(random_work(seed), GPUS)
        for gpus in range(GPUS):
            assert (least[gpus + 1] <= least[gpus]).all()
        for end in range(BINS):
            assert (least[:, end + 1] >= least[:, end]).all()

    def test_the_pipelines_of_a_proposal_take_as_long_as_it_states(self) -> None:
        work = random_work(3)
        least, chosen = hydraulis.propose(work, GPUS)
        assert sum(num * work.gpus[shape] for shape, num in chosen[BINS]) <= GPUS
        assert any(shape == 2 for shape, _ in chosen[BINS])  # only it holds the last bin
        assert np.isfinite(least[GPUS, BINS])

    def test_documents_go_to_pipelines_that_hold_them(self) -> None:
        pipelines = (shape_of(4, 1, room=8000), shape_of(2, 1, room=1000), shape_of(2, 1, room=1000))
        lengths = np.array([5000.0, *[500.0] * 40])
        members = hydraulis.assign(lengths, pipelines)
        assert sorted(k for each in members for k in each) == list(range(41))
        assert 0 in members[0]
        assert members == hydraulis.assign(lengths, pipelines)
        ended = [hydraulis.pipeline_s(lengths[each], shape)[0] for each, shape in zip(members, pipelines, strict=True)]
        assert max(ended) < 1.2 * min(ended)

    def test_unlike_pipelines_beat_alike_ones(self) -> None:
        """Its gain: short documents need not pay the messages of the pipeline that holds the longest."""
        dear = replace(shape_of(4, 1, room=8000).costs, token_s=shape_of(4, 1).costs.token_s * 2)
        wide, narrow = Shape(Family(4, "ring", "none", 1), dear), shape_of(1, 1, room=1000)
        lengths = np.array([6000.0, *[500.0] * 200])
        unlike = hydraulis.step(lengths, (wide, *[narrow] * 4))
        assert unlike.step_s < 0.8 * hydraulis.step(lengths, (wide, wide)).step_s


class TestChunkFlow:
    def test_chunks_of_a_document_take_as_long_as_it_does(self) -> None:
        shape = shape_of(1, 2)
        chunks = chunkflow.Chunks(shape, size=1000, kept=100)
        whole = float(shape.costs.seconds(np.array([3500.0]))[0, 0])
        parts = chunks.of_document(3500.0)
        assert len(parts) == 4
        assert sum(parts) == pytest.approx(whole)
        assert parts[1] < parts[2]  # it attends to more tokens

    def test_all_but_the_last_chunks_run_forward_again(self) -> None:
        shape = shape_of(1, 2)
        kept, again = (chunkflow.Chunks(shape, 1000, num).of_document(4000.0) for num in (4, 1))
        assert again[-1] == pytest.approx(kept[-1])
        assert again[:-1] == pytest.approx([seconds * 4 / 3 for seconds in kept[:-1]])

    def test_a_forward_pass_is_a_quarter_of_a_chunk_that_is_recomputed(self) -> None:
        """A forward pass, it again, and a backward pass of two; without recomputation it is a third."""
        shape = shape_of(1, 2)
        full = Shape(replace(shape.family, recompute="full"), shape.costs)
        kept, again = (chunkflow.Chunks(full, 1000, num).of_document(4000.0) for num in (4, 1))
        assert again[:-1] == pytest.approx([seconds * 5 / 4 for seconds in kept[:-1]])

    def test_the_longest_document_does_not_change_the_memory_of_activations(self) -> None:
        """Keys alone grow with it: a document of 64 times the room of a micro-batch still trains."""
        shape = shape_of(1, 4, room=4000)
        for longest in (10_000, 256_000):
            sizes = list(chunkflow.chunks_that_fit(shape, 0.01, longest))
            assert [chunks.kept for chunks in sizes][:2] == [1, 2]
            for chunks in sizes:
                held = chunks.size * (chunks.kept + 3) + 0.01 * longest
                assert held <= 4 * 4000
        assert not list(chunkflow.chunks_that_fit(shape, 0.1, 256_000))

    def test_chunks_of_equal_size_shorten_the_bubble(self) -> None:
        """A long document and short ones on 4 stages: without chunks the bubble is three times the long one."""
        shape = shape_of(1, 4, room=40_000, num=1)
        lengths = np.array([16_000.0, *[500.0] * 32])
        whole, cut = (chunkflow.Chunks(shape, size, 8).step(lengths).step_s for size in (16_000, 2000))
        assert cut < 0.7 * whole
