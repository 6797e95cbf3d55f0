"""ReaLHF as it ran: one layout of all calls, and an engine that launches every kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from meshwright.planner.serving.instance import InstanceLayout
from meshwright.planner.workflows.gains import GainCase, question_for, search_for
from meshwright.planner.workflows.realhf import one_layout, software
from meshwright.planner.workflows.search import PlacementResult
from meshwright.profiles.model.load import load_model


def case(scaled: str, gpus: int) -> GainCase:
    return GainCase(id="a", group="g", searched=True, gpus=gpus, scaled=scaled, throughput=1.0)


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
    # 40 split layers of 13B, 29 kernels and 2 sums each, at 40 us with the Python between them, as long as 15.6 of 46.6
    # launches; 52 choose the tokens of each of 2 parts. 895 tokens follow the prompt's.
    launches_s = (40 * (29 + 2) + 2 * 52 * 31 / 46.6) * 40e-6 * 895
    assert launches_s < generate.option.seconds < 1.1 * launches_s


def test_whole_layers_wait_less_for_the_host() -> None:
    """One GPU: 32 layers of 7B, 29 kernels each, and 52 for the tokens, without the Python of split layers."""
    whole, split = (software(128, 1024, 4).engine.launch_s(32, tp=tp, pp=1) for tp in (1, 8))
    assert whole == pytest.approx((32 * 29 + 52) * 40e-6 * 31 / 46.6)
    assert split == pytest.approx((32 * 46.6 + 52) * 40e-6 * 31 / 46.6)


def test_nothing_counts_beyond_the_parts(symmetric: PlacementResult) -> None:
    assert symmetric.controller_s == 0.0
    generate = symmetric.placed[0]
    assert generate.end_s - generate.start_s == pytest.approx(generate.option.seconds + generate.moves_s)


@pytest.mark.slow
@pytest.mark.parametrize(("scaled", "gpus", "measured"), [
    ("actor", 16, 0.726 / 0.465), ("actor", 64, 1.1 / 1.056), ("critic", 32, 1.711 / 1.093),
    ("both", 128, 2.112 / 1.74),
])  # fmt: skip
def test_its_gain_over_one_layout(scaled: str, gpus: int, measured: float) -> None:
    """Its own measurements of PPO (PFLOP/s of its weak scaling): 1.56 with a policy of 13B, 1.04 of 70B, 1.57 with a
    critic of 34B, 1.21 with both of 70B. Those of 70B gain little because A800 read their weights for as long as the
    host launches: by the prices of H100 they gain more."""
    rl = question_for(case(scaled, gpus))
    searched, one = search_for(rl).run(), search_for(replace(rl, fixed=one_layout(gpus))).together()
    assert searched is not None
    assert one is not None
    assert one.step_s / searched.step_s == pytest.approx(measured, rel=0.1)


def test_searched_training_keeps_to_its_limits() -> None:
    found = search_for(question_for(case("both", 32))).run()
    assert found is not None
    for call, layout in ((it.call, it.option.layout) for it in found.placed if it.option.layout is not None):
        assert layout.tp * layout.dp <= 8
        if call.kind != "train":
            continue
        assert 2 * layout.pp * layout.dp <= 128 // 4
        assert (layout.recompute, layout.vpp, layout.cp, layout.offload, layout.offload_modules) == (2, 1, 1, 0, 0)
        assert layout.zero <= (1 if layout.pp > 1 else 2)


@pytest.mark.parametrize(("model", "tp", "pp", "number", "taken"), [
    # 26.9 GB of 7B twice, and 0.537 GB of each of 128 / number sequences of 1,024 tokens, of 85.9 GB.
    ("llama-2-7b", 1, 1, 8, True), ("llama-2-7b", 1, 1, 1, False), ("llama-2-7b", 2, 1, 1, True),
    # 158 GB of 34B twice.
    ("codellama-34b", 1, 1, 8, False), ("codellama-34b", 1, 2, 8, False), ("codellama-34b", 1, 4, 8, True),
    # Tensor and data parallelism within a node.
    ("llama-2-7b", 1, 1, 16, False), ("llama-2-7b", 8, 1, 2, False),
])  # fmt: skip
def test_engines_that_its_search_takes(model: str, tp: int, pp: int, number: float, taken: bool) -> None:
    layout = InstanceLayout(tp=tp, attention_dp=1, pp=pp, ep=1, instances=1)
    assert software(128, 1024, 4).generates(load_model(model)[0], layout, number) == taken
