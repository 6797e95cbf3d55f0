"""Commands of OpenRLHF that train by DeepSpeed: SFT, DPO, reward models, and the actor of PPO, in today's names and in
older ones.

Sources: OpenRLHF 3c3be623 (0.11), openrlhf/cli/train_{sft,dpo,rm,ppo_ray}.py (options, defaults),
utils/deepspeed/deepspeed_utils.py (the options of DeepSpeed), utils/deepspeed/deepspeed.py (accumulation). Older names:
its releases 0.5 to 0.8, cli/ and models/actor.py.
"""

from __future__ import annotations

import re
from typing import Any

from .. import adapter_choices
from ..argv import Arguments
from ..import_format import Compared, on_stack
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from . import commands, engine_files, preferences
from . import transformers_family as family
from .engine_files import DEEPSPEED
from .reader import Reader, noted, reads, value, whole_micro_batch

# Older name of an option, by which it is read -> its type, and its names in the programs of today.
_NAMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "pretrain": ("str", ("model.model_name_or_path", "actor.model_name_or_path")),
    "zero_stage": ("int", ("ds.zero_stage",)), "zpg": ("int", ("ds.zpg",)),
    "adam_offload": ("bool", ("ds.adam_offload",)), "overlap_comm": ("bool", ("ds.overlap_comm",)),
    "grad_accum_dtype": ("str", ("ds.grad_accum_dtype",)), "param_dtype": ("str", ("ds.param_dtype",)),
    "ds_tensor_parallel_size": ("int", ("ds.tensor_parallel_size",)),
    "ring_attn_size": ("int", ("ds.ring_attn_size",)), "attn_implementation": ("str", ("ds.attn_implementation",)),
    "packing_samples": ("bool", ("ds.packing_samples",)), "load_in_4bit": ("bool", ("ds.load_in_4bit",)),
    "lora_rank": ("int", ("ds.lora.rank",)), "target_modules": ("any", ("ds.lora.target_modules",)),
    "gradient_checkpointing": ("bool", ("model.gradient_checkpointing_enable",
                                        "actor.gradient_checkpointing_enable")),
    "micro_train_batch_size": ("int", ("train.micro_batch_size",)), "train_batch_size": ("int", ("train.batch_size",)),
    "max_len": ("int", ("data.max_len",)), "actor_num_nodes": ("int", ("actor.num_nodes",)),
    "actor_num_gpus_per_node": ("int", ("actor.num_gpus_per_node",)),
    "use_dynamic_batch": ("bool", ("train.dynamic_batch_enable",)),
    "train_max_tokens_per_gpu": ("int", ("train.max_tokens_per_gpu",)),
    "use_liger_kernel": ("bool", ("ds.use_liger_kernel",)),
}  # fmt: skip
_FROZEN = "freezing_actor_steps"
_ALONE = {"bf16": "bool", "flash_attn": "bool", "prompt_max_len": "int", "generate_max_len": "int", "optim": "str",
          _FROZEN: "int", preferences.LEARNS: "any", DEEPSPEED: "any"}  # fmt: skip
# The setting with the program that trains.
_PROGRAM = "program"
_OF_DEEPSPEED = ("zero_stage", "zpg", "adam_offload", "overlap_comm", "grad_accum_dtype", "ds_tensor_parallel_size")
# Sequences of a micro-batch and tokens of one, where no option states them.
_DEFAULTS = {"sft": (8, 2048), "dpo": (8, 512), "rm": (1, 512), "ppo": (4, 2048)}
_COMPILED = ("torch_compile", "deepcompile", "ds.deepcompile")
_PAIRS = {"dpo": preferences.COMPARED, "rm": preferences.VALUED}
_OTHER = {"kd": "a teacher beside the model that learns", "prm": "a reward model of steps, whose labels are tokens",
          "kto": "each answer is read beside an unmatched one, whose pass no gradient follows"}  # fmt: skip
# A program of OpenRLHF, or one of a fork with its options.
_COMMAND = commands.of_program(
    r"(openrlhf[./]cli[./]|(^|[\s./]))train_(sft|dpo|rm|kd|kto|prm|ppo|ppo_ray)(\.py)? ",
    [name for older in ("micro_train_batch_size", "zero_stage") for name in (older, *_NAMES[older][1])])
_PROGRAMS = re.compile(r"train_(\w+?)(_ray)?(\.py)?$")


def _names(*older: str) -> tuple[str, ...]:
    """The options of older names, with their names of today."""
    return tuple(name for each in older for name in (each, *_NAMES.get(each, ("", ()))[1]))


