"""Number formats of weights and caches: bytes with scales, and the format that a checkpoint leaves to the engine."""

from __future__ import annotations

import pytest
from meshwright.planner.serving.formats import BYTES, cache_format
from meshwright.profiles.model.load import load_model


@pytest.mark.parametrize(
    ("name", "block", "bits"),
    [("nvfp4", 16, 8), ("mxfp4", 32, 8), ("int4", 128, 16 + 4)],  # scales; int4 with a zero point of 4 bits
)
def test_formats_of_four_bits_have_scales(name: str, block: int, bits: int) -> None:
    assert BYTES[name] == (4 + bits / block) / 8


@pytest.mark.parametrize(
    ("weights", "cache"),
    [("bf16", "bf16"), ("fp8", "fp8"), ("nvfp4", "fp8"), ("mxfp4", "bf16"), ("int4", "bf16"), ("int8", "bf16")],
)
def test_a_cache_is_as_the_checkpoint_states(weights: str, cache: str) -> None:
    model = load_model("llama-3.1-70b")[0]
    assert cache_format(model, weights, "auto") == cache
    assert cache_format(model, weights, "fp8") == "fp8"


@pytest.mark.parametrize(
    ("name", "weights", "cache"),
    [("deepseek-v3", "fp8", "bf16"), ("minimax-m2.5", "fp8", "bf16"), ("deepseek-v3", "nvfp4", "fp8"),
     ("llama-3.1-70b", "fp8_block", "bf16"), ("gpt-oss-120b", "mxfp4", "bf16")],
)  # fmt: skip
def test_makers_state_no_format_of_the_cache(name: str, weights: str, cache: str) -> None:
    """config.json of deepseek-ai/DeepSeek-V3 and MiniMaxAI/MiniMax-M2.5: quantization_config without kv_cache_scheme;
    hf_quant_config.json of nvidia/DeepSeek-R1-FP4: kv_cache_quant_algo FP8."""
    assert cache_format(load_model(name)[0], weights, "auto") == cache
