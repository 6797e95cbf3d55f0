"""Fields of Megatron-Bridge <-> options of a NeMo 2 recipe. Both configure the same core.

An option is the dotted path in the recipe, as on the command line of nemo_run: `trainer.strategy.fsdp`.
Source: NeMo 2.7.3, nemo/lightning/pytorch/strategies/megatron_strategy.py (ParallelismConfig, MegatronStrategy),
plugins/mixed_precision.py and callbacks/megatron_comm_overlap.py beside it, nemo/collections/llm/gpt/model/base.py
and llama.py. Defaults of GPTConfig are those of Bridge's GPTModelProvider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..megatron_bridge.fields import MODELS
from ..options import Settings, remembered

CLASS, M, S, D = "model.config", "model.config.", "trainer.strategy.", "data."
GPT, LLAMA31 = "GPTConfig", "Llama31Config"
CALLBACK = "trainer.callbacks.MegatronCommOverlapCallback"
PRECISION, FSDP, SHARDED = "trainer.plugins.precision", f"{S}fsdp", "optim.config.use_distributed_optimizer"
# Fields of the model that the strategy sets; those of the class are overwritten (set_model_parallel_attributes).
_OF_STRATEGY = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "microbatch_group_size_per_vp_stage", "context_parallel_size", "sequence_parallel", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "pipeline_model_parallel_layout",
)  # fmt: skip
_OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
_RENAMED = {
    "model": CLASS, "model.rope_scaling_factor": f"{M}scale_factor", "dataset.seq_length": f"{D}seq_length",
    "model.tp_comm_overlap": f"{CALLBACK}.tp_comm_overlap", "ddp.use_megatron_fsdp": FSDP,
    "optimizer.use_distributed_optimizer": SHARDED, "checkpoint.ckpt_format": f"{S}save_ckpt_format",
    "ddp.num_distributed_optimizer_instances": f"{S}num_distributed_optimizer_instances",
    **{f"model.{name}": f"{S}{name}" for name in _OF_STRATEGY},
    **{f"ddp.{name}": f"{CALLBACK}.{name}" for name in _OVERLAPS},
    **dict.fromkeys(("mixed_precision.bf16", "mixed_precision.fp16"), PRECISION),
}  # fmt: skip
_SECTIONS = {"model": M, "ddp": f"{S}ddp.", "optimizer": "optim.config.", "mixed_precision": "trainer.plugins.",
             "train": D}  # fmt: skip
# Fields of Bridge that NeMo sets itself: the strategy copies the optimizer's sharding, the callback sets messages.
_IMPLIED = ("ddp.use_distributed_optimizer", "dist.use_megatron_fsdp", "optimizer.overlap_param_gather",
            "model.rope_scaling", "model.overlap_p2p_comm", "model.batch_p2p_comm", "mixed_precision")  # fmt: skip
_PRECISIONS = {"bf16-mixed": "mixed_precision.bf16", "16-mixed": "mixed_precision.fp16"}
NO_MIXING = "32"
# Name of a function in Bridge -> in a recipe.
_FUNCTIONS = {"silu": "F.silu"}
# Options whose default differs in Llama31Config: (there, in GPTConfig).
LLAMA31_DEFAULTS: Mapping[str, tuple[Any, Any]] = {f"{M}{name}": values for name, values in {
    "normalization": ("RMSNorm", "LayerNorm"), "activation_func": ("F.silu", "F.gelu"),
    "gated_linear_unit": (True, False), "position_embedding_type": ("rope", "learned_absolute"),
    "add_bias_linear": (False, True), "attention_dropout": (0.0, 0.1), "hidden_dropout": (0.0, 0.1),
    "share_embeddings_and_output_weights": (False, True), "bias_activation_fusion": (True, False),
    "bias_dropout_fusion": (True, False), "apply_rope_fusion": (True, False), "num_query_groups": (8, None),
    "rotary_base": (500_000, 10_000), "scale_factor": (8.0, None),
}.items()}  # fmt: skip


def name_of(field: str) -> str:
    """The option of a field of Bridge, "" for one that NeMo sets itself."""
    section, _, name = field.partition(".")
    if field in _IMPLIED or (field not in _RENAMED and section not in _SECTIONS):
        return ""
    return _RENAMED.get(field) or f"{_SECTIONS[section]}{name}"


def to_options(fields: Mapping[str, Any]) -> Settings:
    """Options equivalent to `fields` of Bridge."""
    out: Settings = {name: value for field, value in fields.items() if (name := name_of(field))}
    precision = next((word for word, field in _PRECISIONS.items() if fields.get(field)), None)
    if precision is not None:
        out[PRECISION] = precision
    if FSDP in out:
        out[FSDP] = "megatron"
    if (function := f"{M}activation_func") in out:
        out[function] = _FUNCTIONS.get(out[function], out[function])
    return out


@remembered
def to_fields(options: Mapping[str, Any]) -> Settings:
    """Fields of Bridge equivalent to `options`, with the defaults of the recipe's classes where Bridge has others."""
    given = dict(options)
    scaled = given.pop(CLASS, GPT) == LLAMA31
    if scaled:
        given = {name: values[0] for name, values in LLAMA31_DEFAULTS.items()} | given
    out: Settings = {field: given[name] for name, field in _FIELDS.items() if name in given}
    for name, value in given.items():
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if name not in _FIELDS and prefix is not None:
            out[f"{_PREFIXES[prefix]}.{name.removeprefix(prefix)}"] = value
    out["model"] = MODELS[False]
    if scaled:
        out["model.rope_scaling"] = True
    if (precision := str(given.get(PRECISION, NO_MIXING))) in _PRECISIONS:
        out[_PRECISIONS[precision]] = True
    if given.get(FSDP) is not None:
        out["ddp.use_megatron_fsdp"] = given[FSDP] == "megatron"
    function = next((name for name, text in _FUNCTIONS.items() if text == out.get("model.activation_func")), None)
    if function is not None:
        out["model.activation_func"] = function
    if out.get("model.activation_func") == "F.gelu":
        del out["model.activation_func"]
    return _overlapped(out, given)


def _overlapped(fields: Settings, given: Mapping[str, Any]) -> Settings:
    """`fields` with the overlaps of data parallelism: the callback's with a distributed optimizer, else ddp's."""
    sharded = bool(given.get(SHARDED))
    called = any(name.startswith(f"{CALLBACK}.") for name in given)
    for name in _OVERLAPS:
        own = given.get(f"{S}ddp.{name}", False)
        fields[f"ddp.{name}"] = given.get(f"{CALLBACK}.{name}", True) if sharded and called else own
    return fields


# Option -> its field, where neither is named by a section, and prefix -> section. Values of the rest are translated.
_FIELDS = {name: field for field, name in _RENAMED.items() if name not in (CLASS, PRECISION, FSDP)}
_PREFIXES = {f"{S}ddp.": "ddp", M: "model", "optim.config.": "optimizer", "trainer.plugins.": "mixed_precision",
             D: "train"}  # fmt: skip
_NAMES = re.compile(r"\b(?:model|ddp|optimizer|mixed_precision|train|dataset|dist|checkpoint)\.[a-z]\w+")


def renamed(text: str) -> str:
    """Rewrites a sentence about fields of Bridge to one about options."""
    return _NAMES.sub(lambda word: name_of(word[0]) or word[0], text).replace(MODELS[False], GPT)