def _modernise(arguments: Arguments) -> None:
    """Takes the older names, and what they state of DeepSpeed as the JSON that OpenRLHF makes of it."""
    given = arguments.settings
    if not any(name in given for older, (_, names) in _NAMES.items() for name in (older, *names)):
        return
    # param_dtype came in the place of bf16, and attn_implementation in that of flash_attn.
    today = "param_dtype" in given or any(name in given for _, names in _NAMES.values() for name in names)
    for older, (_, names) in _NAMES.items():
        for name in names:
            if name in given:
                arguments.replace(name, {older: given[name]})
    found = _PROGRAMS.search(arguments.program)
    given[_PROGRAM] = kind = found[1] if found else "sft"
    if kind in _OTHER:
        arguments.gap(_PROGRAM, _OTHER[kind])
    if kind == "ppo" and arguments.program.split(".")[-1].startswith("train_ppo_ray"):
        sizes = {"num_nodes": given.get("actor_num_nodes", 1), "gpus_per_node": given.get("actor_num_gpus_per_node", 8)}
        arguments.ranks = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if not today and not given.get("flash_attn") and not (kind == "ppo" and given.get("packing_samples")):
        arguments.gap("flash_attn", "is off: this attention keeps all scores, and no plan does")
    if not today and not given.get("bf16"):
        arguments.gap("bf16", "is off: weights are trained in the type of their checkpoint")
    if kind in _PAIRS:
        given[preferences.LEARNS] = _PAIRS[kind]
    if fused := [name for name in ("use_liger_kernel", *_COMPILED) if given.get(name)]:
        arguments.notes.append(f"{', '.join(fused)}: priced as without")
    if given.get(_FROZEN) == -1:  # the default: in no step
        del given[_FROZEN]
    where = next((name for name in _OF_DEEPSPEED if name in arguments.lines), "")
    arguments.add(engine_files.inside(_engine(given), arguments.files.get(where, ""), arguments.lines.get(where, 0)),
                  arguments.files.get(where, ""))  # fmt: skip


def _engine(given: Settings) -> dict[str, Any]:
    """The options of DeepSpeed (deepspeed_utils.py, get_train_ds_config)."""
    zero: dict[str, Any] = {"stage": given.get("zero_stage", 2), "zero_hpz_partition_size": given.get("zpg", 1),
                            "overlap_comm": bool(given.get("overlap_comm"))}  # fmt: skip
    if given.get("adam_offload"):
        zero["offload_optimizer"] = {"device": "cpu"}
    out: dict[str, Any] = {"zero_optimization": zero,
                           "tensor_parallel": {"autotp_size": given.get("ds_tensor_parallel_size", 1)}}  # fmt: skip
    dtype = given.get("grad_accum_dtype")
    return out | ({"data_types": {"grad_accum_dtype": dtype}} if dtype else {})


def _ring(settings: Settings, facts: Facts) -> Facts:
    size = settings.get("ring_attn_size", 1)
    return {"cp": size} | ({"cp_algorithm": "ring"} if size > 1 else {})


def _length(settings: Settings, facts: Facts) -> Facts:
    """The longest sequence: of a prompt and its answer, where both have limits."""
    parts = [settings.get(name, 1024) for name in ("prompt_max_len", "generate_max_len")]
    kind = settings.get(_PROGRAM, "sft")
    whole = sum(parts) if kind == "ppo" and {"prompt_max_len", "generate_max_len"} & settings.keys() else None
    out: Facts = {"workload.seq_len": whole or settings.get("max_len") or _DEFAULTS.get(kind, _DEFAULTS["sft"])[1]}
    told = [] if settings.get("packing_samples") else ["packing_samples is off: every sequence is priced at its full "
                                                       "length"]  # fmt: skip
    if kind == "ppo":
        told.append("not read: generation, reference, critic and rewards; the actor is priced, on answers at their "
                    "longest")  # fmt: skip
    return out | {"notes": [*facts.get("notes", []), *told]}


