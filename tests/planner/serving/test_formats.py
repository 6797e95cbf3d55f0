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
def test_a_checkpoint_without_a_cache_format_leaves_16_bits(weights: str, cache: str) -> None:
    model = load_model("llama-3.1-70b")[0]
    assert cache_format(model, weights, "auto") == cache
    assert cache_format(model, weights, "fp8") == "fp8"
