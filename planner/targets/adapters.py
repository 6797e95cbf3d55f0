"""Maps the adapters of a plan to peft's module names in the layers of transformers.

Source: transformers 5.24, models/*/modeling_*.py. Families that fuse several projections in one module (phi3,
gpt_neox, falcon) get other adapters than a plan counts. In latent attention keys and values share a module. Its one
adapter has rank x kv_lora_rank fewer elements than the two that a plan counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Lora
from .options import Facts

# Projection -> its module.
_MODULES = {name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
# The same for latent attention, which compresses queries, keys and values: the up projections.
_LATENT = {**_MODULES, "q": "q_b_proj", "k": "kv_b_proj", "v": "kv_b_proj"}
_FAMILIES = ("llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3", "granite", "olmo2", "qwen2", "qwen2_moe",
             "qwen3", "qwen3_moe", "gpt_oss")  # fmt: skip
_LATENT_FAMILIES = ("deepseek_v2", "deepseek_v3")
LORA = "workload.lora"


def modules(model: ModelSpec, lora: Lora) -> list[str]:
    """The modules that get adapters. Raises KeyError for a family whose modules are not known."""
    if model.family in _FAMILIES:
        named: Mapping[str, str] = _MODULES
    elif model.family in _LATENT_FAMILIES:
        compressed = any(attention.q_lora_rank for attention in model.attentions)
        named = _LATENT if compressed else {**_LATENT, "q": "q_proj"}
    else:
        raise KeyError(model.family)
    return list(dict.fromkeys(named[target] for target in lora.targets))


def cannot_name(model: ModelSpec, lora: Lora | None) -> list[str]:
    """Problems of adapters whose module names are unknown."""
    if lora is None:
        return []
    latent = model.family in _LATENT_FAMILIES
    if latent and ("k" in lora.targets) != ("v" in lora.targets):
        return ["workload.lora: one module (kv_b_proj) makes keys and values, so both get an adapter or neither"]
    known = latent or model.family in _FAMILIES
    return [] if known else [f"workload.lora: the modules of {model.family} that hold these adapters are unknown"]


def targets_of(module: str) -> list[str]:
    """The projections that the adapter of a module stands for, [] for a module that no plan has."""
    return sorted({target for table in (_MODULES, _LATENT) for target, name in table.items() if name == module})


def facts(rank: int, names: Iterable[str], base_dtype: str) -> Facts:
    """The facts of adapters on modules `names`."""
    targets = sorted({target for name in names for target in targets_of(name) or [name]})
    return {LORA: {"rank": rank, "targets": targets, "base_dtype": base_dtype}}
