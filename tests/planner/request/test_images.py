"""Images of a request: their grammar, what they need, and plans with and without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.main import main
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.quantities import vision
from meshwright.cost_models.quantities.stages import EMBEDDING, Partition
from meshwright.planner import api
from meshwright.planner.document.specs import model_of, workload_of
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import load_request, request_from_dict, request_to_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.emit import check_trained

from meshwright.errors import InputError, UnsupportedError

VISION = {"depth": 4, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "out_hidden_size": 256,
          "patch_size": 16, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2]}  # fmt: skip
TEXT = {"model_type": "qwen3_vl_text", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024,
        "max_position_embeddings": 4096}  # fmt: skip
GEMMA = {**VISION, "image_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A small model of the kind of Qwen3-VL."""
    config = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": VISION}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def asked(folder: str, **fields: Any) -> dict[str, Any]:
    return {"model": folder, "cluster": "2xh100-sxm-80gb", "seq_len": 1024, "global_batch": 8, "target": "any",
            **fields}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "size"),
    [("4", (4, None, None)), (4, (4, None, None)), ("2@128x64", (2, 128, 64)), ("2@128X64", (2, 128, 64)),
     ({"per_sequence": 1, "height": 64, "width": 32}, (1, 64, 32))],
)  # fmt: skip
def test_grammar(given: Any, size: tuple[int | None, ...], folder: str) -> None:
    images = load_request(None, asked(folder, images=given)).workload.images
    assert images is not None
    assert (images.per_sequence, images.height, images.width) == size


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"images": "two"}, "images: `two` is not a whole number"),
        ({"images": "0@64x64"}, "must be 1 or more, is 0"),
        ({"images": "2@64"}, "`64` is no height x width"),
        ({"images": "2@64x0"}, "must be 1 or more, is 0"),
        ({"images": "2"}, "takes images of any size, and none is given"),
        ({"images": "1@31x6201"}, "31 x 6201 pixels are longer than 200 times their width"),
        ({"images": "5@512x512"}, "5 x 256 tokens = 1,280 are more than the 1,024 of a sequence"),
        ({"freeze_tower": True}, "the request has no images"),
        ({"freeze_language": True}, "the request has no images, so there is nothing that would train"),
        ({"images": "1@64x64", "freeze_language": True, "lora": "8:q"}, "and nothing before it"),
        ({"images": "1@64x64", "freeze_language": True, "train_layers": 2}, "and nothing before it"),
        ({"images": "1@64x64", "optimizer": "muon"}, "optimizer muon"),
        ({"images": "1@64x64", "stages": [1, 7]}, "stages give the first chunk 1 layers"),
        ({"images": "1", "model": "phi-4-multimodal"}, "takes images of any size, and none is given"),
        ({"images": "1@3000x3000", "model": "phi-4-multimodal"},
         "3000 x 3000 pixels are 7 x 7 tiles of 448 pixels, more than 36"),
        ({"images": "1@8x2000", "model": "phi-4-multimodal"},
         "8 x 2000 pixels on 1 x 5 tiles of 448 pixels are scaled to 8 x 2240, and a side below 10 is refused"),
        ({"images": "1@1024x768", "model": "phi-4-multimodal"}, "1 x 1,692 tokens = 1,692 are more than the 1,024"),
        ({"images": "1@64x64", "model": "llama-3.2-1b"}, "no vision tower of llama-3.2-1b is described"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], text: str, folder: str) -> None:
    with pytest.raises(InputError) as caught:
        api.evaluate(None, "pp2-dp1-mbs1-z0-rnone", **asked(folder, **fields))
    assert text in caught.value.message
    assert caught.value.hint or "\n" in caught.value.message


