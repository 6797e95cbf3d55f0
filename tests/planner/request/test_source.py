"""The source of a request: its length, what it needs, and plans of models with an encoder and a decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.screens.explain import explain_screen
from meshwright.planner import api
from meshwright.planner.document.specs import model_of, workload_of
from meshwright.planner.explain.kinds_of_layers import kind_loads
from meshwright.planner.explain.stage_loads import stage_loads
from meshwright.planner.request.load import load_request, request_from_dict, request_to_dict
from meshwright.planner.request.model_reference import text_model
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.emit import check_trained
from meshwright.planner.targets.registry import TARGETS

from meshwright.errors import InputError, UnsupportedError

T5 = {"model_type": "t5", "d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 4, "num_decoder_layers": 4,
      "num_heads": 4, "vocab_size": 1024, "feed_forward_proj": "relu"}  # fmt: skip
WHISPER = {"model_type": "whisper", "d_model": 256, "encoder_layers": 4, "decoder_layers": 4, "vocab_size": 1024,
           "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512,
           "max_source_positions": 256}  # fmt: skip


@pytest.fixture
def t5(tmp_path: Path) -> str:
    return written(tmp_path / "t5", T5)


@pytest.fixture
def whisper(tmp_path: Path) -> str:
    return written(tmp_path / "whisper", WHISPER)


def written(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def asked(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "cluster": "4xh100-sxm-80gb", "global_batch": 16, "target": "any", **fields}


def source_len(model: str, **fields: Any) -> int | None:
    return resolve(load_request(None, asked(model, **fields))).workload.source_len


def test_a_source_is_as_long_as_the_target_or_the_sound(t5: str, whisper: str) -> None:
    assert source_len(t5) == 512
    assert source_len(t5, seq_len=128) == 128
    assert source_len(t5, seq_len=128, source_len=384) == 384
    assert source_len(whisper, seq_len=128) == 256
    assert source_len("llama-3.2-1b") is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"source_len": 513}, "source_len: 513 tokens are more than the 512 that the decoder may attend to"),
        ({"source_len": 0}, "source_len"),
        ({"lora": 8}, "adapters: not priced"),
        ({"train_layers": 2}, "train_layers: not priced"),
        ({"lengths": "64:1", "optimizer": "muon"}, "optimizer muon, lengths: not priced"),
        ({"model": "llama-3.2-1b", "source_len": 64}, "llama-3.2-1b has no encoder beside its decoder"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], text: str, t5: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve(load_request(None, {**asked(t5), **fields}))
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("pp2-int-vpp2-dp2-mbs1-z1-rnone", "interleaved gives stages several chunks"),
        ("pp2-zbv-vpp2-dp2-mbs1-z1-rnone", "zb-v gives stages several chunks"),
        ("cp2r-dp2-mbs1-z1-rnone", "cp 2: cross attention takes the keys of the whole source"),
        ("tp4-dp1-mbs1-z1-rnone", "sequence parallelism over tp 4 does not divide the 66 tokens"),
        ("pp4-dp1-mbs1-z0-rnone", None),
    ],
)
def test_layouts_that_cannot_be_are_refused(layout: str, text: str | None, t5: str) -> None:
    fields = asked(t5, source_len=66, seq_len=64)
    if text is None:
        assert api.evaluate(None, layout, **fields).candidates
        return
    with pytest.raises(InputError) as caught:
        api.evaluate(None, layout, **fields)
    assert text in caught.value.message


def test_a_plan_holds_the_encoder(t5: str) -> None:
    plan = api.evaluate(None, "pp4-dp1-mbs1-z0-rnone", **asked(t5, seq_len=64, source_len=128))
    model, workload = model_of(plan.resolved, "plan"), workload_of(plan.resolved, "plan")
    assert model == resolve(request_from_dict(plan.request)).model
    assert model.encoder is not None
    assert (workload.source_len, model.encoder.layers) == (128, 4)
    assert request_to_dict(request_from_dict(plan.request)) == plan.request
    without = api.evaluate(None, "dp4-mbs1-z1-rnone", **asked("llama-3.2-1b"))
    assert "source_len" not in {*without.resolved["workload"], *without.request["workload"]}
    assert "encoder" not in without.resolved["model"]


@pytest.mark.parametrize(
    ("model", "rows"),
    [  # equal stages share a row
        ("t5", ["encoder and embedding", "encoder", "decoder", "decoder and head"]),
        ("whisper", ["encoder", "decoder and embedding", "decoder and head"]),
    ],
)
def test_explain_shows_the_stages_of_each_stack(model: str, rows: list[str], request: pytest.FixtureRequest) -> None:
    plan = api.evaluate(None, "pp4-dp1-mbs1-z0-rnone", **asked(request.getfixturevalue(model), seq_len=128))
    asked_for = request_from_dict(plan.request)
    screen = explain_screen(plan, plan.best, kind_loads(asked_for, plan.best), stage_loads(asked_for, plan.best),
                            unicode=True)  # fmt: skip
    table = screen[screen.index("Stages") + 1]
    assert [*list(table.columns)[-1].cells] == rows  # type: ignore[union-attr]


def test_no_target_but_the_runtime_trains_an_encoder(t5: str) -> None:
    plan = api.evaluate(None, "dp4-mbs1-z1-rnone", **asked(t5))
    assert [name for name, reason in plan.candidates[0].targets.items() if reason is None] == ["meshwright"]
    check_trained(plan, "meshwright")
    for name, target in TARGETS.items():
        if target.trainer is not None and name != "meshwright":
            with pytest.raises(UnsupportedError, match=r"model\.encoder"):
                check_trained(plan, name)


LEARNED = {"name": "own", "layers": 2, "hidden": 256, "heads": 4, "vocab": 1024, "max_positions": 512,
           "ffn_hidden": 512, "learned_positions": True, "encoder": {"layers": 2, "max_positions": 512}}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (WHISPER, "no encoder of sound"), (LEARNED, "no positions but biases by distance"),
        ({**T5, "relative_attention_max_distance": 256}, "does not know the model's relative_attention_max_distance"),
    ],
)  # fmt: skip
def test_the_runtime_names_what_it_lacks_of_two_stacks(model: dict[str, Any], reason: str, tmp_path: Path) -> None:
    given = model if "name" in model else written(tmp_path / "model", model)
    plan = api.evaluate(None, "dp4-mbs1-z1-rnone", **{**asked(""), "model": given})
    with pytest.raises(UnsupportedError, match=reason):
        check_trained(plan, "meshwright")


def test_only_training_is_priced(t5: str) -> None:
    with pytest.raises(UnsupportedError, match="only its training is priced"):
        text_model(t5)
    with pytest.raises(InputError, match="of models with an encoder"):
        api.plan(**asked(t5), layers="own")