def _batch(settings: Settings, facts: Facts) -> Facts:
    """Sequences of an optimizer step over all ranks, and of a micro-batch on one."""
    batch, length = settings.get("train_batch_size", 128), facts.get("workload.seq_len", 1)
    if settings.get("use_dynamic_batch"):  # seqlen_balancing.py: the ranks of a sequence share its tokens
        tokens = settings.get("train_max_tokens_per_gpu", 16192) * facts["cp"] * facts["tp"]
        ranks = settings.get("actor_num_nodes", 1) * settings.get("actor_num_gpus_per_node", 8)
        size = whole_micro_batch(tokens // length, batch, ranks // (facts["cp"] * facts["tp"]))
        told = f"use_dynamic_batch: {tokens} tokens are priced as {size} sequences of {length}"
        return {"micro_batch": size, "workload.global_batch": batch} | noted(facts, told)
    default = _DEFAULTS.get(settings.get(_PROGRAM, "sft"), _DEFAULTS["sft"])[0]
    return {"micro_batch": settings.get("micro_train_batch_size", default),
            "workload.global_batch": batch}  # fmt: skip


def _recompute(settings: Settings, facts: Facts) -> Facts:
    return {"recompute": {"mode": "full" if settings.get("gradient_checkpointing") else "none"}}


def _lora(settings: Settings, facts: Facts) -> Facts:
    if not settings.get("lora_rank"):
        return {}
    base = family.base_dtype(settings.get("load_in_4bit"), None)
    return family.adapters(settings["lora_rank"], "target_modules", settings.get("target_modules", "all-linear"), base,
                           {"all-linear": adapter_choices.BY_PEFT})  # fmt: skip


def _precision(settings: Settings, facts: Facts) -> Facts:
    return {"precision": "fp16" if settings.get("param_dtype") == "fp16" else "bf16"}


def _optimizer(settings: Settings, facts: Facts) -> Facts:
    if (name := settings.get("optim", "adam")) != "adam":
        raise NoCounterpartError(f"optim `{name}` over shards of weights has no counterpart in a plan")
    return {"workload.optimizer": "adamw"}


def _compared(facts: Facts) -> Compared:
    """Layouts that DeepSpeed plans; with a ring, adapters or pairs any of its degrees on its stack."""
    if facts["cp"] == 1 and preferences.LEARNS not in facts and "workload.lora" not in facts:
        return Compared("deepspeed")
    degrees = {"pp": 1, "ep": 1, "tp": facts["tp"], "cp": facts["cp"]}
    return Compared("any", {**on_stack("deepspeed").fields, "fix": degrees | preferences.fixed(facts)})


READER = Reader(
    name="openrlhf",
    framework="OpenRLHF",
    version="0.11",
    commit="3c3be623",
    kinds={**_ALONE, **{name: kind for older, (kind, names) in _NAMES.items() for name in (older, *names)}},
    entries=(
        family.PLAIN,
        reads(("zero", "shard", "dp", "offload", "tp"), (DEEPSPEED, *_names(*_OF_DEEPSPEED)), family.sharded),
        reads(("cp", "cp_algorithm"), _names("ring_attn_size"), _ring),
        value("model_name", "pretrain", also=_NAMES["pretrain"][1]),
        reads(("workload.seq_len",), _names("max_len", "prompt_max_len", "generate_max_len", "packing_samples"),
              _length),
        reads(("micro_batch", "workload.global_batch"),
              _names("micro_train_batch_size", "train_batch_size", "use_dynamic_batch", "train_max_tokens_per_gpu"),
              _batch),
        reads(("precision",), _names("bf16", "param_dtype"), _precision),
        reads(("recompute", "recompute_modules", "recompute_layers"), _names("gradient_checkpointing"), _recompute),
        reads(("workload.optimizer",), ("optim",), _optimizer),
        family.kernels("attn_implementation"),
        reads(("workload.lora",), _names("lora_rank", "target_modules", "load_in_4bit"), _lora),
        preferences.entry(),
    ),
    reading=Reading(
        changes={
            r"ref_pretrain|ref\.model_name_or_path": "a reference of its own",
            r"freezing_actor_steps|actor\.freeze_\w+": "a part of the model that learns",
            r"pretrain_data": "sequences of another kind beside the answers",
        },
        harmless=(
            r"^((torch_|ds\.deep|deep)compile$|full_determinism|local_rank|ema_beta|no_advantage|enable_vllm|"
            r"(vllm|ref|reward|critic|rollout|algo|logger|ckpt|eval|adam|muon|data)[._]|train\.(?!micro|batch|dynamic)|"
            r"actor[._](?!num|grad|model|freez)|(micro_)?rollout_|colocate_|enforce_eager|enable_(prefix|ema)|"
            r"n_samples|beta$|ipo$|label_smoothing|nll_loss|aux_loss|init_kl|kl_|use_kl|use_(wandb|tensorboard|ms)|"
            r"advantage_|gamma|lambd|eps_clip|value_clip|normalize_|reward_|remote_rm|apply_chat|input_|output_key|"
            r"label_key|chosen_key|rejected_key|prompt_(data|key|split)|multiturn|pretrain_(mode|split)|max_(norm|epochs|"
            r"samples|ckpt)|num_episodes|ref_(offload|reward)|async_|agent_func|dynamic_filtering|overlong|"
            r"lora_(alpha|dropout)|ds\.(lora\.(alpha|dropout)|ring_attn_head_stride|use_universal|experts_impl|"
            r"value_head|enable_sleep)|gradient_checkpointing_use_reentrant|model\.(?!model_name|gradient_checkpointing_e)|"
            r"l2|ptx_coef|learning_rate|temperature|top_p|perf|value_head|freezing_critic|actor_(learning|init)|"
            r"deepspeed_enable_sleep|universal_ckpt|ring_head_stride|use_ds_universal_ckpt|max_tokens_per_gpu)"
        ),
        modernise=_modernise,
        forked="OpenRLHF",
    ),
    prepared=commands.prepared,
    document=commands.from_command("openrlhf.cli.train_*", _COMMAND),
    commands=True,
    compared=_compared,
)  # fmt: skip
