"""Plans of encoders of masked tokens: what they hold, which requests they refuse, their config and its problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.screens.header import header
from meshwright.planner import api
from meshwright.planner.document.candidate import Candidate
from meshwright.planner.document.specs import model_of
from meshwright.planner.request.load import load_request, request_from_dict, request_to_dict
from meshwright.planner.request.model_reference import text_model
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.emit import LayoutRefusedError, check_trained, emit
from meshwright.planner.targets.registry import TARGETS
from meshwright.profiles.model.load import load_model

from meshwright.errors import InputError, NoFeasibleLayoutError, UnsupportedError

BERT = {"model_type": "bert", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 1024, "max_position_embeddings": 512, "vocab_size": 1024}  # fmt: skip
LAYOUT = "dp4-mbs1-z1-rnone"


def written(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def asked(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "cluster": "4xh100-sxm-80gb", "global_batch": 16, "seq_len": 512, "target": "any", **fields}


@pytest.fixture
def bert(tmp_path: Path) -> str:
    return written(tmp_path / "bert", BERT)


def test_a_plan_holds_the_encoder(bert: str) -> None:
    plan = api.evaluate(None, LAYOUT, **asked(bert))
    model = model_of(plan.resolved, "plan")
    assert model == resolve(request_from_dict(plan.request)).model
    assert (model.bidirectional, model.token_types, model.head_transform, model.pooled_classes) == (True, 2, True, 0)
    assert request_to_dict(request_from_dict(plan.request)) == plan.request
    assert "16 x 512 tokens per step" in header(plan)
    without = api.evaluate(None, LAYOUT, **asked("llama-3.2-1b"))
    assert not {"token_types", "head_transform", "pooled_classes"} & set(without.resolved["model"])


def test_the_class_that_a_config_names_is_planned(tmp_path: Path) -> None:
    classes = {None: 0, "BertForMaskedLM": 0, "BertForPreTraining": 2, "BertForSequenceClassification": 3}
    for name, pooled in classes.items():
        labels = {"id2label": {"0": "no", "1": "yes", "2": "perhaps"}}
        config = BERT if name is None else {**BERT, **labels, "architectures": [name]}
        model = load_model(written(tmp_path / "one", config))[0]
        assert model.pooled_classes == pooled
        assert model.token_head == (pooled != 3)


def test_positions_of_roberta_start_behind_padding(tmp_path: Path) -> None:
    config = {**BERT, "model_type": "roberta", "max_position_embeddings": 514}
    model, _ = load_model(written(tmp_path / "roberta", config))
    assert (model.learned_positions, model.max_positions) == (514, 512)


@pytest.mark.parametrize(
    ("family", "fields", "text"),
    [
        ("bert", {"architectures": ["BertForQuestionAnswering"]}, "architectures: ['BertForQuestionAnswering'] is not"),
        ("bert", {"architectures": "BertForMaskedLM"}, "architectures: 'BertForMaskedLM' is not described"),
        ("roberta", {"architectures": ["BertForPreTraining"]}, "RobertaForMaskedLM and"),
        ("bert", {"is_decoder": True}, "is_decoder: only encoders"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention: only encoders"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: `relative_key` is not"),
        ("roberta", {"max_position_embeddings": 2}, "2 rows leave none behind the 2 of padding"),
    ],
)
def test_configs_that_are_no_such_encoder_are_refused(family: str, fields: dict[str, Any], text: str,
                                                      tmp_path: Path) -> None:  # fmt: skip
    with pytest.raises(InputError) as caught:
        load_model(written(tmp_path / "bad", {**BERT, **fields, "model_type": family}))
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"seq_len": 1024}, "seq_len 1024 is longer than the 512 positions"),
        ({"source_len": 64}, "has no encoder beside its decoder"),
        ({"mtp_layers": 1}, "mtp_layers: not priced for"),
        ({"seq_len": None, "lengths": {128: 1, 512: 1}}, "lengths: not priced for"),
    ],
)
def test_requests_that_do_not_fit_are_refused(fields: dict[str, Any], text: str, bert: str) -> None:
    given = {name: value for name, value in asked(bert, **fields).items() if value is not None}
    with pytest.raises(InputError) as caught:
        resolve(load_request(None, given))
    assert text in caught.value.message


def test_no_target_drops_the_encoder(bert: str) -> None:
    plan = api.evaluate(None, LAYOUT, **asked(bert))
    assert {name: reason for name, reason in plan.candidates[0].targets.items() if reason is None} == {}
    for name, target in TARGETS.items():
        if target.trainer is not None:
            with pytest.raises(UnsupportedError, match=r"model\.attention: plans of encoders such as BERT"):
                check_trained(plan, name)


def test_a_classifier_is_planned_in_any_layout(tmp_path: Path) -> None:
    """Its last stage has no product with the vocabulary and no logits of tokens."""

    def products(candidate: Candidate) -> float:
        return sum(term.seconds for term in candidate.terms if term.name in ("matmul", "norms, elementwise"))

    masked, classes = (asked(written(tmp_path / name, {**BERT, "architectures": [name]})) for name in (
        "BertForMaskedLM", "BertForSequenceClassification"))  # fmt: skip
    for layout in ("dp4-mbs1-z1-rnone", "tp2-nosp-pp2-dp1-mbs1-z1-rnone", "tp2-pp2-dp1-mbs1-z1-rfull"):
        first, second = (api.evaluate(None, layout, **given).best for given in (masked, classes))
        assert products(second) < products(first)
        assert second.device_bytes <= first.device_bytes
    plan = api.plan(**classes)
    with pytest.raises(UnsupportedError, match="is an encoder"):
        api.plan_serving(**{"model": classes["model"], "cluster": "dgx-h100:1", "input": 128, "output": 16})
    assert model_of(plan.resolved, "plan").token_head is False


@pytest.mark.parametrize("stacks", [{"bidirectional": True}, {"encoder": {"layers": 2, "max_positions": 512}},
                                    {"token_head": False, "pooled_classes": 1}])  # fmt: skip
def test_no_target_writes_an_encoder_as_a_decoder(stacks: dict[str, Any]) -> None:
    """Sizes alone do not show it: all but its attention is as in a decoder."""
    sizes = {"name": "encoder", "layers": 4, "hidden": 256, "heads": 4, "vocab": 1024, "max_positions": 512,
             "ffn_hidden": 1024, "gated_mlp": False, "bias": True, "learned_positions": True}  # fmt: skip
    plan = api.evaluate(None, LAYOUT, **{**asked(""), "model": {**sizes, **stacks}})
    for name, target in TARGETS.items():
        if target.trainer is not None:
            with pytest.raises(LayoutRefusedError, match=r"are not written for it|the runtime's encoders"):
                emit(plan, name)


def test_only_training_is_priced(bert: str) -> None:
    with pytest.raises(UnsupportedError, match="is an encoder: only its training is priced"):
        text_model(bert)
    with pytest.raises(InputError, match="vocabulary-parallel"):
        api.evaluate(None, "pp2-dp2-mbs1-z1-rnone", **asked(bert, technique="vocabulary-parallel"))


@pytest.mark.parametrize("schedule", ["interleaved", "zb-v"])
def test_schedules_of_several_chunks_are_refused_with_the_reason(schedule: str) -> None:
    reason = f"{schedule} gives stages several chunks, but stages of an encoder and of a decoder are unlike"
    with pytest.raises(NoFeasibleLayoutError, match=reason):
        api.plan(model="t5-11b", cluster="dgx-h100:2", target="any", fix={"schedule": schedule})
