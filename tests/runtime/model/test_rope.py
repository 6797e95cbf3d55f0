"""Rotary positions: scaled as transformers scales them, by its functions and by numbers worked out here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.rope_scaling import RopeScaling
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.model.load import load_model
from meshwright.runtime.model.rope import Rotation, frequencies, rotate, rotated_width

from ..jobs import deepseek, llama

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "default", "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
    {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
     "original_max_position_embeddings": 8192},  # Llama 4 Scout
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {"rope_type": "yarn", "factor": 32.0, "beta_fast": 1.0, "original_max_position_embeddings": 4096},  # Kimi K2
    {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_slow": 2.0,
     "original_max_position_embeddings": 4096},
    {"rope_type": "yarn", "factor": 40.0, "attention_factor": 1.5, "original_max_position_embeddings": 4096},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("said", SCALINGS, ids=lambda said: "-".join(map(str, said.values())))
def test_frequencies_are_those_of_transformers(said: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=1024, num_attention_heads=8, num_hidden_layers=2, max_position_embeddings=131072, vocab_size=64,
        rope_parameters={"rope_theta": 500_000.0, **said},
    )  # fmt: skip
    spec, _ = read_config(config.to_dict(), "m")
    width = rotated_width(spec, spec.kinds[0].transformer_blocks[0])
    amplitude = spec.rope_scaling.amplitude if spec.rope_scaling else 1.0
    if said["rope_type"] == "default":
        theirs, theirs_amplitude = 500_000.0 ** -(torch.arange(0, width, 2) / width), 1.0
        assert width == 128 * said.get("partial_rotary_factor", 1.0)
    else:
        theirs, theirs_amplitude = ROPE_INIT_FUNCTIONS[said["rope_type"]](config, "cpu")
    ours = frequencies(Rotation.of(spec, spec.kinds[0].transformer_blocks[0]))
    torch.testing.assert_close(ours, theirs.double(), rtol=2e-6, atol=0)
    assert amplitude == pytest.approx(theirs_amplitude)


def test_llama_3_1_by_hand() -> None:
    """A frequency keeps its value above 4 turns in 8192 tokens, is divided by 8 below 1, and is between otherwise."""
    spec, _ = load_model("llama-3.1-8b")
    found = frequencies(Rotation.of(spec, spec.kinds[0].transformer_blocks[0]))
    plain = [500_000.0 ** -(2 * index / 128) for index in range(64)]
    turns = [8192 * each / (2 * math.pi) for each in plain]
    assert (sum(each > 4 for each in turns), sum(each < 1 for each in turns)) == (29, 29)
    assert found[:29].tolist() == pytest.approx(plain[:29])
    assert found[35:].tolist() == pytest.approx([each / 8 for each in plain[35:]])
    share = (turns[31] - 1) / 3
    assert 0 < share < 1
    assert found[31].item() == pytest.approx(plain[31] * (share + (1 - share) / 8))


def test_yarn_of_deepseek_v3_by_hand() -> None:
    """Pairs 0 to 10 turn 32 times or more in 4096 tokens; from pair 23 on none turns once: divided by 40."""
    spec, _ = load_model("deepseek-v3")
    found = frequencies(Rotation.of(spec, spec.kinds[0].transformer_blocks[0]))
    plain = [10_000.0 ** -(2 * index / 64) for index in range(32)]
    assert found[:11].tolist() == pytest.approx(plain[:11])
    assert found[23:].tolist() == pytest.approx([each / 40 for each in plain[23:]])
    assert found[15].item() == pytest.approx(plain[15] * (1 - (15 - 10) / 13 * 39 / 40))
    assert spec.rope_scaling is not None
    assert spec.rope_scaling.amplitude == 1.0
    assert spec.latent_scale == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    assert load_model("deepseek-v2")[0].latent_scale == pytest.approx((0.0707 * math.log(40) + 1) ** 2)


def test_a_part_of_a_head_turns_and_the_rest_stays() -> None:
    phi3 = pytest.importorskip("transformers.models.phi3.modeling_phi3")
    spec = llama(partial_rotary_factor=0.75, rope_theta=10.0)
    width = rotated_width(spec, spec.kinds[0].transformer_blocks[0])
    assert (width, rotated_width(deepseek(), deepseek().kinds[0].transformer_blocks[0])) == (6, 4)
    angles = torch.arange(5).double()[:, None] * frequencies(Rotation.of(spec, spec.kinds[0].transformer_blocks[0]))
    x = torch.randn(2, 5, 4, 8, dtype=torch.float64)
    both = torch.cat([angles, angles], dim=-1)[None]
    theirs, _ = phi3.apply_rotary_pos_emb(x.transpose(1, 2), x.transpose(1, 2), both.cos(), both.sin())
    torch.testing.assert_close(rotate(x, angles.cos(), angles.sin()), theirs.transpose(1, 2))


def test_latent_scale_is_of_yarn_alone() -> None:
    scaling = RopeScaling(kind="llama3", factor=8.0, mscale_all_dim=1.0)
    assert deepseek(rope_scaling=scaling).latent_scale == deepseek(rope_scaling=None).latent_scale == 1.0
