"""The training part of verl's configs: the actor on Megatron-Core or FSDP, in YAML or as overrides in a script.

Source: verl b178a3cd (2026-01-29), trainer/config (ppo_trainer.yaml, ppo_megatron_trainer.yaml and their groups),
workers/fsdp_workers.py and workers/megatron_workers.py (the batch of an optimizer step), workers/actor (micro-batches
of ppo_max_token_len_per_gpu tokens times the ranks of a sequence).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....errors import InputError
from ....profiles.io.document import Document
from .. import adapter_choices
from ..adapters import ALL_OF_CORE, LORA, facts_of_core, facts_of_model
from ..argv import Arguments
from ..import_format import Compared, on_stack
from ..megatron.options import TABLE
from ..megatron.stages import GROUP_SIZE
from ..model_names import known_model
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from . import transformers_family as family
from .hydra import from_script
from .interpolation import resolved
from .reader import Reader, noted, reads, value, whole_micro_batch
from .towers import are_towers

_ACTOR, _MODEL, _ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "actor_rollout_ref.rollout."
_MEGATRON, _FSDP = f"{_ACTOR}megatron.", f"{_ACTOR}fsdp_config."
_LAYERS = f"{_MEGATRON}override_transformer_config."
# Blocks of verl's own configs; others belong to the program of a fork.
_BLOCKS = re.compile(r"(actor_rollout_ref|algorithm|async_training|critic|custom_reward|data|defaults|global_profiler|"
                     r"hydra|ray_|reward|rollout|searchpath|trainer|transfer_queue|config_name|model_engine|actor|engine|"
                     r"model|optim|ref|ulysses|checkpoint)")  # fmt: skip
# The name of the config that the options start from.
CONFIG_NAME = "config_name"
_SAME = {
    f"{_MEGATRON}tensor_model_parallel_size": "--tensor-model-parallel-size",
    f"{_MEGATRON}pipeline_model_parallel_size": "--pipeline-model-parallel-size",
    f"{_MEGATRON}virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    f"{_MEGATRON}context_parallel_size": "--context-parallel-size",
    f"{_MEGATRON}expert_model_parallel_size": "--expert-model-parallel-size",
    f"{_LAYERS}num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    f"{_LAYERS}num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    f"{_LAYERS}recompute_num_layers": "--recompute-num-layers",
    f"{_LAYERS}microbatch_group_size_per_vp_stage": GROUP_SIZE,
}  # fmt: skip
_WORDS = {f"{_LAYERS}recompute_granularity": "--recompute-granularity",
          f"{_LAYERS}recompute_method": "--recompute-method"}  # fmt: skip
_LISTS = {f"{_LAYERS}recompute_modules": "--recompute-modules"}
_FLAGS = {f"{_LAYERS}account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split",
          f"{_LAYERS}account_for_loss_in_pipeline_split": "--account-for-loss-in-pipeline-split"}  # fmt: skip
_ON = {f"{_MEGATRON}sequence_parallel": "--sequence-parallel",
       f"{_MEGATRON}use_distributed_optimizer": "--use-distributed-optimizer"}  # fmt: skip
_ETP = f"{_MEGATRON}expert_tensor_parallel_size"
_ARGUMENT = _SAME | _WORDS | _LISTS | _FLAGS | _ON | {_ETP: "--expert-tensor-parallel-size"}
_FIELD = {argument: name for name, argument in _ARGUMENT.items()}
_ULYSSES = (f"{_ACTOR}ulysses_sequence_parallel_size", f"{_FSDP}ulysses_sequence_parallel_size")
_SHARDS = (f"{_FSDP}fsdp_size", f"{_FSDP}reshard_after_forward", *_ULYSSES, f"{_MODEL}enable_gradient_checkpointing")
_STRATEGY = (CONFIG_NAME, f"{_ACTOR}strategy", "model_engine")
_MICRO, _DYNAMIC = f"{_ACTOR}ppo_micro_batch_size_per_gpu", f"{_ACTOR}use_dynamic_bsz"
_MICRO_OF_ALL = f"{_ACTOR}ppo_micro_batch_size"  # an older name, of all ranks together
_TOKENS, _MINI = f"{_ACTOR}ppo_max_token_len_per_gpu", f"{_ACTOR}ppo_mini_batch_size"
_SAMPLES = f"{_ROLLOUT}n"
_LENGTHS = ("data.max_prompt_length", "data.max_response_length")
_LORA = (f"{_MODEL}lora_rank", f"{_MODEL}target_modules", f"{_MODEL}lora.rank", f"{_MODEL}lora.target_modules")
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}
_LAYOUT = ("tp", "sequence_parallel", "cp", "cp_algorithm", "pp", "schedule", "vpp", "stages", "ep", "etp", "zero",
           "shard", "recompute", "offload", "interleaving_group")  # fmt: skip


def _on_megatron(settings: Settings) -> bool:
    named = [str(settings.get(name, "")) for name in _STRATEGY]
    return any("megatron" in name for name in named) or any(name.startswith(_MEGATRON) for name in settings)


def to_arguments(settings: Mapping[str, Any]) -> Settings:
    """Arguments of Megatron-LM that mean the same, with verl's defaults and the layers of the model."""
    out: Settings = {argument: settings[name] for name, argument in (_SAME | _WORDS | _LISTS).items()
                     if settings.get(name) is not None}  # fmt: skip
    out |= {argument: True for name, argument in _FLAGS.items() if settings.get(name) is True}
    out |= {argument: True for name, argument in _ON.items() if settings.get(name, True)}
    if "--recompute-granularity" not in out:
        out.pop("--recompute-modules", None)
    spec = known_model(str(settings.get(f"{_MODEL}path", "")))
    if spec is not None:
        out["--num-layers"] = spec.num_layers
    routed = next((kind.feed_forward for kind in spec.kinds if kind.is_moe), None) if spec is not None else None
    ep = out.get("--expert-model-parallel-size", 1)
    if routed is not None or ep > 1:
        out["--num-experts"] = getattr(routed, "experts", ep)
        out["--expert-tensor-parallel-size"] = settings.get(_ETP) or out.get("--tensor-model-parallel-size", 1)
    return out


