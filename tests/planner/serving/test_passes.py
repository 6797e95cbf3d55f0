"""Plans that serve models which fill in masked tokens: they are warned of, priced as simulated, and not emitted."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.cost_models.serving.served_model import ServedModel
from meshwright.planner.api import plan, plan_serving
from meshwright.planner.explain.serving import explain_serving
from meshwright.planner.explain.serving_why_not import compared
from meshwright.planner.request.serving import ServingFields
from meshwright.planner.targets.engines.emit import emit_serving
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import stack_for

from meshwright.errors import InputError, NoFeasibleLayoutError, UnsupportedError

FIELDS: dict[str, Any] = {"model": "llada-8b", "cluster": "2xa100-sxm-80gb", "input": 200, "output": 256}
SIZES = {"hidden": 64, "layers": 2, "heads": 4, "ffn_hidden": 128, "vocab": 1000, "max_positions": 512}


IMAGES: dict[str, Any] = {"model": "dit-xl-2-256", "cluster": "1xa100-sxm-80gb", "input": 1, "output": 256, "passes": 8}


@pytest.mark.parametrize("asked", [
    {**FIELDS, "concurrency": 4, "technique": "dparallel"}, {**FIELDS, "rate": "0.2/s", "technique": "dparallel"},
    {**FIELDS, "rate": "1/s", "technique": "dparallel:block=32"}, {**IMAGES, "rate": "5/s"},
    {**IMAGES, "passes": 4, "concurrency": 16}, {**IMAGES, "passes": 20, "concurrency": 4},
    {**IMAGES, "rate": "5/s", "technique": "streamdiffusion"}])  # fmt: skip
def test_the_simulated_instance_has_the_seconds_of_the_closed_form(asked: dict[str, Any]) -> None:
    best = plan_serving(**asked, fix={"tp": 1, "pp": 1, "chunk_tokens": 2048}, top=1).best
    assert best.simulated is not None
    assert best.simulated.tpot_s.mean == pytest.approx(best.tpot_s, rel=0.1)
    assert best.simulated.ttft_s.mean == pytest.approx(best.ttft_s, rel=0.1)
    assert best.simulated.ttft_s.p90 == pytest.approx(best.ttft_promised_s, rel=0.25)


def test_an_answer_comes_as_a_whole_or_its_first_block_does() -> None:
    """One request alone, of 32 passes: all of them until it is there; with blocks of 32 of 256 tokens an eighth."""
    asked: dict[str, Any] = {**FIELDS, "cluster": "1xa100-sxm-80gb", "concurrency": 1, "top": 1}
    for block, shown in ((0, 256), (32, 32)):
        best = plan_serving(**asked, technique={"dparallel": {"tokens": 8, "block": block}}).best
        assert 0 < best.ttft_s - shown * best.tpot_s < 0.1
        assert best.concurrency == pytest.approx(1.0, rel=1e-3)


def test_similar_frames_raise_the_rate_and_shorten_no_frame() -> None:
    """Half of the frames are like the one before: twice as many per second, also where a frame takes one pass."""
    for passes in (4, 8):
        plain, half = (plan_serving(**{**IMAGES, "passes": passes}, technique=f"streamdiffusion:similar={similar}",
                                    concurrency=4, top=1).best for similar in (0, 0.5))  # fmt: skip
        assert half.rate == pytest.approx(2 * plain.rate)
        assert (half.ttft_s, half.tpot_s) == pytest.approx((plain.ttft_s, plain.tpot_s))
        assert half.concurrency == pytest.approx(plain.concurrency)


def test_room_binds_where_more_of_it_carries_more() -> None:
    """A 4090 has room for one answer with its caches, whose passes over a block of 32 tokens mostly read weights; with
    room for many, passes over all tokens take as many times as long. A closed loop has as many requests as room."""
    one = plan_serving(model="llada-8b", cluster="1xrtx-4090", input=2400, output=500, rate="0.002/s", top=1,
                       technique="dparallel:tokens=1,block=32").best  # fmt: skip
    assert (one.pools[0].cache_sequences, one.binds) == (1, "room")
    many = plan_serving(**FIELDS, rate="0.1/s", top=1)
    assert many.best.binds == "passes"
    assert plan_serving(**FIELDS, concurrency=2, top=1).best.binds == "room"
    explained = explain_serving(many)
    resources, parts = ({it.resource for it in explained.effects}, {it.name for it in explained.parts})
    assert "room for passes" in resources
    assert "KV cache" not in resources
    assert "prompts of others" not in parts


def test_frames_above_the_steps_of_a_frame_are_no_choice() -> None:
    served = plan_serving(**IMAGES, rate="5/s", allow_techniques=("streamdiffusion:frames=9",), top=1)
    assert not served.resolved.get("techniques")
    assert [choice.why for choice in served.technique_choices if choice.names] == [
        "streamdiffusion needs as many steps as frames: 9 frames in a pass, each at another step, and a frame has 8 "
        "steps (`streamdiffusion:frames=8` or fewer)"]


def test_two_stages_do_not_shorten_the_pass_of_one_sequence() -> None:
    one, two = (plan_serving(**FIELDS, concurrency=1, fix={"tp": 1, "pp": pp}, top=1).best.tpot_s for pp in (1, 2))
    assert two >= one


def test_no_deployment_apart_and_no_files() -> None:
    served = plan_serving(**FIELDS, rate="0.1/s", top=1)
    assert served.separation is None
    assert not any("tokens of a pass" in text for text in served.warnings)
    assert "no engine here has it" in served.warnings[0]
    with pytest.raises(UnsupportedError, match="llada-8b: no runtime, since it fills in masked tokens"):
        emit_serving(served, "vllm")


def test_the_choice_of_techniques_has_those_of_masked_tokens() -> None:
    served = plan_serving(**FIELDS, rate="0.1/s", allow_techniques=("dparallel", "learn2pd", "nexus"), top=1)
    assert set(served.resolved["techniques"]) == {"learn2pd"}
    reasons = {choice.names: choice.why for choice in served.technique_choices}
    assert any("22.8 tokens of a pass: tokens that depend on one another" in text for text in served.warnings)
    assert reasons["nexus",] == "nexus needs a decoder, which gives one token after another"


def test_images_are_served_in_passes_with_guidance_and_by_techniques_of_images() -> None:
    asked: dict[str, Any] = {"model": "dit-xl-2-256", "cluster": "1xa100-sxm-80gb", "input": 1, "output": 256,
                             "fix": {"chunk_tokens": 2048}, "top": 1}  # fmt: skip
    guided = plan_serving(**asked, passes=8, allow_techniques=("streamdiffusion", "dparallel"))
    assert set(guided.resolved["techniques"]) == {"streamdiffusion"}
    asked["concurrency"] = 1
    plain = plan_serving(**asked, passes=8)
    assert plan_serving(**asked, passes=16).best.tpot_s == pytest.approx(2 * plain.best.tpot_s, rel=1e-6)
    parts = sum(part.tpot_s for part in explain_serving(plain).parts)
    assert parts == pytest.approx(plain.best.tpot_promised_s, rel=1e-6)
    with pytest.raises(UnsupportedError, match=r"dit-xl-2-256: no runtime, since it denoises images"):
        emit_serving(plain, "vllm")


def test_a_token_passes_one_stream_and_no_modulation() -> None:
    """Flux: 19 layers of two streams, of 12 h^2 and a modulation of 6 h^2 each, and 38 of one, whose modulation is 3
    h^2."""
    model = load_model("flux.1-dev")[0]
    served, h = ServedModel.of(model, stack_for("generic")[0]), 3072
    passed = 19 * (4 * h * h + 8 * h * h) + 38 * (4 * h * h + 8 * h * h)
    assert served.dense_parameters == pytest.approx(passed, rel=2e-3)  # biases and norms beside it
    modulation = 19 * 2 * 6 * h * h + 38 * 3 * h * h
    assert served.still_parameters == pytest.approx(19 * 12 * h * h + modulation, rel=2e-3)


def test_training_is_planned_and_no_target_writes_it() -> None:
    with pytest.raises(UnsupportedError, match=r"model\.unmasks: plans of models that fill in masked tokens are not"):
        plan(model="llada-8b", cluster="dgx-h100:1", target="megatron")


def test_what_a_config_must_have() -> None:
    good = {"model_type": "llada", "block_type": "llama", "d_model": 64, "n_heads": 4, "n_layers": 2,
            "mlp_hidden_size": 128, "vocab_size": 1000}  # fmt: skip
    assert read_config(good, "m")[0].unmasks
    with pytest.raises(InputError) as caught:
        read_config({**good, "block_type": "sequential", "n_heads": 5}, "m")
    assert "block_type: `sequential` is not described" in caught.value.message


def test_the_explicit_form_has_masked_tokens() -> None:
    assert read_explicit_form({**SIZES, "bidirectional": True, "unmasks": True}, "m")[0].unmasks
    with pytest.raises(InputError, match="masked tokens see those before and after them"):
        read_explicit_form({**SIZES, "unmasks": True}, "m")


def test_a_decoder_is_no_draft_of_it_nor_it_of_a_decoder() -> None:
    with pytest.raises(UnsupportedError, match="llada-8b fills in masked tokens: only its training and its serving"):
        plan_serving(**{**FIELDS, "model": "llama-3.1-8b"}, speculate="3:0.7:llada-8b")
    assert not load_model("llama-3.1-8b")[0].fills


def test_a_pass_gives_no_more_than_an_answer() -> None:
    """Of 8 tokens all are given by one pass, whatever a technique has on average."""
    asked: ServingFields = {"model": "llada-8b", "cluster": "1xh100-sxm-80gb", "input": 200, "output": 8, "rate": "1/s",
                            "top": 1}  # fmt: skip
    asked_few: ServingFields = {**asked, "technique": "learn2pd:tokens=8"}
    asked_many: ServingFields = {**asked, "technique": "learn2pd:tokens=200"}
    few, many = plan_serving(**asked_few).best, plan_serving(**asked_many).best
    assert many.tpot_s == pytest.approx(few.tpot_s)


def test_why_not_prices_the_same_passes() -> None:
    """The plan's own deployment, priced anew."""
    asked: ServingFields = {"model": "dit-xl-2-256", "cluster": "2xh100-sxm-80gb", "input": 1, "output": 256,
                            "passes": 8, "rate": "1/s", "top": 1, "fix": {"tp": 1}}  # fmt: skip
    made = plan_serving(**asked)
    other = compared(made.model_copy(update={"candidates": (made.best.model_copy(update={"deployment_id": "-"}),)}),
                     made.best.deployment_id).other  # fmt: skip
    assert other.tpot_s == pytest.approx(made.best.tpot_s)
    with pytest.raises(NoFeasibleLayoutError, match="fills in all tokens of an answer together"):
        compared(made, "1 x tp1 + 1 x tp1")
