"""The number format that a config.json of a user states for its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.profiles.model.load import quantized_in


@pytest.mark.parametrize(("stated", "weights"), [
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"), ({"quant_method": "awq", "bits": 4}, "int4"),
    ({"quant_method": "gptq", "bits": 8}, None), ({"quant_method": "other"}, None), (None, None),
])  # fmt: skip
def test_a_config_states_the_format_of_its_weights(stated: Any, weights: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": stated}))
    assert quantized_in(tmp_path) == quantized_in(str(tmp_path / "config.json")) == weights
    assert quantized_in("llama-3-8b") is None