def _layout(settings: Settings, facts: Facts) -> Facts:
    """Degrees, stages and recomputation of the actor."""
    if not _on_megatron(settings):
        return _fsdp(settings, facts)
    arguments = to_arguments(settings)
    if "--num-layers" not in arguments and any(name.startswith(("--decoder-", "--account-")) for name in arguments):
        raise NoCounterpartError(f"{_MODEL}path: stages depend on the layers of a model that is not in the catalogue")
    try:
        known = TABLE.read(arguments)
    except InputError as error:
        text, hint = (re.sub(r"--[a-z][\w-]*", lambda word: _FIELD.get(word[0], word[0]), given)
                      for given in (error.message, error.hint or ""))  # fmt: skip
        raise type(error)(text, hint=hint) from None
    return {name: known[name] for name in _LAYOUT if name in known}


def _fsdp(settings: Settings, facts: Facts) -> Facts:
    """Shards over all ranks, or over fsdp_size of them; Ulysses splits sequences over some of these."""
    for name in _STRATEGY[1:]:
        if (engine := str(settings.get(name, "fsdp"))) not in ("fsdp", "fsdp2", "dp"):
            raise NoCounterpartError(f"{name} `{engine}` is not read", hint="known: megatron, fsdp, fsdp2")
    cp = max(settings.get(name) or 1 for name in _ULYSSES)
    out: Facts = {"pp": 1, "vpp": 1, "schedule": "1f1b", "ep": 1, "etp": 1, "tp": 1, "sequence_parallel": False,
                  "offload": "none", "cp": cp} | ({"cp_algorithm": "ulysses"} if cp > 1 else {})  # fmt: skip
    out["zero"] = 2 if settings.get(f"{_FSDP}reshard_after_forward") is False else 3
    if (size := settings.get(f"{_FSDP}fsdp_size", -1)) > 0:
        ranks = settings.get("trainer.nnodes", 1) * settings.get("trainer.n_gpus_per_node", 8)
        if ranks % size:
            raise InputError(f"{_FSDP}fsdp_size {size} does not divide the {ranks} ranks")
        out["replicas"] = ranks // size
    if (full := settings.get(f"{_MODEL}enable_gradient_checkpointing")) is None:
        full = settings.get(_MICRO_OF_ALL) is None
        by_default = "on, as verl has it since 0.2"
        if not full:
            by_default = f"off, as verl 0.1 has it, whose {_MICRO_OF_ALL} is here"
        out |= noted(facts, f"enable_gradient_checkpointing is not stated: {by_default}")
    return out | {"recompute": {"mode": "full" if full else "none"}}


