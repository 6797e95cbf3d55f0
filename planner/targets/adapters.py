"""Maps the adapters of a plan to peft's module names in the layers of transformers.

Source: transformers 5.24, models/*/modeling_*.py. Families that fuse several projections in one module (phi3,
gpt_neox, falcon) get other adapters than a plan counts. In latent attention keys and values share a module. Its one
adapter has rank x kv_lora_rank fewer elements than the two that a plan counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...cost_models.quantities.params import lora_targets
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.workload import Lora
from .options import Facts, NoCounterpartError

# Projection -> its module.
_MODULES = {name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
# The same for latent attention, which compresses queries, keys and values: the up projections.
_LATENT = {**_MODULES, "q": "q_b_proj", "k": "kv_b_proj", "v": "kv_b_proj"}
_FAMILIES = ("llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3", "granite", "olmo2", "qwen2", "qwen2_moe",
             "qwen3", "qwen3_moe", "gpt_oss")  # fmt: skip
_LATENT_FAMILIES = ("deepseek_v2", "deepseek_v3")
# Families whose routed experts get adapters, too, where a list names their parts: peft 0.21 renames these to the fused
# experts (utils/transformers_weight_conversion.py, by the conversions of transformers 5.24).
FUSES_EXPERTS = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "glm4_moe", "glm4_moe_lite",
                 "glm_moe_dsa", "hunyuan_v1_moe", "olmoe", "qwen3_moe", "qwen3_next")  # fmt: skip
OF_FEED_FORWARD = ("gate", "up", "down")
LORA = "workload.lora"
# Module of Megatron-Core, fused or as canonical adapters split it -> its projections.
_CORE = {
    "linear_qkv": ("q", "k", "v"), "linear_proj": ("o",), "linear_fc1": ("gate", "up"), "linear_fc2": ("down",),
    "linear_q": ("q",), "linear_k": ("k",), "linear_v": ("v",), "linear_fc1_gate": ("gate",), "linear_fc1_up": ("up",),
}  # fmt: skip
ALL_OF_CORE = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


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
    if reaches_experts(model, lora.targets):
        return [f"workload.lora: peft adapts the routed experts of {model.family}, too, by gate, up or down"]
    if latent and ("k" in lora.targets) != ("v" in lora.targets):
        return ["workload.lora: one module (kv_b_proj) makes keys and values, so both get an adapter or neither"]
    known = latent or model.family in _FAMILIES
    return [] if known else [f"workload.lora: the modules of {model.family} that hold these adapters are unknown"]


def reaches_experts(model: ModelSpec, targets: Iterable[str]) -> bool:
    """Whether peft also adapts routed experts, which no plan does, where a file lists the modules of `targets`."""
    named = not {*OF_FEED_FORWARD}.isdisjoint(targets)
    return named and model.family in FUSES_EXPERTS and any(kind.is_moe for kind in model.kinds)


def targets_of(module: str) -> list[str]:
    """The projections that the adapter of a module stands for, [] for a module that no plan has."""
    return sorted({target for table in (_MODULES, _LATENT) for target, name in table.items() if name == module})


def facts_of_model(model: ModelSpec) -> Facts:
    """The facts that adapters depend on, of a model that a config names."""
    out: Facts = {"model.hidden": model.hidden, "model.gated_mlp": "gate" in lora_targets(model)}
    out |= {"model.mla": {}} if any(attention.is_mla for attention in model.attentions) else {}
    return out | ({"model.moe": {}} if any(kind.is_moe for kind in model.kinds) else {})


def facts_of_core(rank: int, option: str, names: Iterable[str], known: Facts) -> Facts:
    """The facts of adapters on modules `names` of Megatron-Core, which `option` states. known: facts of the model.

    Raises NoCounterpartError for modules that no plan adapts, and for those that the model lacks.
    """
    listed = list(names)
    if strange := [name for name in listed if name not in _CORE]:
        raise NoCounterpartError(f"{option}: no plan has adapters of {', '.join(strange)}")
    if "model.moe" in known and any("fc" in name for name in listed):
        raise NoCounterpartError(f"{option}: no plan has adapters of routed experts")
    if "model.mla" in known and any(name not in ("linear_proj", "linear_fc1", "linear_fc2") for name in listed):
        raise NoCounterpartError(f"{option}: latent attention has other modules")
    gated = "model.hidden" not in known or known.get("model.gated_mlp", True)  # else of a model that is named
    targets = dict.fromkeys(target for name in listed for target in _CORE[name] if gated or target != "gate")
    fused = [name for name in listed if len(_CORE[name]) > 1]
    note = f"the adapter of {', '.join(fused)} is priced as one of each of its projections"
    notes = {"notes": [*known.get("notes", []), note]} if fused else {}
    return {LORA: {"rank": rank, "targets": list(targets), "base_dtype": "bf16"}, **notes}


def facts(rank: int, names: Iterable[str], base_dtype: str) -> Facts:
    """The facts of adapters on modules `names`."""
    targets = sorted({target for name in names for target in targets_of(name) or [name]})
    return {LORA: {"rank": rank, "targets": targets, "base_dtype": base_dtype}}
