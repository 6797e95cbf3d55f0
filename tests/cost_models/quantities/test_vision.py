"""Vision towers against transformers: parameters on the meta device, FLOPs as torch counts them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from meshwright.cost_models.quantities.vision import forward_flops, parameters, tokens
from meshwright.profiles.model.vision import read_tower
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeVisionConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeVisionModel

SMALL: dict[str, Any] = {
    "depth": 3, "hidden_size": 48, "intermediate_size": 112, "num_heads": 4, "out_hidden_size": 80, "patch_size": 8,
    "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2],
}  # fmt: skip
LARGEST: dict[str, Any] = {"out_hidden_size": 4096}  # all other fields have their defaults
KINDS = [(Qwen3VLVisionConfig, Qwen3VLVisionModel), (Qwen3VLMoeVisionConfig, Qwen3VLMoeVisionModel)]


def read(config: Any) -> Any:
    tower = read_tower({"vision_config": config.to_dict()})
    assert tower is not None
    return tower


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


def test_an_image_is_cut_off_to_whole_tokens() -> None:
    tower = read(Qwen3VLMoeVisionConfig(**LARGEST))
    assert tower.patches(1024, 1024) == 64 * 64
    assert tower.patches(1055, 1024) == 64 * 64
    assert tokens(tower, tower.patches(1024, 768)) == 32 * 24
