"""Two encoders whose vectors are compared over all ranks, restated for the 217 M biencoder of Megatron-LM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.rates.rates import Rates
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.cost_models.specs.retrieval import Retrieval
from meshwright.cost_models.specs.workload import Workload
from meshwright.cost_models.step.comparison_seconds import comparisons_s
from meshwright.planner import api
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for

from meshwright.errors import InputError

H, LAYERS, ROWS, POSITIONS, SEQ = 768, 12, 30_592, 512, 256
SIZES: dict[str, Any] = {
    "hidden": H, "layers": LAYERS, "heads": 12, "ffn_hidden": 4 * H, "gated_mlp": False, "bias": True, "vocab": ROWS,
    "max_positions": POSITIONS, "learned_positions": True, "rope_theta": None, "bidirectional": True, "token_types": 2,
}  # fmt: skip
ENCODER = LAYERS * (12 * H * H + 13 * H) + (ROWS + POSITIONS + 2) * H + 2 * H  # 108.9 M


def model(**fields: Any) -> ModelSpec:
    return read_explicit_form({**SIZES, "retrieval": fields}, "biencoder")[0]


def test_parameters_are_those_of_both_encoders() -> None:
    """"217M" in the script that trains it."""
    assert total_parameters(model()) == 2 * ENCODER == 217_890_816
    assert total_parameters(model(shared=True)) == ENCODER
    assert total_parameters(model(projection=128)) == 2 * (ENCODER + 128 * (H + 1))


def priced(spec: ModelSpec, dp: int, micro_batch: int) -> tuple[Ledger, Rates]:
    stack = load_stack("megatron-core")
    work = Workload(seq_len=SEQ, global_batch=dp * micro_batch)
    problem = Problem(spec, work, stack, dp, 8)
    rates = rates_for(load_cluster(f"dgx-h100:{dp // 8}"), stack, "bf16")
    return price_layouts(problem, rates, Layouts.of([parse(f"dp{dp}-mbs{micro_batch}-z0-rnone")]))[0], rates


def test_each_encoder_reads_its_share() -> None:
    """Three texts of a query: 6 of 24 sequences are queries. The work is that of one encoder on all of them."""
    two, one = (priced(model(texts=3, shared=shared), 8, 24)[0] for shared in (False, True))
    rows = [[float(gemm.m[0]) for gemm in ledger.tables.operations[0].gemms if gemm.name == "up"]
            for ledger in (two, one)]  # fmt: skip
    assert rows == [[6 * SEQ, 18 * SEQ], [24 * SEQ]]
    assert np.allclose(two.problem.flops, one.problem.flops, rtol=1e-12)
    states = [DeviceMemory(ledger).buffers(0) for ledger in (two, one)]
    assert states[0]["optimizer"][0] == 2 * states[1]["optimizer"][0]
    assert states[0]["activations"][0] == states[1]["activations"][0]


@pytest.mark.parametrize(("texts", "dp"), [(1, 8), (1, 128), (2, 64)])
def test_scores_of_all_ranks(texts: int, dp: int) -> None:
    """Every rank has the scores of all queries by all texts: 6 q t h operations and 30 q t bytes in half precision."""
    sample = 1 + texts
    spec = model(texts=texts)
    ledger, rates = priced(spec, dp, 16 * sample)
    q = dp * 16
    t = texts * q
    logits = float(DeviceMemory(ledger).beside_states(0)["logits"][0])
    assert logits in (0.0, 2 * (3 * q * t + 2 * (q + t) * H))  # 0: fuller in a layer
    least = 6 * q * t * H / rates.peak_flops_per_s + 20 * q * t / rates.bandwidth("loss")[0]
    found = float(comparisons_s(ledger, rates)[0])
    assert least < found < least + 2e-3
    plain, _ = priced(model(texts=texts, scales_scores=False), dp, 16 * sample)
    saved = 8 * q * t / rates.bandwidth("loss")[0]
    assert found - float(comparisons_s(plain, rates)[0]) == pytest.approx(saved, rel=0.1)
    assert comparisons_s(*priced(replace(spec, retrieval=None), dp, 16 * sample))[0] == 0


def test_memory_of_many_ranks_is_that_of_the_scores() -> None:
    """65,536 queries: 24 GiB of scores on every rank."""
    ledger, _ = priced(model(), 128, 1024)
    q = 128 * 512
    assert DeviceMemory(ledger).beside_states(0)["logits"][0] == 2 * (3 * q * q + 4 * q * H)


def test_ranks_with_whole_encoders_and_samples() -> None:
    asked: dict[str, Any] = {"model": {**SIZES, "name": "biencoder", "retrieval": {}}, "cluster": "dgx-h100:1",
                             "target": "any", "seq_len": SEQ, "global_batch": 512}  # fmt: skip
    plan = api.plan(None, **asked)
    for found in plan.candidates:
        assert [found.layout[name] for name in ("tp", "cp", "pp")] == [1, 1, 1]
        assert found.layout["micro_batch"] % 2 == 0
    for layout, words in (("tp2-dp4-mbs2-z0-rnone", "whole encoders"), ("dp8-mbs1-z0-rnone", "no whole number")):
        with pytest.raises(InputError, match=words):
            api.evaluate(None, layout, **asked)


@pytest.mark.parametrize(("fields", "words"), [
    ({"bidirectional": False}, "see whole sequences"), ({"pooled_classes": 2, "token_head": False}, "no other head"),
    ({"retrieval": {"texts": 0}}, "texts"), ({"retrieval": {"towers": 2}}, "towers"),
])  # fmt: skip
def test_descriptions_that_are_none(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_explicit_form({**SIZES, "retrieval": {}, **fields}, "biencoder")


def test_one_encoder_of_all_is_a_retrieval_too() -> None:
    assert Retrieval(shared=True).shares == (1.0,)
    assert Retrieval(texts=3).shares == (0.25, 0.75)
