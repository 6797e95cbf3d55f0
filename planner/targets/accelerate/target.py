"""Hugging Face accelerate: FSDP2 YAML with parallelism_config."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import CP_ALGORITHMS
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, only
from ..base import Target, Trainer
from ..launchers.base import Job, comment
from ..option_lists import OptionList
from ..options import Entry, Facts, Settings, Table, always, number, word
from ..setup import Setup

_N = "accelerate"


def _whole_activations(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (columns["sequence_parallel"] == 0))


def _sharded(columns: Columns, problem: Problem) -> Mask:
    # FSDP2 on a mesh with tp alone crashes (accelerate 3798), and cp ranks always shard parameters.
    return np.asarray((columns["zero"] > 0) | ((columns["tp"] == 1) & (columns["cp"] == 1)))


def _someone_to_shard_over(columns: Columns, problem: Problem) -> Mask:
    # FSDP2 needs a mesh axis of its own, dp_shard or cp above 1; ParallelismConfig refuses replicas of tp or cp alone.
    alone = (columns["shard"] == 1) & ((columns["cp"] == 1) | (columns["dp"] > 1))
    return np.asarray((columns["zero"] == 0) | ~alone)


_P, _F, _T = "parallelism_config.parallelism_config_", "fsdp_config.fsdp_", "training_arguments."
_TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_CPU", "XLA", "TP")
_OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw-8bit": "adamw_8bit", "sgd": "sgd"}


def _shards_write(setup: Setup) -> Settings:
    layout = setup.layout
    if not layout.zero:
        return {"distributed_type": "MULTI_GPU" if layout.num_gpus > 1 else "NO"}
    return {
        "distributed_type": "FSDP", f"{_F}version": 2, f"{_F}reshard_after_forward": layout.zero == 3,
        f"{_F}auto_wrap_policy": "TRANSFORMER_BASED_WRAP", f"{_F}state_dict_type": "SHARDED_STATE_DICT",
        f"{_P}dp_replicate_size": layout.dp // layout.shard, f"{_P}dp_shard_size": layout.shard,
    }  # fmt: skip


def _shards_read(settings: Settings, facts: Facts) -> Facts:
    if settings.get("distributed_type") != "FSDP":
        return {"zero": 0}
    reshard = settings.get(f"{_F}reshard_after_forward", True)
    if settings.get(f"{_F}version", 1) == 1:  # FSDP1 says it by name
        strategy = str(settings.get(f"{_F}sharding_strategy", "FULL_SHARD")).upper()
        return {"zero": {"SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0}.get(strategy, 3)}
    out: Facts = {"zero": 3 if reshard in (True, "true", "True") else 2}
    replicas, shard = settings.get(f"{_P}dp_replicate_size", 1), settings.get(f"{_P}dp_shard_size")
    return out | {"replicas": replicas} | ({} if shard is None else {"dp": replicas * shard})


def _context_write(setup: Setup) -> Settings:
    if setup.layout.cp == 1:
        return {}
    strategy = {"allgather": "allgather", "ring": "alltoall"}[CP_ALGORITHMS[setup.layout.cp_algorithm]]
    return {f"{_P}cp_size": setup.layout.cp, f"{_P}cp_backend": "torch", f"{_P}cp_comm_strategy": strategy}


def _context_read(settings: Settings, facts: Facts) -> Facts:
    if (heads := settings.get(f"{_P}sp_size", 1)) > 1:
        return {"cp": heads, "cp_algorithm": "ulysses"}
    size = settings.get(f"{_P}cp_size", 1)
    strategy = settings.get(f"{_P}cp_comm_strategy", "allgather")
    return {"cp": size} | ({"cp_algorithm": "ring" if strategy == "alltoall" else "allgather"} if size > 1 else {})


def _recompute_write(setup: Setup) -> Settings:
    if setup.recompute == "none":
        return {}
    return {f"{_F}activation_checkpointing": True} if setup.layout.zero else {f"{_T}gradient_checkpointing": True}


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    full = settings.get(f"{_F}activation_checkpointing") or settings.get(f"{_T}gradient_checkpointing")
    return {"recompute": {"mode": "full" if full in (True, "true", "True") else "none"}}


def _batch_write(setup: Setup) -> Settings:
    return {f"{_T}per_device_train_batch_size": setup.layout.micro_batch,
            f"{_T}gradient_accumulation_steps": setup.num_micro_batches}  # fmt: skip


def _batch_read(settings: Settings, facts: Facts) -> Facts:
    size, steps = settings.get(f"{_T}per_device_train_batch_size"), settings.get(f"{_T}gradient_accumulation_steps", 1)
    return {} if size is None else {"micro_batch": size, "batch_per_rank": size * steps}


def _whole(field: str, value: Any) -> Entry:
    """A field that accelerate has no option for."""
    return Entry((field,), (), lambda setup: {}, lambda given, facts: {field: value})


TABLE = Table((
    always(("compute_environment", "LOCAL_MACHINE"), ("main_training_function", "main"), ("rdzv_backend", "static")),
    number("num_gpus", "num_processes", lambda s: s.layout.num_gpus),
    number("num_nodes", "num_machines", lambda s: s.num_nodes),
    word("precision", "mixed_precision", lambda s: s.precision, {"bf16": "bf16", "fp16": "fp16", "fp32": "no"},
         also={"fp8": "fp8"}),
    number("tp", f"{_P}tp_size", lambda s: s.layout.tp, 1),
    Entry(("cp", "cp_algorithm"),
          tuple(_P + name for name in ("cp_size", "cp_backend", "cp_comm_strategy", "sp_size")),
          _context_write, _context_read),
    Entry(("zero", "shard", "dp"),
          ("distributed_type", *(_F + name for name in ("version", "reshard_after_forward", "auto_wrap_policy",
           "state_dict_type", "sharding_strategy")), f"{_P}dp_replicate_size", f"{_P}dp_shard_size"),
          _shards_write, _shards_read),
    Entry(("recompute", "recompute_modules", "recompute_layers"),
          (f"{_F}activation_checkpointing", f"{_T}gradient_checkpointing"), _recompute_write, _recompute_read),
    Entry(("micro_batch", "workload.global_batch"),
          (f"{_T}per_device_train_batch_size", f"{_T}gradient_accumulation_steps"), _batch_write, _batch_read),
    word("workload.optimizer", f"{_T}optim", lambda s: s.workload.optimizer, _OPTIMIZERS,
         also={"adamw_torch": "adamw", "adamw_bnb_8bit": "adamw-8bit"}),
    _whole("pp", 1), _whole("vpp", 1), _whole("schedule", "1f1b"), _whole("ep", 1), _whole("etp", 1),
    _whole("sequence_parallel", False),
    Entry(("offload",), (f"{_F}offload_params",), lambda s: {}, lambda given, facts: {"offload": "none"}),
))  # fmt: skip


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """accelerate.yaml, and what the YAML cannot say as TrainingArguments."""
    settings = TABLE.write(setup)
    arguments = {key.removeprefix(_T): value for key, value in settings.items() if key.startswith(_T)}
    if setup.precision in ("bf16", "fp16"):
        arguments[setup.precision] = True
    note = ("training_arguments.json holds the rest of the plan: HfArgumentParser.parse_json_file, or your own loop.",
            f"Sequences of {setup.workload.seq_len} tokens.")  # fmt: skip
    return Job(
        name=f"{setup.model.name}-accelerate", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node,
        files={"accelerate.yaml": comment((*header, *note)) + _yaml(settings),
               "training_arguments.json": json.dumps(arguments, indent=2, sort_keys=True) + "\n"},
        command='accelerate launch --config_file "$here/accelerate.yaml" --machine_rank "$NODE_RANK" \\\n'
                '  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" "$TRAIN_SCRIPT"',
        needs={"TRAIN_SCRIPT": "your training script (transformers.Trainer or accelerate.Accelerator)"},
        example='"$PWD/training_arguments.json"',
    )  # fmt: skip


def _yaml(settings: Settings) -> str:
    """Top-level keys, then the blocks, in alphabetical order as accelerate saves them."""
    lines: list[str] = []
    blocks: dict[str, dict[str, Any]] = {}
    for key, value in sorted(settings.items()):
        block, dot, name = key.partition(".")
        if not dot:
            lines.append(f"{key}: {json.dumps(value)}\n")
        elif block != "training_arguments":
            blocks.setdefault(block, {})[name] = value
    for block, values in sorted(blocks.items()):
        lines += [f"{block}:\n", *(f"  {name}: {json.dumps(value)}\n" for name, value in values.items())]
    return "".join(lines)


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """What accelerate's loader lets pass."""
    out = []
    sizes = {name: settings.get(f"{_P}{name}_size", 1) for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    product, ranks = math.prod(sizes.values()), settings.get("num_processes")
    fsdp = settings.get("distributed_type") == "FSDP"
    if any(name.startswith(_P) for name in settings):
        spelled = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != 1) or "1"
        if ranks is not None and product != ranks:
            out.append(("num_processes", f"{spelled} = {product}, but num_processes is {ranks}"))
        if not fsdp or settings.get(f"{_F}version", 1) != 2:
            out.append(("distributed_type", "parallelism_config needs distributed_type FSDP and fsdp_version 2"))
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        out.append((f"{_P}sp_size", "context (cp) and sequence parallelism (sp) exclude one another"))
    if fsdp and sizes["tp"] > 1 and sizes["dp_shard"] * sizes["cp"] == 1:
        out.append((f"{_P}tp_size", "tp alone crashes FSDP2: dp_shard_size or cp_size must be above 1"))
    bad = [name for name, size in sizes.items() if size < 1]
    out += [(f"{_P}{name}_size", f"`{sizes[name]}` is not 1 or more") for name in bad]
    if (given := settings.get("distributed_type")) not in (None, *_TYPES):
        out.append(("distributed_type", f"`{given}` is none of {', '.join(_TYPES)}"))
    return out


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """What of the model and its training accelerate cannot express."""
    reasons = {
        f"workload.optimizer: TrainingArguments has no {workload.optimizer}": workload.optimizer not in _OPTIMIZERS,
        "workload.lora: adapters belong to your script (peft)": workload.lora is not None,
        "workload.expert_capacity_factor: it has no capacity of experts": model.capacity_factor is not None,
        "workload.trains_layers: frozen layers belong to your script": workload.trains_layers is not None,
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


TARGET = Target(
    _N,
    "accelerate (FSDP2, parallelism_config)",
    "torch-fsdp",
    "accelerate 16cb6eb8 (2026-07-24), src/accelerate/parallelism_config.py and commands/launch.py",
    rules=(
        only(_N, "pp", (1,), "accelerate has no pipeline (pp {pp})"),
        only(_N, "ep", (1,), "accelerate has no expert parallelism (ep {ep})"),
        only(_N, "etp", (1,), "accelerate has no expert-tensor parallelism (etp {etp})"),
        only(_N, "cp_algorithm", ("ring", "allgather"), "accelerate's context parallelism has no {algorithm}"),
        Rule(f"{_N}: sequence_parallel", ("tp", "sequence_parallel"), _whole_activations,
             "the tensor-parallel plans of transformers keep activations whole: no sequence parallelism with tp {tp}"),
        Rule(f"{_N}: replicas", ("tp", "cp", "zero"), _sharded,
             "without sharding (z0) accelerate runs plain data parallelism only, not tp {tp} or cp {cp}"),
        Rule(f"{_N}: shards", ("cp", "dp", "zero", "shard"), _someone_to_shard_over,
             "FSDP2 needs data-parallel ranks to shard over: shard {shard} of dp {dp} with tp {tp}, cp {cp}"),
        only(_N, "zero", (0, 2, 3), "FSDP2 shards gradients and weights; optimizer alone (z1) is not an option"),
        only(_N, "recompute", ("none", "full"), "fsdp_activation_checkpointing is all layers or none"),
        only(_N, "recompute_layers", (0,), "fsdp_activation_checkpointing is all layers or none"),
        only(_N, "offload", ("none",), "fsdp_offload_params also moves the weights, which this plan keeps on the GPU"),
        only(_N, "precision", ("bf16", "fp16", "fp32"), "its fp8 recipes are not in the YAML"),
    ),
    trainer=Trainer("accelerate", lambda options: TABLE, job, cannot, conflicts=conflicts),
)
