"""`--to megatron-bridge` for models that see: their towers, images, and what trains."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import import_config
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit
from meshwright.planner.targets.megatron_bridge.options import TABLE
from meshwright.planner.targets.option_lists import option_list
from meshwright.profiles.model.explicit_form import read_explicit_form
from meshwright.profiles.model.load import load_model

from meshwright.errors import InputError

MODULE = "bridge_plan.py"
TOWER = """\
            vision_config=Qwen3VLVisionConfig(
                depth=27,
                hidden_size=1152,
                num_heads=16,
                intermediate_size=4304,
                patch_size=16,
                in_channels=3,
                temporal_patch_size=2,
                spatial_merge_size=2,
                num_position_embeddings=2304,
                out_hidden_size=4096,
                deepstack_visual_indexes=[8, 16, 24],
            ),
            mrope_section=[24, 20, 20],
            freeze_language_model=False,
            freeze_vision_model=True,
            freeze_vision_projection=False,
"""
DATA = """\
        dataset=MockVLMSFTDatasetConfig(
            seq_length=8192,
            num_images=4,
            image_size=(768, 1024),
            pad_to_max_length=True,
            hf_processor_path="Qwen/Qwen3-VL-8B-Instruct",
            random_seed=1234,
            dataloader_type="single",
        ),
