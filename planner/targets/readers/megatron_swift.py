"""The options of ms-swift on Megatron-Core: the command or the YAML of `megatron sft` and `megatron pt`.

Sources: ms-swift 3602360a (2026-08-22), swift/megatron/arguments/megatron_args.py (options, defaults),
megatron_base_args.py (lengths) and swift/megatron/utils/utils.py (find_all_linears: experts among them).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from ....errors import InputError
from .. import adapter_choices
from ..adapters import LORA, facts_of_core, facts_of_model
from ..argv import Arguments
from ..import_format import Compared, on_stack
from ..megatron.options import TABLE
from ..model_names import known_model
from ..options import Entry, Facts, NoCounterpartError, Settings, remembered
from ..reading import Reading
from ..switch_options import SWITCH
from . import commands, preferences, swift
from . import transformers_family as family
from .reader import Reader, reads, translated, value

# Options with the name of an argument of Megatron-LM, with underscores for its hyphens -> the kind of their values.
_SAME = {
    **dict.fromkeys((
        "micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size",
        "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "recompute_num_layers",
        "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"), "int"),
    **dict.fromkeys((
        "recompute_granularity", "recompute_method", "optimizer", "exp_avg_dtype", "exp_avg_sq_dtype", "fp8_format",
        "data_parallel_sharding_strategy", "pipeline_model_parallel_layout", "fp8_recipe", "fp4_format", "fp4_recipe",
        "moe_token_dispatcher_type", "moe_router_dtype", "attention_backend", "cross_entropy_fusion_impl"), "str"),
    **dict.fromkeys((
        "use_distributed_optimizer", "sequence_parallel", "use_megatron_fsdp", "optimizer_cpu_offload",
        "use_precision_aware_optimizer", "overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap",
        "moe_permute_fusion", "moe_grouped_gemm", "cross_entropy_loss_fusion", "fp8_param_gather", "fp4_param_gather",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
        "moe_pad_expert_input_to_capacity"), "bool"),
    **dict.fromkeys(("optimizer_offload_fraction", "moe_expert_capacity_factor"), "float"),
    **dict.fromkeys(("recompute_modules", "cp_comm_type"), "any"),
}  # fmt: skip
_ARGUMENT = {
    **{name: f"--{name.replace('_', '-')}" for name in _SAME}, "max_length": "--seq-length",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
    "model": "--num-layers",
}  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    "micro_batch_size": 1, "global_batch_size": 16, "recompute_granularity": "selective", "optimizer": "adam",
    "recompute_modules": ["core_attn"], "use_distributed_optimizer": True, "cross_entropy_loss_fusion": True,
    "attention_backend": "flash",
}  # fmt: skip
_OF_EXPERTS: Mapping[str, Any] = {"expert_tensor_parallel_size": 1, "moe_token_dispatcher_type": "alltoall",
                                  "moe_grouped_gemm": True}  # fmt: skip
_GRANULARITIES = ("selective", "full", "none")
_WEIGHTS = ("mcore_model", "load")  # folders of weights, which name the model where nothing else does
_LORA = ("tuner_type", "train_type", "lora_rank", "target_modules")
_SMALL = ("fp8_format", "fp4_format")
_DTYPES = ("torch_dtype", "bf16", "fp16")
_FREEZES = ("freeze_parameters", "freeze_vit", "freeze_aligner")
_COMMAND = commands.of_program(r"(^|[\s/])megatron (sft|pt|rlhf) |swift/cli/_megatron/(sft|pt|rlhf)\.py ")


@remembered
def to_arguments(settings: Mapping[str, Any]) -> Settings:
    """Arguments of Megatron-LM that mean the same, the defaults of ms-swift and the layers of the model among them."""
    spec = known_model(str(settings.get("model", "")))
    routed = next((kind.feed_forward for kind in spec.kinds if kind.is_moe), None) if spec is not None else None
    experts = getattr(routed, "experts", settings.get("expert_model_parallel_size", 1))
    stated = {name: given for name, given in settings.items() if given is not None}
    if str(stated.get("optimizer")).endswith("muon"):  # _check_muon
        stated["use_distributed_optimizer"] = False
    stated = {**_DEFAULTS, **(_OF_EXPERTS if experts > 1 else {}), **stated}
    if stated["recompute_granularity"] != "selective":
        del stated["recompute_modules"]
    out = {argument: stated[name] for name, argument in _ARGUMENT.items()
           if name != "model" and name in stated and stated[name] is not False and stated[name] != "none"}  # fmt: skip
    if isinstance(kinds := out.get("--cp-comm-type"), str):
        out["--cp-comm-type"] = [kinds]
    if isinstance(modules := out.get("--recompute-modules"), str):
        out["--recompute-modules"] = [modules]
    if out.get("--moe-token-dispatcher-type") == "flex":
        out["--moe-flex-dispatcher-backend"] = "deepep"
    out |= {"--num-layers": spec.num_layers} if spec is not None else {}
    return out | ({"--num-experts": experts} if experts > 1 else {})


def _of_layout(entry: Entry) -> bool:
    """Whether an entry says more than the name of the model and its data type do; stages depend on its layers."""
    name = entry.fields[0]
    if name == "precision":
        return False
    aside = ("model.",) if entry.options else ("model.", SWITCH)
    return name == "model.layers" or not name.startswith(aside)


def _precision(settings: Settings, facts: Facts) -> Facts:
    """fp8 or fp4 of the products, else the data type of the weights."""
    small = next((name for name in _SMALL if settings.get(name)), "")
    return {"precision": small.partition("_")[0]} if small else swift.precision(settings, facts)


def _recomputed(settings: Settings, facts: Facts) -> Facts:
    kind = settings.get("recompute_granularity")
    if kind not in (None, *_GRANULARITIES):
        raise InputError(f"recompute_granularity `{kind}` is none of {', '.join(_GRANULARITIES)}")
    return {}


def _trained(settings: Settings, facts: Facts) -> Facts:
    """All weights (the default) or adapters, by default those of all linear modules."""
    kind = settings.get("tuner_type") or settings.get("train_type") or "full"
    if kind == "full":
        return {}
    if kind not in ("lora", "lora_llm"):
        raise NoCounterpartError(f"tuner_type `{kind}` has no counterpart in a plan", hint="known: full, lora")
    rank, targets = settings.get("lora_rank", 8), settings.get("target_modules", "all-linear")
    names = targets if isinstance(targets, list) else [targets]
    if names == ["all-linear"]:
        chosen = (adapter_choices.OF_CORE, "target_modules")
        return {LORA: {"rank": rank, "base_dtype": "bf16"}, adapter_choices.CHOSEN: chosen}
    spec = known_model(facts.get("model_name", ""))
    known = {**facts, **(facts_of_model(spec) if spec is not None else {})}
    return facts_of_core(rank, "target_modules", names, known)


def _seen(settings: Settings, facts: Facts) -> Facts:
    """Towers, which are frozen unless an option says otherwise."""
    spec = known_model(facts.get("model_name", ""))
    if spec is None or spec.tower is None or settings.get("freeze_parameters"):
        return swift.frozen(settings, facts)
    return swift.frozen({**settings, "freeze_parameters": ["visual"]}, facts)


def _compared(facts: Facts) -> Compared:
    """Layouts of Megatron; of its core, on the same micro-batch of pairs, where none is written for it."""
    if preferences.LEARNS in facts:
        return Compared("any", {**on_stack("megatron-core").fields, "fix": preferences.fixed(facts)})
    return on_stack("megatron-core") if LORA in facts else Compared("megatron")


def _modernise(arguments: Arguments) -> None:
    given = arguments.settings
    if given.get("packing_length"):
        given["max_length"] = given["packing_length"]
    for name in _WEIGHTS:
        if not given.get("model") and (folder := given.get(name)):
            model = posixpath.basename(str(folder).rstrip("/")).removesuffix("-mcore")
            arguments.replace(name, {"model": model})
            arguments.notes.append(f"the model is taken from {name}: `--model` names another")
    preferences.of_megatron_swift(arguments)
    if given.get("max_length") is None:
        arguments.gap("max_length", "is not given: the longest sequence of the data decides (--arg max_length=N)")


READER = Reader(
    name="megatron-swift",
    framework="ms-swift on Megatron-Core",
    version="4.6",
    commit="3602360a",
    kinds={
        **_SAME, "model": "str", **dict.fromkeys(_WEIGHTS, "str"), "max_length": "int", "packing": "bool",
        "packing_length": "int", "virtual_pipeline_model_parallel_size": "int",
        "microbatch_group_size_per_vp_stage": "int", "tuner_type": "str", "train_type": "str", "lora_rank": "int",
        "target_modules": "any", "torch_dtype": "str", "bf16": "any", "fp16": "any", "freeze_parameters": "any",
        "freeze_vit": "bool", "freeze_aligner": "bool", "task_type": "str", preferences.LEARNS: "any",
        **dict.fromkeys(("rlhf_type", "ref_model", "vllm_mode"), "str"), "loss_type": "any",
        "max_completion_length": "int",
    },
    entries=(
        value("model_name", "model"),
        *(entry for entry in translated(TABLE, to_arguments, _ARGUMENT) if _of_layout(entry)),
        reads((), ("recompute_granularity",), _recomputed),
        reads(("precision",), (*_SMALL, *_DTYPES), _precision),
        family.length("max_length", ("packing", "packing_length")),
        reads((LORA,), _LORA, _trained),
        reads((), ("task_type",), swift.head),
        reads((), _FREEZES, _seen),
        reads((), _WEIGHTS, lambda settings, facts: {}),  # _modernise has read them
        preferences.entry(),
    ),
    reading=Reading(
        changes={
            r"rlhf_type|ref_model.*|reward_(model|funcs).*|teacher_model.*|loss_type|use_vllm|vllm_mode|max_completion_length":
                "preferences or rewards: passes beside those of a training step",
            r"num_labels|problem_type|mrl_dims": "another head than that of the vocabulary",
            r"freeze_llm|freeze_parameters_(ratio|regex)|trainable_parameters(_regex)?|target_regex|modules_to_save|"
            r"lora_bias": "another part of the model that learns",
            r"main_(grads|params)_dtype": "states of another size",
            r"sequence_packing_scheduler": "context parallelism by the length of each document",
            r"rope_scaling|external_plugins|custom_register_path|model_kwargs(\..*)?|new_special_tokens|csa_dense_mode|"
            r"bridge_backend|megatron_extra_kwargs": "another model or trainer than its own",
            r"mhc_recompute_layer_num|mtp_(num_layers|shared_weights)|use_ray": "layers or jobs that are not read",
        },
        harmless=(
            r"^(adapters|adam|add_(non_thinking|version)|aligner_lr|align_|apply_|async|attention_softmax|attn_impl|"
            r"batch_p2p|bias_|calculate_per_token|callbacks|check_model|clip_grad|cp_partition|create_checkpoint|data_|"
            r"dataloader|dataset|ddp|dist_ckpt|distrib_optim|dsa_|enable_(channel|dft)|end_weight|eval|fp8_amax|finetune|"
            r"gradient_accumulation_fusion|group_by|hub|ignore_args|init|language_model_only|lazy|linear_decoupled|load|log|lora_(alpha|"
            r"dropout|dtype)|loss_scale|lr|manual_gc|masked_softmax|max_(epochs|shard|pixels|steps)|mcore_adapter|merge|"
            r"min_lr|mlp_padding|model_(author|name|revision|type)|moe_(aux|enable_deepep|layer_rec|router_load|shared|"
            r"token_drop|z_loss)|mtp_(loss|decoder)|muon_|nccl|no_|num_(train_epochs|workers)|optimizer_cuda|output|overlap_p2p|"
            r"overlap_param_gather_with|packing_(num_proc|strategy)|padding_free|padding_side|perform_init|quant_|report|save|"
            r"seed|sgd|split|start_weight|streaming|swanlab|system|template|te_rng|tensorboard|train_iters|train_dataloader|"
            r"truncation|use_(chat|cpu_init|flash|hf|persistent|rslora)|vit_|wandb|weight_decay)(_|\.|$|[a-z])"
        ),
        modernise=_modernise,
    ),
    prepared=commands.prepared,
    document=commands.from_command("megatron sft", _COMMAND, family.loaded),
    commands=True,
    compared=_compared,
)  # fmt: skip