@pytest.mark.parametrize(("target", "text"), [
    ("meshwright", "the runtime freezes the vision tower alone, not the language model"),
    ("megatron", "plans of vision towers are not written for it"),
])  # fmt: skip
def test_a_frozen_language_model_is_refused_where_it_does_not_train(target: str, text: str, folder: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        api.plan(None, **{**asked(folder, images="1@64x64", freeze_language=True), "target": target})


def test_documents_with_degrees_of_their_own_have_no_images(folder: str) -> None:
    fields = asked(folder, images="1@64x64", lengths="512:1", max_len="512")
    with pytest.raises(InputError, match="max_len: documents with images"):
        api.plan_documents(**{name: value for name, value in fields.items() if name != "seq_len"})


def test_images_that_are_scaled_need_no_size(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": {**TEXT, "model_type": "gemma3_text"}, "vision_config": GEMMA,
              "mm_tokens_per_image": 4}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = api.evaluate(None, "dp2-mbs1-z1-rnone", **asked(str(tmp_path), images=2))
    assert plan.resolved["workload"]["images"] == {"per_sequence": 2, "height": 64, "width": 64}


def test_without_images_the_text_model_is_planned(folder: str) -> None:
    plan = api.evaluate(None, "dp2-mbs1-z1-rnone", **asked(folder))
    assert not {"images", "freeze_tower"} & {*plan.resolved["workload"], *plan.request["workload"]}
    assert "tower" not in plan.resolved["model"]
    assert any("without its vision tower" in warning for warning in plan.warnings)


def test_a_plan_holds_tower_and_images(folder: str) -> None:
    fields = asked(folder, images="2@512x512", freeze_tower=True)
    plan = api.evaluate(None, "pp2-dp1-mbs1-z0-rnone", **fields)
    model, workload = model_of(plan.resolved, "plan"), workload_of(plan.resolved, "plan")
    assert model.tower is not None
    assert workload.images is not None
    assert (workload.images.width, workload.freeze_tower, model.tower.deepstack) == (512, True, 2)
    again = request_from_dict(plan.request)
    assert request_to_dict(again) == plan.request
    assert not any("without its vision tower" in warning for warning in plan.warnings)
    text = api.evaluate(None, "pp2-dp1-mbs1-z0-rnone", **asked(folder)).candidates[0]
    weights, of_text = (sum(stage.weights_bytes for stage in of.memory) for of in (plan.candidates[0], text))
    assert weights - of_text == pytest.approx(2 * sum(vision.parameters(model.tower).values()), rel=1e-6)
    assert plan.candidates[0].step_s > text.step_s


def test_targets_train_the_tower_or_refuse_it(folder: str) -> None:
    plan = api.evaluate(None, "dp2-mbs1-z1-rnone", **asked(folder, images="1@64x64"))
    assert [name for name, reason in plan.candidates[0].targets.items() if reason is None] == ["meshwright"]
    assert "model.tower" in str(plan.candidates[0].targets["megatron"])
    assert "model.vocab: 1024 tokens lack those of images" in str(plan.candidates[0].targets["megatron-bridge"])
    check_trained(plan, "meshwright")
    with pytest.raises(UnsupportedError, match=r"model\.tower"):
        check_trained(plan, "torchtitan")


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"num_position_embeddings": 60}, "60 is no square"), ({"num_heads": 64}, "their width of 2"),
     ({"hidden_act": "quick_gelu"}, "no activation quick_gelu")],
)  # fmt: skip
def test_the_runtime_says_which_towers_it_lacks(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    config = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": {**VISION, **changes}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = api.evaluate(None, "dp2-mbs1-z1-rnone", **asked(str(tmp_path), images="1@64x64"))
    assert text in str(plan.candidates[0].targets["meshwright"])


def test_the_runtime_splits_no_sequences_with_images(folder: str) -> None:
    plan = api.evaluate(None, "cp2r-dp1-mbs1-z1-rnone", **asked(folder, images="1@64x64"))
    assert "cp 2 splits them" in str(plan.candidates[0].targets["meshwright"])


def test_stages_of_their_own_hold_the_layers_that_the_tower_adds_to(folder: str) -> None:
    """Outputs of the tower go to the first two layers. Many images make the tower slower than all layers together."""
    fields = asked(folder, images="1@960x960", cluster="4xh100-sxm-80gb", stages="own",
                   fix={"pp": 4, "tp": 1, "schedule": "1f1b"})  # fmt: skip
    plan = api.plan(**fields)
    for candidate in plan.candidates:
        first = candidate.stages[0].layers
        assert first is not None
        assert first[-1] - first[0] + 1 >= 2, candidate.layout_id


@pytest.mark.parametrize("layers", [(2, 6), (0, 8)])
def test_full_recomputation_has_one_price_however_it_is_written(layers: tuple[int, int], tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": {**TEXT, "model_type": "gemma3_text"}, "vision_config": GEMMA,
              "mm_tokens_per_image": 4}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    resolved = resolve(load_request(None, asked(str(tmp_path), images=2)))
    base = Staged.of(resolved, parse("pp2-dp1-mbs1-z0-rfull"), simulate=True)
    whole, by_stage = base.split(Partition(layers)), base.split(Partition(layers, layers))
    assert by_stage.step_s == pytest.approx(whole.step_s, rel=1e-9)
    assert by_stage.closed_s == pytest.approx(whole.closed_s, rel=1e-9)
    assert by_stage.device_bytes == pytest.approx(whole.device_bytes, rel=1e-9)
    of_last = base.split(Partition(layers, (0, 1)))
    repeats = of_last.recomputed[0, EMBEDDING]
    assert repeats == (layers[0] == 0)  # a stage of the tower alone does as the stages that recompute


def test_the_tower_has_a_line_where_there_is_one_stage(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = api.evaluate(None, "dp2-mbs1-z1-rnone", **asked(folder, images="2@64x64"))
    (file := tmp_path / "plan.json").write_text(plan.to_json())
    assert main(["explain", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "vision tower, embedding and head" in shown
    assert "the embedding with the vision tower" in shown
    assert "Even stages" not in shown
