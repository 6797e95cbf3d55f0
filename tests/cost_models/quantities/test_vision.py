"""Vision towers against transformers: parameters on the meta device, FLOPs as torch counts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.quantities.vision import forward_flops, pairs_in_windows, parameters, tokens
from meshwright.cost_models.specs.vision import VisionTower
from meshwright.profiles.io.folders import CATALOGUE
from meshwright.profiles.model.fields import Fields
from meshwright.profiles.model.load import load_model
from meshwright.profiles.model.vision import read_tower
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.clip.configuration_clip import CLIPVisionConfig
from transformers.models.clip.modeling_clip import CLIPVisionModel
from transformers.models.gemma3.configuration_gemma3 import Gemma3Config, Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForConditionalGeneration, Gemma3MultiModalProjector
from transformers.models.internvl.configuration_internvl import InternVLConfig, InternVLVisionConfig
from transformers.models.internvl.modeling_internvl import (
    InternVLForConditionalGeneration,
    InternVLMultiModalProjector,
    InternVLVisionModel,
)
from transformers.models.llama4.configuration_llama4 import Llama4Config, Llama4TextConfig, Llama4VisionConfig
from transformers.models.llama4.modeling_llama4 import Llama4MultiModalProjector, Llama4VisionModel
from transformers.models.paligemma.configuration_paligemma import PaliGemmaConfig
from transformers.models.paligemma.modeling_paligemma import (
    PaliGemmaForConditionalGeneration,
    PaliGemmaMultiModalProjector,
)
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import (
    Qwen2_5_VisionTransformerPretrainedModel,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeVisionConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeVisionModel,
)
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration, Qwen3VLVisionModel
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeVisionConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import (
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLMoeVisionModel,
)
from transformers.models.siglip.configuration_siglip import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipVisionModel

from meshwright.errors import InputError

SMALL: dict[str, Any] = {
    "depth": 3, "hidden_size": 48, "intermediate_size": 112, "num_heads": 4, "out_hidden_size": 80, "patch_size": 8,
    "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2],
}  # fmt: skip
LARGEST: dict[str, Any] = {"out_hidden_size": 4096}  # all other fields have their defaults
KINDS = [(Qwen3VLVisionConfig, Qwen3VLVisionModel), (Qwen3VLMoeVisionConfig, Qwen3VLMoeVisionModel)]


def read(config: Any) -> VisionTower:
    return of_whole({"model_type": "qwen3_vl", "vision_config": config.to_dict()})


def of_whole(config: dict[str, Any]) -> VisionTower:
    fields = Fields(config)
    tower = read_tower(fields)
    fields.finish()
    assert tower is not None
    return tower


def gemma(**fields: Any) -> Any:
    """The tower of Gemma 3 with other sizes: (image_size / patch_size)^2 patches, 4 of a side become a token."""
    vision = SiglipVisionConfig(vision_use_head=False, **fields)
    return Gemma3Config(vision_config=vision, text_config=Gemma3TextConfig(hidden_size=80),
                        mm_tokens_per_image=(fields["image_size"] // fields["patch_size"] // 4) ** 2)  # fmt: skip


SMALL_GEMMA = {"image_size": 64, "patch_size": 8, "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3,
               "num_attention_heads": 4}  # fmt: skip
PUBLISHED_GEMMA = {"image_size": 896, "patch_size": 14, "hidden_size": 1152, "intermediate_size": 4304,
                   "num_hidden_layers": 27, "num_attention_heads": 16}  # fmt: skip


@pytest.mark.parametrize("fields", [SMALL_GEMMA, PUBLISHED_GEMMA])
def test_parameters_of_gemma_are_those_of_transformers(fields: dict[str, Any]) -> None:
    config = gemma(**fields)
    with torch.device("meta"):
        theirs = [SiglipVisionModel(config.vision_config), Gemma3MultiModalProjector(config)]
    tower = of_whole(config.to_dict())
    assert sum(parameters(tower).values()) == sum(p.numel() for module in theirs for p in module.parameters())


def test_flops_of_gemma_are_those_that_torch_counts() -> None:
    config = gemma(**SMALL_GEMMA)
    config.vision_config._attn_implementation = "eager"
    model, projector = SiglipVisionModel(config.vision_config), Gemma3MultiModalProjector(config)
    tower = of_whole(config.to_dict())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = projector(model(torch.zeros(1, 3, 64, 64)).last_hidden_state)
    patches = tower.patches(1, 1)  # every image is scaled
    assert out.shape[1:] == (tokens(tower, patches), tower.output)
    assert forward_flops(tower, patches) == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("fields", [SMALL, LARGEST])
@pytest.mark.parametrize(("config_of", "model_of"), KINDS)
def test_parameters_are_those_of_transformers(fields: dict[str, Any], config_of: Any, model_of: Any) -> None:
    config = config_of(**fields)
    with torch.device("meta"):
        theirs = model_of(config)
    counts = parameters(read(config))
    assert sum(counts.values()) == sum(parameter.numel() for parameter in theirs.parameters())
    assert counts["layers"] == sum(parameter.numel() for parameter in theirs.blocks.parameters())
    assert counts["deepstack"] == sum(parameter.numel() for parameter in theirs.deepstack_merger_list.parameters())


@pytest.mark.parametrize("grid", [(8, 12), (16, 16)])
def test_flops_are_those_that_torch_counts(grid: tuple[int, int]) -> None:
    config = Qwen3VLMoeVisionConfig(**SMALL)
    config._attn_implementation = "eager"
    model = Qwen3VLMoeVisionModel(config)
    tower = read(config)
    patches = grid[0] * grid[1]
    values = torch.zeros(patches, tower.channels * tower.frames * tower.patch**2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = model(values, torch.tensor([[1, *grid]]))
    assert out.pooler_output.shape == (tokens(tower, patches), tower.output)
    assert forward_flops(tower, patches) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_mergers_above_a_frozen_tower_have_both_gradients() -> None:
    """Their norms train, so the products after them give a gradient of their inputs, too."""
    config = Qwen3VLVisionConfig(**SMALL)
    config._attn_implementation = "eager"
    model, tower = Qwen3VLVisionModel(config), read(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("merger" in name)
    values = torch.zeros(64, tower.channels * tower.frames * tower.patch**2)
    out = model(values, torch.tensor([[1, 8, 8]]))
    with FlopCounterMode(display=False) as counter:
        sum((part.sum() for part in out.deepstack_features), out.pooler_output.sum()).backward()
    block, runs = tower.hidden * tower.merge**2, 1 + tower.deepstack
    products = 2 * runs * tokens(tower, 64) * block * (block + tower.output)
    assert counter.get_total_flops() == 2 * products


@pytest.mark.parametrize("name", ["qwen3-vl-8b", "qwen3-vl-30b-a3b", "qwen3-vl-235b-a22b"])
def test_catalogued_models_are_as_large_as_those_of_transformers(name: str) -> None:
    config = yaml.safe_load((CATALOGUE / "models" / f"{name}.yaml").read_text())["config"]
    routed = config["model_type"] == "qwen3_vl_moe"
    of: Any = Qwen3VLMoeForConditionalGeneration if routed else Qwen3VLForConditionalGeneration
    with torch.device("meta"):
        theirs = of(of.config_class(**config))
    assert total_parameters(load_model(name)[0]) == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize("size", [(1024, 1024), (1072, 1055), (3024, 4032), (40, 30), (9000, 4000), (31, 6000)])
@pytest.mark.parametrize("name", ["qwen2-vl-7b", "qwen2.5-vl-7b", "qwen3-vl-8b", "qwen3.5-4b"])
def test_an_image_is_scaled_as_by_the_processor_of_transformers(name: str, size: tuple[int, int]) -> None:
    tower = load_model(name)[0].tower
    assert tower is not None
    assert min(tower.least_pixels, tower.most_pixels) > 0
    theirs = smart_resize(*size, factor=tower.patch * tower.merge, min_pixels=tower.least_pixels,
                          max_pixels=tower.most_pixels)  # fmt: skip
    assert tower.resized(*size) == theirs == tower.resized(*theirs)
    assert tower.patches(*size) == theirs[0] * theirs[1] // tower.patch**2


# Of get_best_fit and get_optimal_tiled_canvas of transformers 5.24 (they need torchvision), with a small copy.
@pytest.mark.parametrize(
    ("size", "llama4", "internvl"),
    [((336, 336), 1, 1), ((1024, 1024), 17, 10), ((768, 1024), 13, 13), ((200, 300), 1, 7), ((2000, 500), 13, 5),
     ((448, 448), 5, 1), ((3024, 4032), 13, 13)],
)  # fmt: skip
def test_an_image_is_cut_to_crops_as_by_the_processor(size: tuple[int, int], llama4: int, internvl: int) -> None:
    towers = [load_model(name)[0].tower for name in ("llama-4-scout", "internvl3-38b", "gemma-3-12b")]
    assert [tower.crops_of(*size) for tower in towers if tower is not None] == [llama4, internvl, 1]


def test_images_become_as_many_tokens_as_published() -> None:
    """11,844 of a photo of 4032 x 3024 pixels with Qwen3.5 (huggingface/transformers, issue 45753)."""
    tower = load_model("qwen3.5-4b")[0].tower
    assert tower is not None
    assert tokens(tower, tower.patches(3024, 4032)) == 11_844


@pytest.mark.parametrize("name", ["qwen3.5-35b-a3b", "qwen3.5-397b-a17b", "gemma-3-12b", "gemma-3-27b"])
def test_other_catalogued_models_are_as_large_as_those_of_transformers(name: str) -> None:
    """Which have no modules that predict further tokens."""
    config = yaml.safe_load((CATALOGUE / "models" / f"{name}.yaml").read_text())["config"]
    routed = config["model_type"] == "qwen3_5_moe"
    of: Any = Qwen3_5MoeForConditionalGeneration if routed else Gemma3ForConditionalGeneration
    with torch.device("meta"):
        theirs = of(of.config_class(**config))
    spec = replace(load_model(name)[0], mtp_layers=0)
    assert total_parameters(spec) == sum(parameter.numel() for parameter in theirs.parameters())


def test_a_tower_without_taps_is_that_of_transformers() -> None:
    """Qwen3.5: parameters, and FLOPs as torch counts them."""
    config = Qwen3_5MoeVisionConfig(**{name: value for name, value in SMALL.items() if "deepstack" not in name})
    config._attn_implementation = "eager"
    model = Qwen3_5MoeVisionModel(config)
    tower = of_whole({"model_type": "qwen3_5_moe", "vision_config": config.to_dict()})
    assert (tower.taps, tower.rope_sections) == ((), (11, 11, 10))
    assert sum(parameters(tower).values()) == sum(parameter.numel() for parameter in model.parameters())
    values = torch.zeros(96, tower.channels * tower.frames * tower.patch**2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(values, torch.tensor([[1, 8, 12]]))
    assert forward_flops(tower, 96) == pytest.approx(counter.get_total_flops(), rel=0.01)


SMALL_LLAMA = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 64, "patch_size": 8,
               "intermediate_size": 192, "projector_input_dim": 40, "projector_output_dim": 40,
               "vision_output_dim": 40}  # fmt: skip
PUBLISHED_LLAMA = {"hidden_size": 1408, "num_hidden_layers": 34, "num_attention_heads": 16, "image_size": 336,
                   "patch_size": 14, "intermediate_size": 5632, "vision_output_dim": 4096}  # fmt: skip


projector_of: Any = Llama4MultiModalProjector


def llama4(**fields: Any) -> Any:
    return Llama4Config(vision_config=Llama4VisionConfig(**fields), text_config=Llama4TextConfig(hidden_size=80))


@pytest.mark.parametrize("fields", [SMALL_LLAMA, PUBLISHED_LLAMA])
def test_parameters_of_llama_4_are_those_of_transformers(fields: dict[str, Any]) -> None:
    config = llama4(**fields)
    with torch.device("meta"):
        theirs = [Llama4VisionModel(config.vision_config), projector_of(config)]
    tower = of_whole(config.to_dict())
    assert sum(parameters(tower).values()) == sum(p.numel() for module in theirs for p in module.parameters())


def test_flops_of_llama_4_are_those_that_torch_counts() -> None:
    config = llama4(**SMALL_LLAMA)
    config.vision_config._attn_implementation = "eager"
    model, projector = Llama4VisionModel(config.vision_config), projector_of(config)
    tower = of_whole(config.to_dict())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = projector(model(torch.zeros(1, 3, 64, 64)).last_hidden_state)
    patches = tower.patches(1, 1)  # every tile has one size
    assert out.shape[1:] == (tokens(tower, patches), tower.output)
    assert forward_flops(tower, patches) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_an_adapter_takes_what_its_layers_give() -> None:
    with pytest.raises(InputError, match="are not the intermediate_size 200"):
        of_whole(llama4(**{**SMALL_LLAMA, "intermediate_size": 200}).to_dict())


SMALL_WINDOWS: dict[str, Any] = {
    "depth": 4, "hidden_size": 48, "out_hidden_size": 80, "intermediate_size": 112, "num_heads": 4, "patch_size": 8,
    "window_size": 64, "fullatt_block_indexes": [1, 3],
}  # fmt: skip
SMALL_QWEN2: dict[str, Any] = {"depth": 3, "embed_dim": 48, "hidden_size": 80, "num_heads": 4, "patch_size": 8}


@pytest.mark.parametrize("fields", [SMALL_WINDOWS, {"hidden_size": 1280}])
def test_parameters_of_a_tower_with_windows_are_those_of_transformers(fields: dict[str, Any]) -> None:
    config = Qwen2_5_VLVisionConfig(**fields)
    with torch.device("meta"):
        theirs = Qwen2_5_VisionTransformerPretrainedModel(config)
    tower = of_whole({"model_type": "qwen2_5_vl", "vision_config": config.to_dict()})
    assert sum(parameters(tower).values()) == sum(parameter.numel() for parameter in theirs.parameters())
    assert not tower.sharded


@pytest.mark.parametrize("grid", [(16, 24), (12, 20), (8, 8), (10, 22)])
def test_flops_of_windows_are_those_that_torch_counts(grid: tuple[int, int]) -> None:
    """Whole windows of 8 x 8 patches, and those at the edges."""
    config = Qwen2_5_VLVisionConfig(**SMALL_WINDOWS)
    config._attn_implementation = "eager"
    model = Qwen2_5_VisionTransformerPretrainedModel(config)
    tower = of_whole({"model_type": "qwen2_5_vl", "vision_config": config.to_dict()})
    patches = grid[0] * grid[1]
    values = torch.zeros(patches, tower.channels * tower.frames * tower.patch**2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(values, torch.tensor([[1, *grid]]))
    pairs = pairs_in_windows(tower, 8 * grid[0], 8 * grid[1])
    assert forward_flops(tower, patches, pairs) == counter.get_total_flops()


@pytest.mark.parametrize("fields", [SMALL_QWEN2, {}])
def test_a_tower_of_rotary_positions_alone_is_that_of_transformers(fields: dict[str, Any]) -> None:
    """Qwen2-VL: parameters, and FLOPs of the small one as torch counts them."""
    config = Qwen2VLVisionConfig(**fields)
    with torch.device("meta"):
        theirs = Qwen2VisionTransformerPretrainedModel(config)
    tower = of_whole({"model_type": "qwen2_vl", "vision_config": config.to_dict()})
    assert sum(parameters(tower).values()) == sum(parameter.numel() for parameter in theirs.parameters())
    if fields:
        config._attn_implementation = "eager"
        model = Qwen2VisionTransformerPretrainedModel(config)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(96, 3 * 2 * 64), torch.tensor([[1, 8, 12]]))
        assert forward_flops(tower, 96) == counter.get_total_flops()


def test_a_projector_of_single_patches_is_that_of_transformers() -> None:
    """PaliGemma: parameters and FLOPs of SigLIP with one product behind it."""
    sizes: dict[str, Any] = {**SMALL_GEMMA, "vision_use_head": False, "projection_dim": 80}
    config: Any = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(**sizes).to_dict(),
        text_config={"model_type": "gemma", "hidden_size": 80}, projection_dim=80, hidden_size=80)  # fmt: skip
    config.vision_config._attn_implementation = "eager"
    model, projector = SiglipVisionModel(config.vision_config), PaliGemmaMultiModalProjector(config)
    tower = of_whole(config.to_dict())
    assert sum(parameters(tower).values()) == sum(p.numel() for m in (model, projector) for p in m.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = projector(model(torch.zeros(1, 3, 64, 64)).last_hidden_state)
    patches = tower.patches(1, 1)
    assert out.shape[1:] == (tokens(tower, patches), tower.output)
    assert forward_flops(tower, patches) == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize(("name", "of"), [
    ("qwen2.5-vl-7b", Qwen2_5_VLForConditionalGeneration), ("qwen2.5-vl-72b", Qwen2_5_VLForConditionalGeneration),
    ("qwen2.5-vl-3b", Qwen2_5_VLForConditionalGeneration), ("paligemma-3b-224", PaliGemmaForConditionalGeneration),
    ("internvl3-38b", InternVLForConditionalGeneration),
])  # fmt: skip
def test_catalogued_models_of_other_towers_are_as_large_as_those_of_transformers(name: str, of: Any) -> None:
    config = yaml.safe_load((CATALOGUE / "models" / f"{name}.yaml").read_text())["config"]
    with torch.device("meta"):
        theirs = of(of.config_class(**config))
    assert total_parameters(load_model(name)[0]) == sum(parameter.numel() for parameter in theirs.parameters())


def test_windows_hold_a_token() -> None:
    fields = {**SMALL_WINDOWS, "window_size": 12}
    with pytest.raises(InputError, match="12 pixels are less than the 16 of a token"):
        of_whole({"model_type": "qwen2_5_vl", "vision_config": fields})


SMALL_VIT: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                             "intermediate_size": 112}  # fmt: skip
# OpenGVLab/InternVL3-1B-hf (300M) and InternViT-6B-448px-V1-5.
OF_300M = {"attention_bias": True}
OF_6B = {"hidden_size": 3200, "num_hidden_layers": 45, "num_attention_heads": 25, "intermediate_size": 12800,
         "use_qk_norm": True, "norm_type": "rms_norm"}  # fmt: skip


def internvl(**fields: Any) -> Any:
    side = {"image_size": [448, 448], "patch_size": [14, 14]}
    return InternVLConfig(vision_config=InternVLVisionConfig(**{**side, **fields}),
                          text_config={"model_type": "qwen2", "hidden_size": 896})  # fmt: skip


@pytest.mark.parametrize(("fields", "billions"), [(OF_300M, 0.3), (OF_6B, 5.5), (SMALL_VIT, 0.0)])
def test_parameters_of_internvl_are_those_of_transformers(fields: dict[str, Any], billions: float) -> None:
    """Their names have the published sizes (arXiv:2312.14238, arXiv:2404.16821)."""
    config = internvl(**fields)
    with torch.device("meta"):
        tower, projector = InternVLVisionModel(config.vision_config), InternVLMultiModalProjector(config)
    counts = parameters(of_whole(config.to_dict()))
    assert counts["merger"] == sum(p.numel() for p in projector.parameters())
    of_tower = sum(counts.values()) - counts["merger"]
    assert of_tower == sum(p.numel() for name, p in tower.named_parameters() if "mask_token" not in name)
    assert round(of_tower / 1e9, 1) == billions


def test_flops_of_internvl_are_those_that_torch_counts() -> None:
    config = internvl(**SMALL_VIT, image_size=[64, 64], patch_size=[8, 8])
    config.vision_config._attn_implementation = "eager"
    model, projector = InternVLVisionModel(config.vision_config), InternVLMultiModalProjector(config)
    tower = of_whole(config.to_dict())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        hidden = model(torch.zeros(1, 3, 64, 64)).last_hidden_state[:, 1:]
        out = projector(hidden.reshape(1, -1, 4 * 48))
    patches = tower.patches(1, 1)
    assert out.shape[1:] == (tokens(tower, patches), tower.output)
    assert forward_flops(tower, patches) == pytest.approx(counter.get_total_flops(), rel=0.01)


def clip(config: CLIPVisionConfig, **fields: Any) -> VisionTower:
    return of_whole({"model_type": "clip", "vision_config": config.to_dict(), **fields})


@pytest.mark.parametrize("fields", [SMALL_VIT, {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                                                "intermediate_size": 4096, "image_size": 336, "patch_size": 14}])
def test_parameters_of_clip_are_those_of_transformers(fields: dict[str, Any]) -> None:
    """openai/clip-vit-large-patch14-336 without the norm behind the layers, which concerns the class token alone."""
    config = CLIPVisionConfig(**{"image_size": 64, "patch_size": 8, **fields})
    with torch.device("meta"):
        model = CLIPVisionModel(config)
    counts = parameters(clip(config, projector_norm="none", projector_bias=False, projector_size=14336))
    assert counts["merger"] == 14336 * (config.hidden_size + 4096)
    theirs = sum(p.numel() for name, p in model.named_parameters() if "post_layernorm" not in name)
    assert sum(counts.values()) - counts["merger"] == theirs


def test_flops_of_clip_are_those_that_torch_counts() -> None:
    config = CLIPVisionConfig(**SMALL_VIT, image_size=64, patch_size=8)
    config._attn_implementation = "eager"
    tower = clip(config, projector_norm="none", projector_size=96, output_size=80)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        CLIPVisionModel(config)(torch.zeros(1, 3, 64, 64))
    of_projector = 2 * 64 * 96 * (48 + 80)
    assert forward_flops(tower, 64) == pytest.approx(counter.get_total_flops() + of_projector, rel=0.01)


@pytest.mark.parametrize(("fields", "text"), [
    ({"downsample_ratio": 0.3}, "no whole number of patches"),
    ({"projector_norm": "batch"}, "is none of none, rms, layer"),
    ({"vision_config": {"image_size": 450}}, "no multiple of the 14"),
    ({"vision_config": {"image_size": 434}}, "31 patches of a side are no multiple of the 2"),
])  # fmt: skip
def test_bad_fields_of_internvl_are_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        of_whole({"model_type": "internvl", "vision_config": {}, **fields})
