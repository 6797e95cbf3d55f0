"""ReaLHF as it ran: one layout of all calls, and an engine that launches every kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from meshwright.planner.workflows.gains import GainCase, question_for, search_for
from meshwright.planner.workflows.realhf import one_layout
from meshwright.planner.workflows.search import PlacementResult


def case(scaled: str, gpus: int) -> GainCase:
    return GainCase(id="a", group="g", searched=True, gpu="h100", gpus=gpus, scaled=scaled, throughput=1.0)


@pytest.fixture(scope="module")
def symmetric() -> PlacementResult:
    rl = replace(question_for(case("actor", 16)), fixed=one_layout(16))
    found = search_for(rl).together()
    assert found is not None
    return found


def test_all_calls_have_one_layout(symmetric: PlacementResult) -> None:
    for placed in symmetric.placed:
        assert (placed.mesh.first, placed.mesh.gpus) == (0, 16)
        if placed.option.instance is not None:
            layout = placed.option.instance.layout
            assert (layout.tp, layout.pp, placed.option.instances) == (8, 2, 1)
        else:
            assert placed.option.layout is not None
            assert (placed.option.layout.tp, placed.option.layout.pp, placed.option.layout.dp) == (8, 2, 1)


def test_training_recomputes_all_in_two_micro_batches_for_each_stage(symmetric: PlacementResult) -> None:
    layouts = {it.call.name: it.option.layout for it in symmetric.placed if it.option.layout is not None}
    # 32 answers of a mini-batch lie in 16 packed sequences: 4 in each of 2 x 2 micro-batches.
    assert str(layouts["train"]) == "tp8-pp2-dp1-mbs4-z0-rfull"
    # 64 packed sequences score in 2 micro-batches.
    assert layouts["reference"].micro_batch == 32


def test_no_token_is_faster_than_the_launches_of_its_kernels(symmetric: PlacementResult) -> None:
    generate = symmetric.placed[0]
    # 40 layers of 13B, 29 kernels and 2 sums each; 52 choose the tokens of each of 2 parts; 40 us a launch. 895 tokens
    # follow the prompt's.
    launches_s = (40 * (29 + 2) + 2 * 52) * 40e-6 * 895
    assert launches_s < generate.option.seconds < 1.1 * launches_s


def test_nothing_counts_beyond_the_parts(symmetric: PlacementResult) -> None:
    assert symmetric.controller_s == 0.0
    generate = symmetric.placed[0]
    assert generate.end_s - generate.start_s == pytest.approx(generate.option.seconds + generate.moves_s)


def test_searched_training_keeps_to_its_limits() -> None:
    found = search_for(question_for(case("both", 32))).run()
    assert found is not None
    for layout in (it.option.layout for it in found.placed if it.call.kind == "train"):
        assert layout is not None
        assert (layout.recompute, layout.vpp, layout.cp, layout.offload, layout.offload_modules) == (2, 1, 1, 0, 0)
        assert layout.tp * layout.dp <= 8
        assert layout.zero <= (1 if layout.pp > 1 else 2)
