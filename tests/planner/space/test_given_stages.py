"""Stages that a request gives, and even ones whose ends hold the embedding or the head alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from meshwright.cost_models.layouts import parse
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.importing import import_config
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import emit

from meshwright.errors import InputError, UnsupportedError

LLAMA: dict[str, Any] = {"model": "llama-3.1-405b", "cluster": "dgx-h100:128", "seq_len": 8192, "global_batch": 1024}
DEEPSEEK: dict[str, Any] = {"model": "deepseek-v3", "cluster": "dgx-h100:32", "seq_len": 4096, "global_batch": 512,
                            "target": "megatron"}  # fmt: skip
# Megatron-Bridge, perf_recipes/deepseek: pp 8 x vpp 4, the last chunk holds no layer of the decoder.
V3_STAGES = "Et|(tt|)*30mL"
V3_LAYOUT = "pp8-vpp4-dp32-ep32-mbs1-z1-rsel(mla)"


def sizes(plan: Plan) -> list[int]:
    return [chunk.layers[1] - chunk.layers[0] + 1 if chunk.layers else 0 for chunk in plan.best.stages]


def test_as_many_chunks_as_layers_and_ends() -> None:
    """Llama 3.1 405B in 128 chunks, as Megatron-Bridge trains it: embedding and loss count as a layer each."""
    plan = api.plan(**LLAMA, target="megatron", fix={"tp": 8, "pp": 16, "vpp": 8}, top=1)
    assert sizes(plan) == [0, *[1] * 126, 0]
    assert plan.best.layout_id == str(plan.best.to_layout())  # they are those of the layout
    text = emit(plan, "megatron").files["megatron.args"]
    assert "--pipeline-model-parallel-layout E|t|t|" in text


def test_more_chunks_than_that_are_refused() -> None:
    with pytest.raises(InputError, match="pp 16 x 16 chunks are more than the 126 layers"):
        api.evaluate(None, "tp8-pp16-vpp16-dp8-mbs1-z1-rnone", **LLAMA)


@pytest.mark.parametrize("given", [V3_STAGES, [1, *[2] * 30, 0], "1," + "2," * 30 + "0"])
def test_given_stages_are_planned_emitted_and_read_back(given: Any, tmp_path: Any) -> None:
    plan = api.evaluate(None, V3_LAYOUT, **DEEPSEEK, stages=given)
    assert sizes(plan) == [1, *[2] * 30, 0]
    assert plan.best.layout_id.startswith(f"{V3_LAYOUT}-x")
    files = emit(plan, "megatron").files
    path = tmp_path / "megatron.args"
    path.write_text(files["megatron.args"])
    assert not check_files(files).problems
    back = import_config("megatron-args", [path], {"cluster": DEEPSEEK["cluster"]}).price()
    assert sizes(back) == sizes(plan)


def test_the_search_prices_given_stages_as_the_layout_is_priced_alone() -> None:
    plan = api.plan(**DEEPSEEK, stages=V3_STAGES, fix={"pp": 8, "ep": 32}, top=3)
    assert all(candidate.to_layout().pp * candidate.to_layout().vpp == 32 for candidate in plan.candidates)
    resolved = resolve(load_request(None, {**DEEPSEEK, "stages": V3_STAGES}))
    for candidate in plan.candidates:
        alone = Staged.of(resolved, candidate.to_layout(), simulate=True)
        assert (alone.step_s, alone.closed_s) == pytest.approx((candidate.step_s, candidate.closed_form_s), rel=1e-8)


def test_empty_chunks_in_the_middle() -> None:
    """Megatron-Bridge, perf_recipes/glm: a chunk without any layer hands its input on."""
    even = resolve(load_request(None, {**LLAMA, "model": "llama-3.1-8b", "cluster": "dgx-h100"}))
    layout = parse("pp4-vpp2-dp2-mbs1-z1-rnone")
    given = resolve(load_request(None, {**LLAMA, "model": "llama-3.1-8b", "cluster": "dgx-h100",
                                        "stages": "Et*2|t*5||t*5|t*5|t*5|t*5|t*5L"}))  # fmt: skip
    rows = Staged.of(given, layout).rows
    assert rows[2, :-4].sum() == 0
    simulated = Staged.of(given, layout, simulate=True)
    assert np.isclose(simulated.step_s, simulated.closed_s, rtol=0.05)
    assert simulated.step_s > Staged.of(even, layout, simulate=True).step_s


@pytest.mark.parametrize(("stages", "text"), [
    ("Et*60|mL", "60 x layer instead of 61"),
    ("Et*30|t*31L", "0 x mtp instead of 1"),
    ("t*30|t*31mL", "0 x embedding instead of 1"),
    ("Et*30|mt*31L", "a layer .t. comes after multi-token prediction"),
    ("Et*30|t*31|m|L", "in the chunk of the loss .L. only"),
    ("Et*30|xL", "`x` is no part of a model"),
    ([30, 30], "60 layers instead of 61"),
    ("30,-1", "`30,-1`|less than 0"),
    ([], "empty list"),
    ({"pp": 4}, "is no stages"),
])  # fmt: skip
def test_stages_that_do_not_add_up(stages: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        resolve(load_request(None, {**DEEPSEEK, "stages": stages}))


def test_a_target_that_divides_layers_itself() -> None:
    with pytest.raises(UnsupportedError, match="deepspeed cannot run the stages of the request"):
        resolve(load_request(None, {**LLAMA, "target": "deepspeed", "stages": [62, 64]}))
    assert resolve(load_request(None, {**LLAMA, "target": "deepspeed", "stages": [63, 63]})).stages == (63, 63)
