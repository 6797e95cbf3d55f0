"""Parts of networks that no formula covers, by the fields of config.json that describe them.

A config whose model_type is unknown is refused with the parts that are found in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Part -> fields that only a config with this part has, set to something.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "shared attention blocks": ("num_mem_blocks", "use_shared_attention_adapter"),
    "keys that are values, too": ("attention_k_eq_v",),
    "gates of attention": ("use_head_wise_attn_gate",),
    "sparse attention of blocks": ("sparse_attention_config",),
    "compressed attention": ("compress_rates", "compress_ratios"),
    "several residual streams": ("altup_num_inputs", "hc_mult"),
    "embeddings of each layer": ("hidden_size_per_layer_input",),
    "projected experts": ("routed_expert_hidden_size",),
}  # fmt: skip


def parts_without_formula(config: Mapping[str, Any]) -> list[str]:
    """The parts that the fields of `config` describe, each with these fields."""
    found = {part: [name for name in names if config.get(name)] for part, names in _FIELDS.items()}
    return [f"{part} (`{'`, `'.join(names)}`)" for part, names in found.items() if names]
