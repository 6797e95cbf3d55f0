"""Unknown parts of a config: parts of networks that no formula covers, and fields that no family reads.

A config whose model_type is unknown is refused with what is found of these in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .families import FAMILIES
from .fields import Fields
from .numerics import with_numerics
from .unmodelled import unmodelled

# Part -> fields that only a config with this part has, set to something.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "shared attention blocks": ("num_mem_blocks", "use_shared_attention_adapter"),
    "sparse attention of blocks": ("sparse_attention_config",),
    "projected experts": ("routed_expert_hidden_size",),
}  # fmt: skip
# Fields of any config that say nothing of its network.
_NO_PART = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "decoder_start_token_id", "dtype", "eos_token_id",
    "initializer_range", "is_decoder", "is_encoder_decoder", "model_type", "output_router_logits", "pad_token_id",
    "pretraining_tp", "quantization_config", "tokenizer_class", "torch_dtype", "transformers_version", "use_cache",
}  # fmt: skip
_SHOWN = 6  # fields in a message


def not_understood(config: Mapping[str, Any]) -> str:
    """The end of a sentence on a config of an unknown family, or nothing."""
    if parts := parts_without_formula(config):
        return f": there is no formula for its {', '.join(parts)}"
    if not (unread := fields_of_no_family(config)):
        return ""
    more = f" and {len(unread) - _SHOWN} more" if len(unread) > _SHOWN else ""
    fields = "`, `".join(unread[:_SHOWN])
    return f": no known family reads its field{'s' * (len(unread) > 1)} `{fields}`{more}"


def fields_of_no_family(config: Mapping[str, Any]) -> list[str]:
    """The fields of `config` that are set and that no family reads out of it, in its order."""
    read: set[str] = set()
    for family, make in FAMILIES.items():
        fields = Fields(config)
        spec = with_numerics(fields, family, make(fields))
        unmodelled(fields, spec.family)
        read |= fields.read
    return [name for name, value in config.items() if value and name not in read | _NO_PART]


def parts_without_formula(config: Mapping[str, Any]) -> list[str]:
    """The parts that the fields of `config` describe, each with these fields."""
    parts = {part: [name for name in names if config.get(name)] for part, names in _FIELDS.items()}
    return [f"{part} (`{'`, `'.join(names)}`)" for part, names in parts.items() if names]