def _length(settings: Settings, facts: Facts) -> Facts:
    """The longest sequence: prompt and response."""
    tokens = sum(settings.get(name, 512) for name in _LENGTHS)
    return {"workload.seq_len": tokens, **noted(facts, f"sequences are priced at their longest: {tokens} tokens")}


def _batch(settings: Settings, facts: Facts) -> Facts:
    """The sequences of an optimizer step, and those of a micro-batch, which tokens may limit."""
    out: Facts = {"workload.global_batch": settings.get(_MINI, 256) * settings.get(_SAMPLES, 1)}
    ranks = settings.get("trainer.nnodes", 1) * settings.get("trainer.n_gpus_per_node", 8)
    copies = max(ranks // max(facts["tp"] * facts["cp"] * facts["pp"], 1), 1)
    if not settings.get(_DYNAMIC):
        return out | _micro_batch(settings, copies)
    tokens = settings.get(_TOKENS, 16384) * facts["cp"]
    limit = tokens // max(facts["workload.seq_len"], 1)
    out["micro_batch"] = whole_micro_batch(limit, out["workload.global_batch"], copies)
    note = f"use_dynamic_bsz: {tokens} tokens are priced as {out['micro_batch']} sequences of the longest"
    return out | noted(facts, note)


def _micro_batch(settings: Settings, copies: int) -> Facts:
    """Sequences of a rank. The older name counts those of all copies of the model (fsdp_workers.py and
    megatron_workers.py divide it by their number)."""
    of_all = settings.get(_MICRO_OF_ALL)
    if of_all is None:
        return {"micro_batch": settings[_MICRO]} if _MICRO in settings else {}
    if settings.get(_MICRO) is not None:
        raise InputError(f"{_MICRO_OF_ALL} and {_MICRO} are both given", hint="keep the second")
    if of_all < copies:
        raise InputError(f"{_MICRO_OF_ALL} {of_all} is less than one sequence for each of {copies} copies of the model")
    return {"micro_batch": of_all // copies}


def _precision(settings: Settings, facts: Facts) -> Facts:
    name = f"{_MEGATRON if _on_megatron(settings) else _FSDP}dtype"
    dtype = str(settings.get(name, "bfloat16"))
    known = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
    if dtype not in known:
        raise NoCounterpartError(f"{name} `{dtype}` has no counterpart in a plan", hint=f"known: {', '.join(known)}")
    return {"precision": known[dtype]}


def _optimizer(settings: Settings, facts: Facts) -> Facts:
    name = str(settings.get(f"{_ACTOR}optim.optimizer", "adamw"))
    if name.lower() not in _OPTIMIZERS:
        raise NoCounterpartError(f"{_ACTOR}optim.optimizer `{name}` has no counterpart in a plan",
                                 hint=f"known: {', '.join(_OPTIMIZERS)}")  # fmt: skip
    return {"workload.optimizer": _OPTIMIZERS[name.lower()]}


def _lora(settings: Settings, facts: Facts) -> Facts:
    """The adapters of peft on FSDP, those of Megatron-Bridge on Megatron-Core."""
    fsdp, fsdp_modules, core, core_modules = _LORA
    if _on_megatron(settings):
        rank, modules = settings.get(core, 0), settings.get(core_modules, ALL_OF_CORE)
        spec = known_model(str(settings.get(f"{_MODEL}path", "")))
        known = {**facts, **(facts_of_model(spec) if spec is not None else {})}
        return facts_of_core(rank, core_modules, modules, known) if rank else {}
    if not settings.get(fsdp):
        return {}
    modules = settings.get(fsdp_modules, "all-linear")
    words = {} if isinstance(modules, list) else {"all-linear": adapter_choices.BY_PEFT}  # peft takes no list of it
    return family.adapters(settings[fsdp], fsdp_modules, modules, "bf16", words)


def _prepared(document: Document, arguments: Arguments) -> Document:
    """The document without references; names the blocks that are not read."""
    found, open_texts = resolved(document)
    for path, text in open_texts.items():
        name = ".".join(path)
        arguments.doubt(name, f"`{text}` is set when it runs", document.line(path), document.name,
                        "give its value: --arg NAME=VALUE")  # fmt: skip
    model = found.at(("actor_rollout_ref", "model"))
    if isinstance(model, dict) and are_towers(model.get("exclude_modules")):  # the text is priced
        model["exclude_modules"] = None
    ranks = {"num_nodes": found.at(("trainer", "nnodes"), 1),
             "gpus_per_node": found.at(("trainer", "n_gpus_per_node"), 8)}  # fmt: skip
    arguments.ranks |= {name: count for name, count in ranks.items() if isinstance(count, int) and count > 0}
    arguments.by_tokens = found.at(("actor_rollout_ref", "actor", "use_dynamic_bsz")) is True
    blocks = {"rollout": ("actor_rollout_ref", "rollout"), "reference": ("actor_rollout_ref", "ref"),
              "critic": ("critic",), "rewards": ("reward_model",)}  # fmt: skip
    aside = [name for name, path in blocks.items() if found.at(path)]
    if found.at(("algorithm", "adv_estimator"), "gae") == "gae":
        arguments.notes.append("the critic is trained beside the actor: the actor alone is priced")
    fused = [name for name in ("use_liger", "use_fused_kernels") if found.at((*_MODEL.split(".")[:-1], name)) is True]
    if fused:
        arguments.notes.append(f"{', '.join(fused)}: priced as without")
    if aside:
        arguments.notes.append(f"not read: {', '.join(aside)}")
    forked = [name for name in found.data if not _BLOCKS.match(str(name))] if "actor_rollout_ref" in found.data else []
    if forked:
        names = ", ".join(map(str, forked))
        arguments.notes.append(f"{names}: of a program other than verl's: taken to change no step of the actor")
        found = replace(found, data={name: block for name, block in found.data.items() if name not in forked})
    return found


def _compared(facts: Facts) -> Compared:
    """Layouts of Megatron-LM; those of FSDP with the same ranks of a sequence."""
    if facts["zero"] < 2:
        return on_stack("megatron-core") if LORA in facts else Compared("megatron")
    return Compared("any", {"fix": {"pp": 1, "ep": 1, "tp": 1, "cp": facts["cp"]}, "stack": "torch-fsdp"})


READER = Reader(
    name="verl",
    framework="verl",
    version="0.7",
    commit="b178a3cd",
    kinds={
        **dict.fromkeys(_SAME, "int"), **dict.fromkeys(_WORDS, "str"), **dict.fromkeys(_LISTS, "any"),
        **dict.fromkeys((*_FLAGS, *_ON), "bool"), _ETP: "int", **dict.fromkeys(_ULYSSES, "int"),
        f"{_FSDP}fsdp_size": "int", f"{_FSDP}reshard_after_forward": "bool", f"{_FSDP}dtype": "str",
        f"{_MEGATRON}dtype": "str", **dict.fromkeys(_STRATEGY, "str"), _MICRO: "int", _DYNAMIC: "bool",
        _MICRO_OF_ALL: "int",
        _TOKENS: "int", _MINI: "int", _SAMPLES: "int", **dict.fromkeys(_LENGTHS, "int"), f"{_MODEL}path": "str",
        f"{_MODEL}enable_gradient_checkpointing": "bool", _LORA[0]: "int", _LORA[1]: "any", _LORA[2]: "int",
        _LORA[3]: "any", **{f"{_MODEL}{name}": "any" for name in (
            "tiled_mlp.enabled", "mtp.enable", "mtp.enable_train", "override_config.attention_dropout",
            "override_config.moe_config.freeze_moe_router", "override_config.attn_implementation")},
        f"{_ACTOR}optim.optimizer": "str", "trainer.nnodes": "int", "trainer.n_gpus_per_node": "int",
    },
    entries=(
        value("model_name", f"{_MODEL}path"), family.kernels(f"{_MODEL}override_config.attn_implementation"),
        reads(_LAYOUT, (*_STRATEGY, *_ARGUMENT, *_SHARDS, f"{_MODEL}path"), _layout),
        reads(("workload.seq_len",), _LENGTHS, _length),
        reads(("micro_batch", "workload.global_batch"), (_MICRO, _MICRO_OF_ALL, _DYNAMIC, _TOKENS, _MINI, _SAMPLES),
              _batch),
        reads(("precision",), (f"{_MEGATRON}dtype", f"{_FSDP}dtype"), _precision),
        reads(("workload.optimizer",), (f"{_ACTOR}optim.optimizer",), _optimizer),
        reads((LORA,), _LORA, _lora),
        reads(("num_gpus",), ("trainer.nnodes", "trainer.n_gpus_per_node"), lambda settings, facts: {}),
    ),
    reading=Reading(
        changes={
            rf"{_FSDP}offload_policy": "weights and states on the host",
            rf"{_ACTOR}optim\.override_optimizer_config(\..*)?": "another optimizer, or one on the host",
            rf"{_MEGATRON}(use_megatron_fsdp|dynamic_context_parallel|max_seqlen_per_dp_cp_rank)": "another layout",
            rf"{_MODEL}(override_config\.(?!.*(dropout|pdrop|_implementation)$).*|tiled_mlp\.enabled|external_lib|mtp\.enable(_train)?)":
                "another model or other layers than those of its path",
            rf"{_MODEL}enable_activation_offload": "saved activations on the host",
            rf"{_MODEL}(exclude_modules|lora_adapter_path)": "other adapters",
            rf"{_ACTOR}freeze_vision_tower": "a model of images",
        },
        harmless=(
            r"^(data|algorithm|trainer|critic|reward\w*|custom_reward\w*|global_profiler|transfer_queue|ray_\w+|hydra|"
            r"defaults|searchpath|async_training|rollout|actor_rollout_ref\.(rollout|ref|hybrid_engine|nccl_timeout|"
            r"model\.(?!override|tiled_mlp\.en|external|mtp\.en|exclude|enable_act|lora_ad|lora\.rank)|"
            r"model\.override_config.*(dropout|pdrop)$|"
            r"actor\.(?!megatron\.|fsdp_config\.|optim\.override|freeze)|"
            r"actor\.fsdp_config\.(?!offload_policy)|actor\.megatron\.(?!override_transformer|use_megatron_fsdp|dynamic|"
            r"max_seqlen)|actor\.megatron\.override_transformer_config\.(attention_backend|apply_rope_fusion|"
            r"\w*fusion\w*|deallocate_\w+|persist_\w+|moe_(router_dtype|permute_fusion|token_dispatcher_type|aux_loss_coeff|enable_deepep|"
            r"grouped_gemm|router_load\w*|shared_expert_overlap)|gradient_accumulation_fusion)))"
        ),
    ),
    document=from_script("verl.trainer", "actor_rollout_ref"),
    variables=True,
    prepared=_prepared,
    compared=_compared,
)  # fmt: skip
