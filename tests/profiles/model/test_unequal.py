"""Layers of unlike widths, as the config of Llama-Nemotron states them."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.cost_models.quantities.params import layer_parameters
from meshwright.profiles.model.huggingface import read_config

from meshwright.errors import InputError

BLOCK: dict[str, Any] = {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.0}}
SIZES: dict[str, Any] = {"model_type": "nemotron-nas", "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 100,
                         "num_hidden_layers": 4, "max_position_embeddings": 256}  # fmt: skip
LACKING = {"no_op": True}


def test_each_layer_has_the_parts_that_its_block_states() -> None:
    """Widths are two thirds of hidden times ffn_mult, rounded up to a multiple of 256; each part has its norm."""
    blocks = [BLOCK, {**BLOCK, "attention": LACKING}, {**BLOCK, "ffn": LACKING}, {"attention": LACKING, "ffn": LACKING}]
    spec, _ = read_config({**SIZES, "block_configs": blocks}, "m")
    attention, forward = 512 * 512 * 2 + 2 * 512 * 128, 3 * 512 * 512  # ceil(341 / 256) * 256 = 512
    layers = [sum(layer_parameters(spec, spec.kinds[kind]).values()) for kind in spec.pattern]

    assert layers == [attention + forward + 2 * 512, forward + 512, attention + 512, 0]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([BLOCK] * 3, "must be a list of 4 layers"),
        ("all", "must be a list of 4 layers"),
        ([BLOCK, {**BLOCK, "attention": {"n_heads_in_group": 3}}, BLOCK, BLOCK], "layer 1: n_heads_in_group must"),
        ([BLOCK, {**BLOCK, "attention": {"n_heads_in_group": "8"}}, BLOCK, BLOCK], "layer 1: n_heads_in_group must"),
        ([BLOCK, BLOCK, {**BLOCK, "ffn": {"ffn_mult": -1}}, BLOCK], "layer 2: ffn_mult must be more than 0, is -1"),
        ([BLOCK, BLOCK, BLOCK, {"attention": BLOCK["attention"]}], "layer 3: `ffn` must be a mapping, is None"),
        ([BLOCK, BLOCK, BLOCK, 7], "layer 3: `attention` must be a mapping, is None"),
        ([{**BLOCK, "attention": {"n_heads_in_group": 4, "replace_with_linear": True}}, BLOCK, BLOCK, BLOCK],
         "layer 0: attention with `replace_with_linear` is not described"),
    ],
)  # fmt: skip
def test_blocks_that_cannot_be(blocks: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_config({**SIZES, "block_configs": blocks}, "m")
    assert message in caught.value.message
