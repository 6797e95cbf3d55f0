"""Plan <-> options of a recipe of LLaMA-Factory and of accelerate's YAML beside it.

LLaMA-Factory 0.9.5, src/llamafactory: hparams/finetuning_args.py, model_args.py and data_args.py;
model/model_utils/checkpointing.py (layers recompute unless disable_gradient_checkpointing is set) and quantization.py.
"""

from __future__ import annotations

from .. import adapters
from ..accelerate.options import ARGUMENTS, SHARDS
from ..accelerate.recipes import CHECKPOINTING, of_recipe, table
from ..options import Entry, Facts, NoCounterpartError, Settings, always, number
from ..setup import Setup

_OFF, _REENTRANT, _TRAINERS_OWN = of_recipe("disable_gradient_checkpointing", "use_reentrant_gc",
                                            "gradient_checkpointing")  # fmt: skip
_PACKING = of_recipe("packing", "neat_packing", "flash_attn")
_KIND = f"{ARGUMENTS}finetuning_type"
# Option -> its only value that a plan can hold, which is its default.
_ONLY = dict(zip(of_recipe("quantization_method", "freeze_trainable_modules"), ("bnb", "all"), strict=True))
_TRAINED = (_KIND, *_ONLY, *of_recipe("lora_rank", "lora_target", "lora_dropout", "quantization_bit",
            "quantization_type", "double_quantization", "freeze_trainable_layers"))  # fmt: skip
_LAST_LAYERS = "workload.train_layers"
_BITS = {"int8": 8, "nf4": 4}


def _shards_write(setup: Setup) -> Settings:
    """FSDP2 over all data-parallel ranks, which needs no parallelism_config."""
    return {name: value for name, value in SHARDS.write(setup).items() if not name.startswith("parallelism_config.")}


def _recompute_write(setup: Setup) -> Settings:
    """Its own recomputation, of trained layers. A reentrant one does not stop early, as plans assume."""
    return {_OFF: False, _REENTRANT: False} if setup.recompute == "full" else {_OFF: True}


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    full = not settings.get(_OFF, False) or settings.get(_TRAINERS_OWN) or settings.get(CHECKPOINTING)
    return {"recompute": {"mode": "full" if full else "none"}}


def _packing_write(setup: Setup) -> Settings:
    """Packing. `neat_packing` separates documents, which needs a kernel for variable lengths."""
    work = setup.workload
    apart = {"neat_packing": True, "flash_attn": "fa2"} if work.packed and work.mean_len is not None else {}
    return {f"{ARGUMENTS}{name}": value for name, value in ({"packing": work.packed} | apart).items()}


def _packing_read(settings: Settings, facts: Facts) -> Facts:
    return {"workload.packed": bool(settings.get(_PACKING[0]) or settings.get(_PACKING[1]))}


def _trained_write(setup: Setup) -> Settings:
    """All weights, adapters, or the last layers. Plans count 4-bit weights as doubly quantised."""
    work = setup.workload
    out: Settings = {"finetuning_type": "full"}
    if work.lora is not None:
        modules = ",".join(adapters.modules(setup.model, work.lora))
        out = {"finetuning_type": "lora", "lora_rank": work.lora.rank, "lora_target": modules, "lora_dropout": 0.0}
        if work.lora.base_dtype in _BITS:
            out["quantization_bit"] = _BITS[work.lora.base_dtype]
        if work.lora.base_dtype == "nf4":
            out |= {"quantization_type": "nf4", "double_quantization": True}
    elif work.trains_layers:
        out = {"finetuning_type": "freeze", "freeze_trainable_layers": work.trains_layers}
    return {f"{ARGUMENTS}{name}": value for name, value in out.items()}


def _trained_read(settings: Settings, facts: Facts) -> Facts:
    given = {name.removeprefix(ARGUMENTS): settings[name] for name in _TRAINED if name in settings}
    for option, only in _ONLY.items():
        if (other := settings.get(option, only)) != only:
            raise NoCounterpartError(f"{option} `{other}` has no counterpart in a plan", hint=f"known: {only}")
    kind = given.get("finetuning_type", "lora")
    if kind == "freeze":
        return {adapters.LORA: None, _LAST_LAYERS: given.get("freeze_trainable_layers", 2)}
    if kind == "full":
        return {adapters.LORA: None}
    if kind != "lora":
        raise NoCounterpartError(f"{_KIND} `{kind}` has no counterpart in a plan", hint="known: full, lora, freeze")
    base = next((name for name, bits in _BITS.items() if bits == given.get("quantization_bit")), "bf16")
    return adapters.facts(given.get("lora_rank", 8), str(given.get("lora_target", "all")).split(","), base)


TABLE = table((
    Entry(SHARDS.fields, SHARDS.options, _shards_write, SHARDS.read),
    always((f"{ARGUMENTS}stage", "sft"), (f"{ARGUMENTS}do_train", True)),
    Entry(("recompute", "recompute_modules", "recompute_layers"), (_OFF, _REENTRANT, _TRAINERS_OWN, CHECKPOINTING),
          _recompute_write, _recompute_read),
    number("workload.seq_len", f"{ARGUMENTS}cutoff_len", lambda s: s.workload.seq_len),
    Entry(("workload.packed",), _PACKING, _packing_write, _packing_read),
    Entry((adapters.LORA, _LAST_LAYERS), _TRAINED, _trained_write, _trained_read),
))  # fmt: skip
