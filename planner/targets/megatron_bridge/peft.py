"""Reads the adapters of Megatron-Bridge's recipes.

Source: Megatron-Bridge 067f987d (2026-08-22), peft/lora.py (LoRA: rank 32, all linear modules), peft/canonical_lora.py,
recipes/utils/dataset_utils.py (default_peft_config: `lora`, `dora`, `none`).
"""

from __future__ import annotations

from .. import adapters
from ..config_modules import HUB_MODEL
from ..model_names import known_model
from ..option_lists import Option
from ..options import Entry, Facts, NoCounterpartError, Settings

_KIND, _RANK, _MODULES = "peft", "peft.dim", "peft.target_modules"
_CANONICAL = ("linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_up", "linear_fc1_gate", "linear_fc2")
# Class or scheme -> its modules.
_KINDS = {"LoRA": adapters.ALL_OF_CORE, "lora": adapters.ALL_OF_CORE, "CanonicalLoRA": _CANONICAL}
_OTHERS = ("DoRA", "dora", "VLMLoRA", "none")
_ASIDE = ("alpha", "dropout", "dropout_position", "lora_A_init_method", "lora_B_init_method", "a2a_experimental",
          "sequence_parallel_input_regather", "normalize_moe_lora", "share_expert_adapters",
          "experts_shared_outer_loras")  # fmt: skip
OPTIONS = {
    _KIND: Option(_KIND, "class", values=(*_KINDS, *_OTHERS)), _RANK: Option(_RANK, "int"),
    _MODULES: Option(_MODULES, "str", many=True),
    **{f"peft.{name}": Option(f"peft.{name}", "any") for name in (*_ASIDE, "exclude_modules", "lora_dtype")},
}  # fmt: skip


def _read(settings: Settings, facts: Facts) -> Facts:
    kind = str(settings.get(_KIND, "none"))
    if kind == "none":
        return {}
    if kind not in _KINDS:
        raise NoCounterpartError(f"{_KIND} `{kind}` has no counterpart in a plan", hint=f"known: {', '.join(_KINDS)}")
    spec = known_model(str(settings.get(HUB_MODEL, "")))
    facts = {**facts, **(adapters.facts_of_model(spec) if spec is not None else {})}
    option, names = (_MODULES, settings[_MODULES]) if _MODULES in settings else (_KIND, _KINDS[kind])
    return adapters.facts_of_core(settings.get(_RANK, 32), option, names, facts)


ENTRY = Entry((adapters.LORA,), (_KIND, _RANK, _MODULES), lambda setup: {}, _read)
