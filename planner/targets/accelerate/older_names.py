"""Reads options of accelerate files that no plan writes: its DeepSpeed plugin, FSDP1, options of TPUs.

Sources: accelerate 1.15.0, commands/launch.py, utils/dataclasses.py (DeepSpeedPlugin, FullyShardedDataParallelPlugin).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....errors import FieldProblem
from ..argv import Arguments
from ..option_lists import Option

PLUGIN = "deepspeed_config."
_STAGE = f"{PLUGIN}zero_stage"
_FILE = f"{PLUGIN}deepspeed_config_file"
# Default stage of DeepSpeedPlugin.
_DEFAULT_STAGE = 2
_KINDS = {
    "zero_stage": "int", "gradient_accumulation_steps": "int", "offload_optimizer_device": "str",
    "offload_param_device": "str", "deepspeed_config_file": "str", "gradient_clipping": "any",
    "zero3_init_flag": "any", "zero3_save_16bit_model": "any", "deepspeed_multinode_launcher": "any",
    "deepspeed_hostfile": "any", "offload_optimizer_nvme_path": "any", "offload_param_nvme_path": "any",
    "deepspeed_exclusion_filter": "any", "deepspeed_inclusion_filter": "any", "deepspeed_moe_layer_cls_names": "any",
}  # fmt: skip
OLDER: Mapping[str, Option] = {f"{PLUGIN}{name}": Option(f"{PLUGIN}{name}", kind) for name, kind in _KINDS.items()}
CHANGES: Mapping[str, str] = {
    r"megatron_lm_config\..*": "the engine is Megatron-LM: give its script as megatron-args",
    r"use_cpu": "trains on CPUs",
    r"fp8_config\.opt_level": "states in fp8",
}
HARMLESS = (
    r"^fsdp_config\.fsdp_(auto_wrap_policy|backward_prefetch(_policy)?|cpu_ram_efficient_loading|forward_prefetch|"
    r"limit_all_gathers|min_num_params|state_dict_type|sync_module_states|transformer_layer_cls_to_wrap|"
    r"use_orig_params)$|^(aws|ec2|sagemaker|tpu|downcast|command|"
    r"fp8_config|dynamo|ipex|mpirun|mixed_precision|same_network|enable_cpu|num_cpu|deepspeed_fields|main_process|"
    r"machine_rank|training_arguments)"
)


def modernise(arguments: Arguments) -> None:
    """Reads the plugin's JSON, and names options that no plan holds."""
    given = arguments.settings
    kind = str(given.get("distributed_type", "")).upper()
    if kind == "DEEPSPEED":
        _plugin(arguments)
    elif kind == "MEGATRON_LM":
        _gap(arguments, "distributed_type", "the engine is Megatron-LM: give its script as megatron-args")
    elif kind == "NO":
        if given.get("num_processes", 1) != 1:
            count = given["num_processes"]
            arguments.notes.append(f"distributed_type NO starts one process, whatever num_processes says ({count})")
        given["num_processes"] = 1
    if str(given.get("use_cpu", False)).lower() in ("true", "yes"):
        _gap(arguments, "use_cpu", "trains on CPUs")
        given.pop("use_cpu")
    if any("dynamo" in name and str(arguments.settings[name]).upper() != "NO" for name in given):
        arguments.notes.append("dynamo_config: the compiled model is priced as the plain one")


def _gap(arguments: Arguments, name: str, text: str) -> None:
    arguments.gaps.append(FieldProblem(text, file=arguments.files.get(name, ""), line=arguments.lines.get(name, 0),
                                       field=name))  # fmt: skip


def _plugin(arguments: Arguments) -> None:
    """The ZeRO stage, from the YAML or from the JSON that it names."""
    given = arguments.settings
    named = given.pop(_FILE, None)
    blocks = _json(arguments.texts)
    if blocks:
        _from_json(arguments, blocks)
    elif named is not None:
        _gap(arguments, _FILE, f"the ZeRO stage is in {named}: give it as a further FILE")
        return
    if _STAGE not in given:
        given[_STAGE] = _DEFAULT_STAGE
        arguments.notes.append(f"deepspeed_config has no zero_stage: {_DEFAULT_STAGE} is accelerate's default")
    states, weights = (f"{PLUGIN}offload_{part}_device" for part in ("optimizer", "param"))
    if (device := str(given.get(states, "none")).lower()) == "nvme":
        _gap(arguments, states, "keeps states on nvme")
    # Weights on the host go with the states of ZeRO-3: the technique cpu-offload.
    planned = ("none", "cpu") if device == "cpu" and str(given[_STAGE]) == "3" else ("none",)
    if (device := str(given.get(weights, "none")).lower()) not in planned:
        _gap(arguments, weights, f"keeps weights on {device}")
        given.pop(weights)


def _json(texts: Mapping[str, str]) -> dict[str, Any]:
    for text in texts.values():
        if '"zero_optimization"' in text:
            data = json.loads(text)
            return data if isinstance(data, dict) else {}
    return {}


def _from_json(arguments: Arguments, blocks: Mapping[str, Any]) -> None:
    """The options of DeepSpeed's JSON that the plugin also has."""
    zero = blocks.get("zero_optimization", {})
    read = {
        _STAGE: zero.get("stage", 0),
        f"{PLUGIN}offload_optimizer_device": zero.get("offload_optimizer", {}).get("device"),
        f"{PLUGIN}offload_param_device": zero.get("offload_param", {}).get("device"),
        "training_arguments.per_device_train_batch_size": blocks.get("train_micro_batch_size_per_gpu"),
        "training_arguments.gradient_accumulation_steps": blocks.get("gradient_accumulation_steps"),
    }
    for name, value in read.items():
        if value not in (None, "auto"):
            arguments.settings[name] = value
    for name in ("bf16", "fp16"):
        if blocks.get(name, {}).get("enabled") is True:
            arguments.settings["mixed_precision"] = name
