"""Plan <-> options of TRL's sft.yaml and of accelerate's YAML beside it, both ways.

TRL 1.16: trainer/sft_config.py, trainer/model_config.py; peft 0.21: LoraConfig.
"""

from __future__ import annotations

from .. import adapters
from ..accelerate.options import ARGUMENTS
from ..accelerate.recipes import CHECKPOINTING, of_recipe, table
from ..options import Entry, Facts, Settings, number
from ..setup import Setup

_CHECKPOINTING = (CHECKPOINTING, *of_recipe("gradient_checkpointing"))
_HALVES = of_recipe("bf16", "fp16")
_PACKING = of_recipe("packing", "packing_strategy", "attn_implementation")
_LORA = of_recipe("use_peft", "lora_r", "lora_dropout", "lora_target_modules", "dtype", "load_in_4bit", "load_in_8bit",
                  "bnb_4bit_quant_type", "bnb_4bit_quant_storage", "use_bnb_nested_quant")  # fmt: skip
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _recompute_write(setup: Setup) -> Settings:
    """Recomputation, which SFTConfig enables by default."""
    full, sharded = setup.recompute == "full", bool(setup.layout.zero)
    return {_CHECKPOINTING[1]: full and not sharded} | ({_CHECKPOINTING[0]: True} if full and sharded else {})


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    full = settings.get(_CHECKPOINTING[0]) or settings.get(_CHECKPOINTING[1], True)
    return {"recompute": {"mode": "full" if full else "none"}}


def _packing_write(setup: Setup) -> Settings:
    """Packing. `wrapped` fills every sequence; `bfd` separates documents, which needs a kernel for variable lengths."""
    work = setup.workload
    if not work.packed:
        return {_PACKING[0]: False}
    if work.mean_len is None:
        return {_PACKING[0]: True, _PACKING[1]: "wrapped"}
    return {_PACKING[0]: True, _PACKING[1]: "bfd", _PACKING[2]: "flash_attention_2"}


def _packing_read(settings: Settings, facts: Facts) -> Facts:
    return {"workload.packed": bool(settings.get(_PACKING[0]))}


def _lora_write(setup: Setup) -> Settings:
    """Data types. The optimizer keeps fp32 copies of trained weights; frozen weights have the dtype of the base."""
    lora = setup.workload.lora
    if lora is None:
        return {f"{ARGUMENTS}dtype": "float32"}
    dtype = _DTYPES[setup.precision]
    out: Settings = {"use_peft": True, "lora_r": lora.rank, "lora_dropout": 0.0, "dtype": dtype,
                     "lora_target_modules": adapters.modules(setup.model, lora)}  # fmt: skip
    if lora.base_dtype == "nf4":
        out |= {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_quant_storage": dtype,
                "use_bnb_nested_quant": True}  # fmt: skip
    if lora.base_dtype == "int8":
        out["load_in_8bit"] = True
    return {f"{ARGUMENTS}{name}": value for name, value in out.items()}


def _lora_read(settings: Settings, facts: Facts) -> Facts:
    given = {name.removeprefix(ARGUMENTS): settings[name] for name in _LORA if name in settings}
    if not given.get("use_peft"):
        return {adapters.LORA: None}
    base = "nf4" if given.get("load_in_4bit") else "int8" if given.get("load_in_8bit") else "bf16"
    return adapters.facts(given.get("lora_r", 16), given.get("lora_target_modules") or (), base)


TABLE = table((
    Entry(("precision",), _HALVES, lambda s: {name: name.endswith(s.precision) for name in _HALVES},
          lambda given, facts: {}),
    Entry(("recompute", "recompute_modules", "recompute_layers"), _CHECKPOINTING, _recompute_write, _recompute_read),
    number("workload.seq_len", f"{ARGUMENTS}max_length", lambda s: s.workload.seq_len),
    Entry(("workload.packed",), _PACKING, _packing_write, _packing_read),
    Entry((adapters.LORA,), _LORA, _lora_write, _lora_read),
))  # fmt: skip
