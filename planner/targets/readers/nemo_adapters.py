"""The adapters of NeMo's fine-tuning YAML: model.peft.

Source: NeMo 8cfedd72 (2025-09-20), megatron_gpt_finetuning_config.yaml of its tuning/conf and peft_config.py of its
parts (PEFT_CONFIG_MAP, get_target_modules, LoraPEFTConfig).
"""

from __future__ import annotations

from ..adapters import LORA, facts_of_core
from ..options import Facts, NoCounterpartError, Settings
from .reader import reads

_SCHEME, _BLOCK = "model.peft.peft_scheme", "model.peft.lora_tuning"
_RANK, _MODULES = f"{_BLOCK}.adapter_dim", f"{_BLOCK}.target_modules"
KINDS = {_SCHEME: "str", _RANK: "int", _MODULES: "any"}
CHANGES = {rf"{_BLOCK}\.(layer_selection|weight_tying)": "adapters that differ between layers"}
HARMLESS = rf"{_BLOCK}|model\.peft\.(restore|adapter_tuning|p_tuning|ia3_tuning|selective_tuning)"
# Word -> modules of Megatron-Core.
_WORDS = {
    "attention_qkv": ("linear_qkv",), "attention_dense": ("linear_proj",), "mlp_fc1": ("linear_fc1",),
    "mlp_fc2": ("linear_fc2",), "attention": ("linear_qkv", "linear_proj"), "mlp": ("linear_fc1", "linear_fc2"),
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
}  # fmt: skip


def _read(settings: Settings, facts: Facts) -> Facts:
    """The scheme `lora`; `none` trains all weights."""
    scheme = str(settings.get(_SCHEME, "none"))
    if scheme in ("none", "None"):
        return {}
    if scheme != "lora":
        raise NoCounterpartError(f"{_SCHEME} `{scheme}` has no counterpart in a plan", hint="known: lora, none")
    words = settings.get(_MODULES, ["attention_qkv"])
    names = dict.fromkeys(name for word in words for name in _WORDS.get(word, (word,)))
    return facts_of_core(settings.get(_RANK, 32), _MODULES, names, facts)


ENTRY = reads((LORA,), tuple(KINDS), _read)
