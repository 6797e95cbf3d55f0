"""The tower of Phi-4-multimodal against transformers: parameters, FLOPs, tokens of an image, and what is idle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.quantities.stages import EMBEDDING
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.quantities.vision import image_flops, image_tokens, parameters
from meshwright.cost_models.specs.vision import VisionTower
from meshwright.cost_models.specs.workload import Images, Workload
from meshwright.profiles.io.folders import CATALOGUE
from meshwright.profiles.model.fields import Fields
from meshwright.profiles.model.load import load_model
from meshwright.profiles.model.vision import read_tower
from meshwright.profiles.stack.load import load_stack
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.phi4_multimodal.configuration_phi4_multimodal import Phi4MultimodalConfig
from transformers.models.phi4_multimodal.modeling_phi4_multimodal import (
    Phi4MultimodalForCausalLM,
    Phi4MultimodalImageEmbedding,
)

from meshwright.errors import InputError

from .kept_bytes import KeptBytes

SMALL = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 112,
         "image_size": 64, "crop_size": 64, "patch_size": 8}  # fmt: skip


def whole(**fields: Any) -> dict[str, Any]:
    return {"model_type": "phi4_multimodal", "hidden_size": 80, "vision_config": {**SMALL, **fields}}


def read(config: dict[str, Any]) -> VisionTower:
    fields = Fields(config)
    tower = read_tower(fields)
    fields.finish()
    assert tower is not None
    return tower


def theirs(config: dict[str, Any]) -> Any:
    sizes: Any = Phi4MultimodalConfig(hidden_size=config["hidden_size"], vision_config=config["vision_config"])
    sizes.vision_config._attn_implementation = "eager"
    return Phi4MultimodalImageEmbedding(sizes)


def masks(height: int, width: int, side: int = 64, patch: int = 8) -> torch.Tensor:
    """[tiles and the small copy, patches, patches]: as the image processor marks the patches that show the image."""
    rows, columns = -(-height // side), -(-width // side)
    scale = min(rows * side / height, columns * side / width)
    shown = torch.zeros(rows * side // patch, columns * side // patch)
    empty = (rows * side - int(height * scale)) // patch, (columns * side - int(width * scale)) // patch
    shown[: shown.shape[0] - empty[0], : shown.shape[1] - empty[1]] = 1
    n = side // patch
    tiles = shown.reshape(rows, n, columns, n).transpose(1, 2).reshape(-1, n, n)
    return torch.cat([torch.ones(1, n, n), tiles])


@pytest.mark.parametrize("used", [-1, -2, -3])
def test_parameters_are_those_of_transformers(used: int) -> None:
    config = whole(feature_layer=used)
    model = theirs(config)
    counts = parameters(read(config))
    assert sum(counts.values()) == sum(parameter.numel() for parameter in model.parameters())
    beside = sum(p.numel() for name, p in model.named_parameters() if "img_processor" not in name)
    assert counts["merger"] == beside


# A tile, two with nothing empty, and three with 8 and with 24 empty pixels beside or below the image.
@pytest.mark.parametrize("size", [(64, 64), (64, 128), (120, 190), (70, 180)])
def test_flops_and_tokens_of_an_image_are_those_of_transformers(size: tuple[int, int]) -> None:
    config = whole()
    model, tower, shown = theirs(config), read(config), masks(*size)
    rows, columns = tower.grid(*size)
    tokens = image_tokens(tower, *size)
    ids = torch.full((1, tokens), model.config.vision_config.image_token_id)
    model.train()  # without the fast path of attention pooling, which torch takes for inference alone
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids, torch.zeros(1, tokens, 80), torch.zeros(1, len(shown), 3, 64, 64),
              torch.tensor([[64 * rows, 64 * columns]]), shown[None])  # fmt: skip
    assert len(shown) * 64 == tower.patches(*size)
    assert image_flops(tower, *size) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_tokens_of_published_sizes() -> None:
    """By hand: 256 tokens of a tile, a row behind each of its 16 lines, and one before the 272 of the small copy."""
    tower = load_model("phi-4-multimodal")[0].tower
    assert tower is not None
    assert image_tokens(tower, 448, 448) == 272 + 1 + 272
    assert image_tokens(tower, 1344, 896) == 48 * 33 + 1 + 272
    # 1024 x 768 become 1194 x 896 pixels in 3 x 2 tiles, of which 150 are below: 10 patches of 96, so 43 of 48 lines.
    assert image_tokens(tower, 1024, 768) == 43 * 33 + 1 + 272
    assert tower.patches(1024, 768) == 7 * 1024


def test_idle_parts_have_no_gradients() -> None:
    config = whole()
    model, tower, shown = theirs(config), read(config), masks(64, 64)
    tokens = image_tokens(tower, 64, 64)
    out = model(torch.full((1, tokens), 200010), torch.zeros(1, tokens, 80), torch.randn(1, 2, 3, 64, 64),
                torch.tensor([[64, 64]]), shown[None])  # fmt: skip
    out.sum().backward()
    idle = sum(parameter.numel() for parameter in model.parameters() if parameter.grad is None)
    assert parameters(tower)["idle"] == idle > 0


def test_a_plan_counts_idle_parts_without_gradients() -> None:
    spec, images = load_model("phi-4-multimodal")[0], Images(per_sequence=2, height=1024, width=768)
    assert spec.tower is not None
    every = parameters(spec.tower)
    of, frozen = (Problem(spec, Workload(seq_len=8192, global_batch=8, images=images, freeze_tower=freezes),
                          load_stack("generic"), 8, 8) for freezes in (False, True))  # fmt: skip
    whole_tower = of.tower_parameters
    assert whole_tower is not None
    assert whole_tower.replicated == sum(every.values())  # tensor parallelism does not split it
    assert whole_tower.trained_replicated == sum(every.values()) - every["idle"]
    forward, backward = of.flops[:, EMBEDDING]
    assert forward == pytest.approx(2 * image_flops(spec.tower, 1024, 768), rel=1e-12)
    # 26 of 27 layers and the projector have gradients, the pixels have none.
    n, h, f = 7 * 1024, 1152, 4304
    layers = 26 * n * (2.0 * (4 * h * h + 2 * h * f) + 4 * 1024 * h)
    projector = 2.0 * (43 * 33 + 273) * (h + 3072) * 3072
    assert backward == pytest.approx(2 * (2 * layers + 2 * projector + 2.0 * n * h * 3 * 14 * 14), rel=1e-12)
    assert frozen.flops[1, EMBEDDING] == pytest.approx(2 * 2 * projector, rel=1e-12)


@pytest.mark.parametrize("trains", [True, False])
def test_saved_bytes_of_the_projector_are_those_that_torch_keeps(trains: bool) -> None:
    """The modules of transformers in bf16 on an image of one tile and its small copy, of the published sizes."""
    config = {"hidden_size": 3072, "vision_config": {"num_hidden_layers": 1, "feature_layer": -1}}
    model, kept_of = theirs(config).bfloat16(), Images(per_sequence=1, height=448, width=448)
    kept = KeptBytes(model)
    x = torch.randn(2, 32, 32, 1152, dtype=torch.bfloat16, requires_grad=trains)
    with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
        small = model.image_token_compression(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        ends = model.sub_img_feature_extensor.repeat(2, 16, 1, 1)
        lines = torch.cat([small, ends], dim=2).reshape(2, -1, 1152)
        rows = torch.cat([lines[:1], model.global_img_feature_extensor, lines[1:]], dim=1)
        model.img_projection_down(torch.nn.functional.gelu(model.img_projection_up(rows)))
    work = Workload(seq_len=4096, global_batch=8, images=kept_of, freeze_tower=not trains)
    of = Problem(load_model("phi-4-multimodal")[0], work, load_stack("generic"), 8, 8)
    operations = build(of, index_keys(Layouts.of([Layout(dp=8)]))[0]).operations[EMBEDDING]
    saved = sum(float(part.num_bytes[0]) for part in operations.saved if part.name == "projector")
    assert saved == pytest.approx(kept.num_bytes, rel=0.01)


def test_the_catalogued_model_is_as_large_as_that_of_transformers() -> None:
    """Without its encoder of sound, which a warning names."""
    config = yaml.safe_load((CATALOGUE / "models" / "phi-4-multimodal.yaml").read_text())["config"]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    sizes = {name: value for name, value in config.items() if not name.startswith("rope_")}
    with torch.device("meta"):
        model = Phi4MultimodalForCausalLM(Phi4MultimodalConfig(**sizes, rope_parameters=rope))
    model.tie_weights()
    spec, warnings = load_model("phi-4-multimodal")
    sound = sum(p.numel() for name, p in model.named_parameters() if "audio_embed" in name)
    assert total_parameters(spec) == sum(p.numel() for p in model.parameters()) - sound
    assert any("audio_config" in warning for warning in warnings)


@pytest.mark.parametrize(("fields", "text"), [
    ({"feature_layer": 0}, "must be -4 to -1, counted from the last layer, is 0"),
    ({"feature_layer": "last"}, "is 'last'"),
    ({"image_size": 72, "crop_size": 72}, "72 pixels are not an even number of patches of 8"),
    ({"crop_size": 128}, "must be the 64 pixels of image_size"),
])  # fmt: skip
def test_bad_fields_are_named(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        read(whole(**fields))
