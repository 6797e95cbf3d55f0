"""Writes the adapters of a checkpoint as a folder that peft loads: adapter_config.json and adapter_model.safetensors.

Several of our weights may be parts of one of their modules (query_key_value), each with an adapter of its own. Their
module then has one adapter of the summed rank: the A's below each other, and a B with a block per part.
Names: LoraConfig and get_peft_model_state_dict of peft 0.21.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...cost_models.specs.model import MixtureOfExperts, ModelSpec
from ...errors import UnsupportedError
from ..model.adapters import Adapters, of_input, of_output
from .huggingface import FAMILIES, sources
from .pretrained import whole_weights
from .sources import Source, put

_OF_EXPERTS = (".gate_proj", ".up_proj", ".down_proj")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Module:
    """A linear module of theirs with an adapter, and our weights that are parts of it."""

    name: str  # model.layers.0.self_attn.q_proj
    parts: tuple[tuple[str, Source], ...]  # ours

    def factors(self, ours: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """A [ranks, in] and B [out, ranks] of the module, from those of ours by name."""
        inputs = torch.cat([ours[of_input(weight)] for weight, _ in self.parts])
        columns = [_placed(source, ours[of_output(weight)]) for weight, source in self.parts]
        return inputs, torch.cat(columns, dim=1)


def modules(model: ModelSpec, adapters: Adapters) -> list[Module]:
    """Their modules with adapters, in the order of the layers."""
    weights = whole_weights(model, adapters)
    parts: dict[str, list[tuple[str, Source]]] = {}
    for weight, source in sources(model).items():
        if of_input(weight) in weights:
            parts.setdefault(source.name.removesuffix(".weight"), []).append((weight, source))
    return [Module(name, tuple(each)) for name, each in parts.items()]


def check_readable(model: ModelSpec, every: Sequence[Module]) -> None:
    """Raises UnsupportedError for modules that peft 0.21 takes for routed experts.

    In models with experts it turns each target that ends in gate_proj, up_proj or down_proj into the experts' joined
    parameters (its function _convert_peft_config_moe).
    """
    experts = any(isinstance(kind.feed_forward, MixtureOfExperts) and kind.feed_forward.gated for kind in model.kinds)
    taken = [each.name for each in every if each.name.endswith(_OF_EXPERTS)]
    if experts and taken:
        raise UnsupportedError(f"peft takes the adapter of {taken[0]} for one of routed experts",
                               hint="`--merge` writes the weights with the adapters merged")  # fmt: skip


def _placed(source: Source, outputs: Tensor) -> Tensor:
    """B [our out, r] -> [their out, r], zero for the outputs of other parts."""
    theirs = torch.zeros(source.whole(tuple(outputs.shape)))
    put(source, outputs, theirs)
    return theirs.t() if source.inputs_first else theirs


def adapter_tensors(every: Sequence[Module], ours: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """All tensors of adapter_model.safetensors by name. ours: A and B of our weights by their names."""
    out = {}
    for each in every:
        for letter, factor in zip("AB", each.factors(ours), strict=True):
            out[f"base_model.model.{each.name}.lora_{letter}.weight"] = factor.to(dtype).contiguous()
    return out


def adapter_config(model: ModelSpec, adapters: Adapters, base: str) -> str:
    """The text of adapter_config.json. base: the folder of the frozen weights."""
    every, prefix = modules(model, adapters), FAMILIES[model.family].layers
    # The rest of a name after the layer's number. `peft` adapts every module that ends in one of these.
    ranks = {each.name.removeprefix(f"{prefix}.").partition(".")[2]: adapters.rank * len(each.parts) for each in every}
    joined = {name: rank for name, rank in ranks.items() if rank != adapters.rank}
    config: dict[str, Any] = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "inference_mode": True,
        "r": adapters.rank, "lora_alpha": adapters.scale * adapters.rank, "lora_dropout": 0.0, "bias": "none",
        "target_modules": sorted(ranks), "rank_pattern": joined,
        "alpha_pattern": {name: adapters.scale * rank for name, rank in joined.items()},
        "fan_in_fan_out": any(source.inputs_first for each in every for _, source in each.parts),
    }  # fmt: skip
    return json.dumps(config, indent=2) + "\n"