"""


@cache
def plan_of(layout: str, model: str = "qwen3-vl-8b", cluster: str = "dgx-h100:2", *, frozen: bool = True) -> Plan:
    workload = {"seq_len": 8192, "global_batch": 512, "images": "4@1024x768", "freeze_tower": frozen}
    request = {"model": model, "cluster": cluster, "target": "megatron-bridge", "workload": workload}
    return api.evaluate(request_from_dict(request), layout)


def problems(files: dict[str, str]) -> list[str]:
    return [str(each) for each in check_files(files).problems]


def test_tower_and_images_are_written_with_all_that_trains() -> None:
    files = emit(plan_of("pp4-dp4-mbs1-z1-rnone"), "megatron-bridge").files
    text = files[MODULE]
    assert TOWER in text
    assert DATA in text
    assert "        model=Qwen3VLModelProvider(\n" in text
    assert 'position_embedding_type="mrope"' in text
    assert "qwen3_vl_step import forward_step" in text
    assert "gpt_step" not in text
    assert "GPTDatasetConfig" not in text
    assert "apply_rope_fusion" not in text  # no kernel turns positions by frame, row and column
    assert not problems(files)


@pytest.mark.parametrize(("model", "layout", "lines"), [
    ("qwen2.5-vl-7b", "pp2-vpp2-dp8-mbs1-z1-rnone", [
        "model=Qwen25VLModelProvider(", "training.vlm_step import forward_step",
        "vision_config=Qwen2_5_VLVisionConfig(", "window_size=112,", "fullatt_block_indexes=[7, 15, 23, 31],",
        "mrope_section=[16, 24, 24],", 'hf_processor_path="Qwen/Qwen2.5-VL-7B-Instruct"']),
    ("qwen3.5-35b-a3b", "pp2-vpp4-dp8-ep8-mbs1-z1-rnone", [
        "model=Qwen35VLMoEModelProvider(", "qwen3_vl_step import forward_step",
        "from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeVisionConfig",
        'experimental_attention_variant="gated_delta_net"', "mrope_section=[11, 11, 10],",
        'moe_router_load_balancing_type="aux_loss",', "num_query_groups=2,"]),
])  # fmt: skip
def test_other_towers_have_classes_of_their_own(model: str, layout: str, lines: list[str], tmp_path: Path) -> None:
    """Qwen3.5 with experts balances over all ranks by itself, and the plan does not."""
    plan = plan_of(layout, model, frozen=False)
    files = emit(plan, "megatron-bridge").files
    assert [line for line in lines if line not in files[MODULE]] == []
    assert not problems(files)
    (tmp_path / MODULE).write_text(files[MODULE], encoding="utf-8")
    read = import_config("megatron-bridge", [tmp_path / MODULE], {"cluster": "dgx-h100:2"})
    assert str(read.layout) == layout
    assert read.request.workload.images is not None
    assert isinstance(read.request.model, dict)
    assert read_explicit_form(read.request.model, "model")[0].tower == load_model(model)[0].tower
    edited = files[MODULE].replace("num_heads=16", "num_heads=8")
    assert "describes another model" in "\n".join(problems({**files, MODULE: edited}))


def test_the_layers_of_qwen3_5_are_those_of_its_class() -> None:
    """A recipe that states no mixers has gated DeltaNet in three layers of four."""
    read = TABLE.read({"model": "Qwen35VLModelProvider", "model.num_attention_heads": 24, "model.hidden_size": 5120,
                       "model.num_layers": 64, "model.ffn_hidden_size": 17408})  # fmt: skip
    assert read["model.pattern"][:4] == ["gated_delta_net+mlp"] * 3 + ["attention+mlp"]
    expected = {"model.head_dim": 256, "model.kv_heads": 4, "model.output_gate": True, "model.norm_bias": False,
                "model.partial_rotary_factor": 0.25, "model.gated_mlp": True, "model.dropout": False}  # fmt: skip
    assert {name: read.get(name) for name in expected} == expected


def test_the_class_with_experts_is_thawed() -> None:
    """It freezes the language model and the tower by itself."""
    text = emit(plan_of("pp2-dp16-ep8-mbs1-z1-rfull", "qwen3-vl-30b-a3b", "dgx-h100:4", frozen=False),
                "megatron-bridge").files[MODULE]  # fmt: skip
    assert "model=Qwen3VLMoEModelProvider(" in text
    assert "freeze_language_model=False,\n            freeze_vision_model=False," in text
    assert TABLE.read({"model": "Qwen3VLModelProvider"}).get("workload.freeze_tower") is None


def test_a_frozen_language_model_is_written_and_read() -> None:
    workload = {"seq_len": 8192, "global_batch": 512, "images": "4@1024x768", "freeze_language": True}
    request = {"model": "qwen3-vl-8b", "cluster": "dgx-h100:2", "target": "megatron-bridge", "workload": workload}
    files = emit(api.evaluate(request_from_dict(request), "pp4-dp4-mbs1-z1-rnone"), "megatron-bridge").files
    assert "freeze_language_model=True,\n            freeze_vision_model=False," in files[MODULE]
    assert not problems(files)
    read = TABLE.read({"model": "Qwen3VLMoEModelProvider", "model.num_moe_experts": 8, "model.num_attention_heads": 4,
                       "model.hidden_size": 64})  # fmt: skip
    assert read["workload.freeze_language"] is read["workload.freeze_tower"] is True  # as the class does by itself


def test_defaults_of_the_class_are_overridden_and_read() -> None:
    """It takes alltoall and fused permutation by itself, where GPTModelProvider takes allgather and none."""
    workload = {"seq_len": 8192, "global_batch": 512, "images": "4@1024x768"}
    request = {"model": "qwen3-vl-30b-a3b", "cluster": "dgx-h100:4", "target": "megatron-bridge", "workload": workload,
               "fix": {"moe_dispatcher": "allgather", "moe_permute_fusion": "off"}}  # fmt: skip
    plan = api.evaluate(request_from_dict(request), "pp2-dp16-ep8-mbs1-z1-rfull")
    files = emit(plan, "megatron-bridge").files
    for line in ('moe_token_dispatcher_type="allgather",', "moe_permute_fusion=False,"):
        assert f"            {line}\n" in files[MODULE]
        edited = files[MODULE].replace(f"            {line}\n", "")
        assert problems({**files, MODULE: edited})
    assert not problems(files)
    read = TABLE.read({"model": "Qwen3VLMoEModelProvider", "model.num_moe_experts": 8, "model.num_attention_heads": 4,
                       "model.hidden_size": 64, "model.freeze_language_model": False})  # fmt: skip
    assert read["switches.moe_dispatcher"] == "alltoall"


@pytest.mark.parametrize(("old", "new", "found"), [
    ("depth=27", "depth=26", "model.vision_config: describes another model than plan.json (tower of qwen3-vl-8b)"),
    ("[24, 20, 20]", "[22, 21, 21]", "describes another model"),
    ("freeze_vision_model=True", "freeze_vision_model=False", "workload.freeze_tower is None, plan.json has True"),
    ("num_images=4", "num_images=2", "dataset.num_images: workload.images is 2@1024x768, plan.json has 4@1024x768"),
    ("image_size=(768, 1024)", "image_size=(768,)", "is not a width and a height in pixels"),
    ("freeze_language_model=False", "freeze_language_model=True",
     "workload.freeze_language is True, plan.json has None"),
    ("freeze_vision_projection=False", "freeze_vision_projection=True",
     "no counterpart in a plan, whose projector trains"),
    ("vision_config=Qwen3VLVisionConfig(", "vision_config=tower(", "is not Qwen3VLVisionConfig(...)"),
    ("model=Qwen3VLModelProvider(", "model=GPTModelProvider(", "is a field of Qwen3VLModelProvider and"),
    ("model=Qwen3VLModelProvider(", "model=Qwen3VLMoEModelProvider(", "Qwen3VLMoEModelProvider has experts"),
    ("bias_dropout_fusion=True", "apply_rope_fusion=True", "no fused kernel turns positions"),
    ('"mrope"', '"rope"', "is rope, `emit` wrote mrope"),
])  # fmt: skip
def test_edits_of_a_model_that_sees_are_found(old: str, new: str, found: str) -> None:
    files = dict(emit(plan_of("pp4-dp4-mbs1-z1-rnone"), "megatron-bridge").files)
    assert old in files[MODULE]
    files[MODULE] = files[MODULE].replace(old, new)
    assert found in "\n".join(problems(files))


@pytest.mark.parametrize(("layout", "reason"), [
    ("pp2-vpp2-dp8-mbs1-z1-rnone", "build no virtual stages"),
    ("dp16-gfull-mbs1-z2-rnone", "sizes of images are read on the host in each step"),
])  # fmt: skip
def test_layouts_that_the_classes_do_not_run_are_refused(layout: str, reason: str) -> None:
    with pytest.raises(LayoutRefusedError, match=reason):
        emit(plan_of(layout), "megatron-bridge")


def test_experts_do_not_overlap_with_images() -> None:
    with pytest.raises(LayoutRefusedError, match="Qwen3VLModel does not compute beside the messages of experts"):
        emit(plan_of("dp32-ep8-epo-mbs1-z1-rnone", "qwen3-vl-30b-a3b", "dgx-h100:4"), "megatron-bridge")


def test_qwen2_5_is_not_split_over_context() -> None:
    """Its class gives whole sequences to the language model."""
    with pytest.raises(LayoutRefusedError, match="does not deal out the tokens of a sequence"):
        emit(plan_of("cp2r-dp8-mbs1-z1-rnone", "qwen2.5-vl-7b"), "megatron-bridge")
    text = emit(plan_of("dp16-mbs1-z1-rnone", "qwen2.5-vl-7b"), "megatron-bridge").files
    edited = text[MODULE].replace("seq_length=8192,\n", "seq_length=8192,\n            context_parallel_size=2,\n", 1)
    assert "Qwen25VLModelProvider does not deal out" in "\n".join(problems({**text, MODULE: edited}))


@pytest.mark.parametrize(("model", "reason"), [
    ("gemma-3-12b", "other than those of Qwen3-VL, Qwen2.5-VL and Qwen3.5"), ("llama-4-scout", "towers other than"),
])  # fmt: skip
def test_other_towers_are_refused(model: str, reason: str) -> None:
    plan = api.evaluate(request_from_dict({
        "model": model, "cluster": "dgx-h100:16", "target": "any", "workload": {"seq_len": 8192, "images": "4"},
    }), "tp8-pp4-dp4-mbs1-z1-rfull")  # fmt: skip
    with pytest.raises(LayoutRefusedError, match=reason):
        emit(plan, "megatron-bridge")


def test_an_emitted_recipe_is_read_back(tmp_path: Path) -> None:
    plan = plan_of("tp2-cp2r-dp4-mbs1-z1-rfull")
    file = tmp_path / MODULE
    file.write_text(emit(plan, "megatron-bridge").files[MODULE], encoding="utf-8")
    read = import_config("megatron-bridge", [file], {"cluster": "dgx-h100:2"})
    assert str(read.layout) == "tp2-cp2r-dp4-mbs1-z1-rfull"
    work = read.request.workload
    assert work.images is not None
    assert work.freeze_tower
    assert (work.images.per_sequence, work.images.height, work.images.width) == (4, 1024, 768)
    tower = load_model("qwen3-vl-8b")[0].tower
    model = read.request.model
    assert isinstance(model, dict)
    assert read_explicit_form(model, "model")[0].tower == tower


def test_a_tower_without_formulas_is_refused_in_a_description() -> None:
    sizes = {"hidden": 64, "layers": 2, "heads": 4, "vocab": 100, "max_positions": 64, "ffn_hidden": 128}
    with pytest.raises(InputError, match="`siglip` with a vision_config is no tower that has formulas"):
        read_explicit_form({**sizes, "tower": {"model_type": "siglip", "vision_config": {}}}, "own")


def test_fields_of_the_classes_are_recorded() -> None:
    options = option_list("megatron-bridge")[0].options
    assert options["model.vision_config"].kind == "code"
    assert "mrope" in options["model.position_embedding_type"].values
    assert options["model.rotary_base"].kind == "int"  # that of GPTModelProvider stays
