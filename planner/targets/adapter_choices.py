"""Adapters on modules that a file picks without listing them, as the projections of the model.

Sources: peft 0.21, tuners/tuners_utils.py (all-linear: nn.Linear and Conv1D without the output embedding),
utils/constants.py (the modules of a family where none is named) and utils/transformers_weight_conversion.py (all-linear
adapts routers and fused experts, too; a list adapts fused experts where it has the names of their parts). transformers
5.24, models/*/modeling_*.py: which experts are fused. NeMo Automodel 24b47e85, components/_peft/module_matcher.py, and
Megatron-Bridge 067f987d, peft/module_matcher.py: every linear module, the head among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...cost_models.quantities.params import lora_targets
from ...cost_models.specs.model import ModelSpec
from .adapters import FUSES_EXPERTS, LORA, reaches_experts
from .options import Facts, NoCounterpartError

# The fact with the way in which modules are picked, and the option that states it.
CHOSEN = "workload.lora_modules"
# peft picks the linear modules by `all-linear`.
BY_PEFT = "all linear modules"
# The framework lists the names of all linear modules for peft.
BY_NAME = "modules with the name of a linear one"
# The same, without those of towers.
OF_LANGUAGE = "linear modules of the language model"
# ms-swift lists the linear modules of Megatron-Core, those of all experts among them.
OF_CORE = "linear modules of Megatron-Core"
# NeMo Automodel and Megatron-Bridge pick every linear module, that of the head too.
WITH_HEAD = "all linear modules, the head among them"
CORE_WITH_HEAD = "all linear modules of Megatron-Core, the head among them"
# The file lists names, among them those of feed-forward blocks.
LISTED = "these names"
# peft has modules for the family.
DEFAULT = "default modules of peft"

_Q_V = ("gemma", "gemma2", "gemma3", "gemma4", "gptj", "llama", "llama4", "mistral", "opt", "qwen2", "qwen3",
        "stablelm")  # fmt: skip
# Family -> modules that peft adapts where none is named, as projections. It has some for mixtral and then refuses it.
_DEFAULTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_Q_V, ("q", "v")), "nemotron_h": ("q", "k", "v", "o"), "phi": ("q", "v", "up", "down"),
    **dict.fromkeys(("bloom", "falcon", "gpt2", "gpt_neox"), ("q", "k", "v")),
}  # fmt: skip
# Family -> its modules that are several projections.
_FUSED = {
    **dict.fromkeys(("phi3", "phi4_multimodal"), "qkv_proj and gate_up_proj"), "gpt2": "c_attn",
    **dict.fromkeys(("bloom", "falcon", "gpt_neox"), "query_key_value"),
    **dict.fromkeys(("glm", "glm4"), "gate_up_proj"), "baichuan": "W_pack", "internlm2": "wqkv", "mpt": "Wqkv",
}  # fmt: skip
# Families whose router is a linear module, beside experts that are none.
_LINEAR_ROUTER = ("phimoe",)
# Families with fused experts whose parts have names of their own (w1, w2, w3).
_OTHER_NAMES = ("mixtral", "minimax", "minimax_m2")
# Families whose modules are Conv1D, which peft alone counts among linear ones.
_CONVOLUTIONS = ("gpt2",)
# Families whose experts and routers peft adapts by no word.
_ALONE = ("gpt_oss", "granitemoe", "granitemoehybrid")


def chosen_adapters(facts: Facts, model: ModelSpec, assumed: list[str]) -> dict[str, Any]:
    """The adapters of `facts` on projections of the model. Adds a sentence for each module that is priced otherwise.

    Raises NoCounterpartError where modules get adapters that no plan has.
    """
    chosen, option = facts[CHOSEN]
    if chosen == DEFAULT:
        if model.family not in _DEFAULTS:
            raise NoCounterpartError(f"{option}: names no modules, and plans have no default of peft for "
                                     f"{model.family}")  # fmt: skip
        targets = _DEFAULTS[model.family]
    elif chosen == LISTED:
        if reaches_experts(model, facts[LORA]["targets"]):
            raise NoCounterpartError(f"{option}: gate_proj, up_proj and down_proj are parts of routed experts, too, of "
                                     "which no plan has adapters", hint="leave them out")  # fmt: skip
        return dict(facts[LORA])
    else:
        if model.family in _CONVOLUTIONS and chosen in (BY_NAME, OF_LANGUAGE):
            raise NoCounterpartError(f"{option}: {model.family} has no linear module to pick")
        if beyond := [*_beyond(model, chosen)]:
            raise NoCounterpartError(f"{option}: {chosen}: no plan has adapters of {', '.join(beyond)}",
                                     hint="name the modules that learn")  # fmt: skip
        targets = lora_targets(model)
        if model.tower is not None and chosen not in (OF_LANGUAGE, OF_CORE):
            assumed.append(f"{option}: linear modules of the tower learn, too: priced without their adapters")
        if chosen in (WITH_HEAD, CORE_WITH_HEAD):
            size = facts[LORA]["rank"] * (model.hidden + model.vocab)
            assumed.append(f"{option}: the head has an adapter of {size:,} parameters, too: priced without it")
    of_core = chosen in (OF_CORE, CORE_WITH_HEAD)
    if (fused := "linear_qkv and linear_fc1" if of_core else _FUSED.get(model.family)) is not None:
        assumed.append(f"{option}: the adapter of {fused} is priced as one of each of its projections")
    return {**facts[LORA], "targets": targets}


def _beyond(model: ModelSpec, chosen: str) -> Iterator[str]:
    """Linear modules of the layers that no plan adapts."""
    if any(kind.mixer is not None for kind in model.kinds):
        yield "blocks beside attention"
    if any(attention.is_mla for attention in model.attentions):
        yield "the down projections of latent attention"
    if any(kind.cross_attention is not None for kind in model.kinds):
        yield "cross attention"
    if model.embedding_dim not in (None, model.hidden):
        yield "projections of the embedding"
    if chosen in (OF_CORE, CORE_WITH_HEAD):
        if any(kind.is_moe for kind in model.kinds):
            yield "routed experts"
        return
    if model.family in _LINEAR_ROUTER:
        yield "the router"
    if not any(kind.is_moe for kind in model.kinds) or model.family in (*_ALONE, *_LINEAR_ROUTER):
        return
    if model.family not in (*FUSES_EXPERTS, *_OTHER_NAMES):
        yield "routers, or gates of shared experts"
    elif chosen == BY_PEFT or "up" in lora_targets(model):
        yield "routed experts"
