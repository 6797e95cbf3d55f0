"""Reads options of accelerate files that no plan writes: its DeepSpeed plugin, FSDP1, options of TPUs.

Sources: accelerate 1.15.0, commands/launch.py, utils/dataclasses.py (DeepSpeedPlugin, FullyShardedDataParallelPlugin).
"""

from __future__ import annotations

from collections.abc import Mapping

from ....errors import FieldProblem
from ..argv import Arguments
from ..cpu_offload import FACT
from ..deepspeed.compression import without_rounding
from ..deepspeed.not_read import PRECISION_OPEN, STAGE_3_ALONE
from ..deepspeed.target import CONFIG as DEEPSPEED
from ..option_lists import Option, option_list
from ..reading import read_facts

PLUGIN = "deepspeed_config."
_STAGE = f"{PLUGIN}zero_stage"
# The option that names DeepSpeed's JSON; the facts of the JSON where it is given beside the YAML.
FILE = f"{PLUGIN}deepspeed_config_file"
_OF_JSON = ("zero", "offload", FACT, "tp", "cp", "cp_algorithm", "workload.optimizer", "micro_batch",
            "workload.global_batch", "batch_per_rank", "dp_by_batch", "accumulation")  # fmt: skip
# Default stage of DeepSpeedPlugin.
_DEFAULT_STAGE = 2
_KINDS = {
    "zero_stage": "int", "gradient_accumulation_steps": "int", "offload_optimizer_device": "str",
    "offload_param_device": "str", "deepspeed_config_file": "str", "gradient_clipping": "any",
    "zero3_init_flag": "any", "zero3_save_16bit_model": "any", "deepspeed_multinode_launcher": "any",
    "deepspeed_hostfile": "any", "offload_optimizer_nvme_path": "any", "offload_param_nvme_path": "any",
    "deepspeed_exclusion_filter": "any", "deepspeed_inclusion_filter": "any", "deepspeed_moe_layer_cls_names": "any",
}  # fmt: skip
# Keys of fsdp_config without their prefix, which accelerate adds (commands/launch.py, _validate_launch_command).
_BLOCK = "fsdp_config."
_BARE = ("version", "sharding_strategy", "reshard_after_forward", "activation_checkpointing", "offload_params",
         "state_dict_type", "auto_wrap_policy", "backward_prefetch", "backward_prefetch_policy", "forward_prefetch",
         "cpu_ram_efficient_loading", "limit_all_gathers", "min_num_params", "sync_module_states",
         "transformer_layer_cls_to_wrap", "use_orig_params")  # fmt: skip
# accelerate 1.0 to 1.9, commands/launch.py; the same degree today.
_TP, _TP_TODAY = "tp_config.tp_size", "parallelism_config.parallelism_config_tp_size"
OLDER: Mapping[str, Option] = {
    name: Option(name, kind) for name, kind in (*((f"{PLUGIN}{name}", kind) for name, kind in _KINDS.items()),
                                                *((f"{_BLOCK}{name}", "any") for name in _BARE),
                                                (_TP, "int"))}  # fmt: skip
CHANGES: Mapping[str, str] = {
    r"megatron_lm_config\..*": "the engine is Megatron-LM: give its script as megatron-args",
    r"use_cpu": "trains on CPUs",
    r"fsdp_config\.fsdp_activation_checkpointing_offload": "saved activations on the host",
}
# Regular expression of options without an entry -> their effect on layout, batch, price or memory.
PRICES: Mapping[str, str] = {
    r"fsdp_config\.fsdp_activation_checkpointing_offload": "saved activations on the host",
    r"(dynamo_config|training_arguments\.torch_compile\w*)(\..*)?": "compiled kernels",
    r"(deepspeed_config|megatron_lm_config|parallelism_config\.parallelism_config_sp_\w+|training_arguments\.(deepspeed|fsdp|fsdp_config|parallelism_config))(\..*)?":
        "another sharding",
    r"training_arguments\.(activation|gradient)_checkpointing": "another recomputation",
    r"training_arguments\.auto_find_batch_size": "a batch that follows the memory",
    r"fp8_config(\..*)?|training_arguments\.(fp16|tf32)": "another precision",
    r"training_arguments\.(use_liger_kernel|liger_kernel_config|full_determinism)": "other kernels",
    r"training_arguments\.optim_(args|target_modules)": "another optimizer",
    r"training_arguments\.(ddp_(backend|bucket_cap_mb|static_graph)|torch_empty_cache_steps)":
        "other messages or buffers",
    r"(training_arguments\.)?use_cpu": "trains on CPUs",
}  # fmt: skip
HARMLESS = (
    # Keys of DeepSpeed's own JSON, which accelerate passes to no one (commands/launch.py).
    r"^deepspeed_config\.(overlap_comm|contiguous_gradients|reduce_scatter|\w+_bucket_size|steps_per_print)$|"
    r"^fsdp_config\.fsdp$|^fsdp_config\.fsdp_(auto_wrap_policy|backward_prefetch(_policy)?|cpu_ram_efficient_loading|forward_prefetch|"
    r"limit_all_gathers|min_num_params|state_dict_type|sync_module_states|transformer_layer_cls_to_wrap|"
    r"use_orig_params)$|^(aws|ec2|sagemaker|tpu|downcast|command|"
    r"fp8_config|dynamo|ipex|mpirun|mixed_precision|same_network|enable_cpu|num_cpu|deepspeed_fields|main_process|"
    r"max_restarts|rdzv_conf|image_uri|region|hostfile|env$|"
    r"deepspeed_(hostfile|multinode|inclusion|exclusion|moe_layer)|gradient_clipping$|use_xpu$|"
    r"machine_rank|training_arguments)"
)


def modernise(arguments: Arguments) -> None:
    """Reads the plugin's JSON, and names options that no plan holds."""
    given = arguments.settings
    for name in [name for name in _BARE if f"{_BLOCK}{name}" in given]:
        arguments.replace(f"{_BLOCK}{name}", {f"{_BLOCK}fsdp_{name}": given[f"{_BLOCK}{name}"]})
    if _TP in given:
        arguments.replace(_TP, {_TP_TODAY: given[_TP]})
    kind = str(given.get("distributed_type", "")).upper()
    if kind == "DEEPSPEED":
        _plugin(arguments)
    elif kind == "MEGATRON_LM":
        arguments.gap("distributed_type", "the engine is Megatron-LM: give its script as megatron-args")
    elif kind in ("MULTI_CPU", "TPU", "XLA"):
        arguments.gap("distributed_type", f"trains on {'CPUs' if kind == 'MULTI_CPU' else 'TPUs'}")
    elif kind == "NO":
        if given.get("num_processes", 1) != 1:
            count = given["num_processes"]
            arguments.notes.append(f"distributed_type NO starts one process, whatever num_processes says ({count})")
        given["num_processes"] = 1
    ranks, machines = (given.get(name, 1) for name in ("num_processes", "num_machines"))
    if kind != "NO" and type(ranks) is int and type(machines) is int and machines > 1 and ranks % machines:
        arguments.problems.append(FieldProblem(
            f"{ranks} counts the processes of all machines, and is no multiple of num_machines {machines}",
            "num_processes", arguments.files.get("num_processes", ""), arguments.lines.get("num_processes", 0),
            f"num_processes: {machines * 8} starts 8 on each"))  # fmt: skip
    if str(given.get("use_cpu", False)).lower() in ("true", "yes"):
        if kind in ("", "NO"):
            arguments.gap("use_cpu", "trains on CPUs")
        else:  # accelerate 1.15, commands/launch.py and utils/launch.py: only the launcher of one process obeys it
            arguments.notes.append(f"use_cpu has no effect beside distributed_type {kind}: the ranks are on GPUs")
        given.pop("use_cpu")
    block = given.get("fp8_config")
    if isinstance(block, Mapping) and "O2" in (block.get("opt_level"), block.get("optimization_level")) and str(
            block.get("backend", "MSAMP")).upper() == "MSAMP":  # fmt: skip
        arguments.gap("fp8_config", "states in fp8")
    if any("dynamo" in name and str(arguments.settings[name]).upper() != "NO" for name in given):
        arguments.notes.append("dynamo_config: the compiled model is priced as the plain one")


def _plugin(arguments: Arguments) -> None:
    """The ZeRO stage, from the YAML or from the JSON that it names."""
    given = arguments.settings
    own = option_list("deepspeed")[0].options
    aside = [name for name in arguments.unknown if name.removeprefix(PLUGIN).partition(".")[0] in own]
    if aside:
        arguments.unknown = {name: line for name, line in arguments.unknown.items() if name not in aside}
        arguments.notes.append(f"{', '.join(aside)}: of DeepSpeed's JSON, accelerate passes over them in its YAML")
    named = given.pop(FILE, None)
    path = next((path for path, text in arguments.texts.items() if '"zero_optimization"' in text), None)
    if path is not None:
        _read_json(arguments, path)
        return
    if named is not None:
        arguments.gap(FILE, f"the ZeRO stage is in {named}: give it as a further FILE")
        return
    if _STAGE not in given:
        given[_STAGE] = _DEFAULT_STAGE
        arguments.notes.append(f"deepspeed_config has no zero_stage: {_DEFAULT_STAGE} is accelerate's default")
    states, weights = (f"{PLUGIN}offload_{part}_device" for part in ("optimizer", "param"))
    if (device := str(given.get(states, "none")).lower()) == "nvme":
        arguments.gap(states, "keeps states on nvme")
    if str(given[_STAGE]) != "3" and str(given.get(weights, "none")).lower() != "none":
        arguments.notes.append(STAGE_3_ALONE)
        del given[weights]
    # The technique cpu-offload: weights on the host, with the states or alone.
    planned = ("none", "cpu") if device in ("cpu", "none") else ("none",)
    if (device := str(given.get(weights, "none")).lower()) not in planned:
        arguments.gap(weights, f"keeps weights on {device}")
        given.pop(weights)


def _read_json(arguments: Arguments, path: str) -> None:
    """The facts of DeepSpeed's JSON, under the option that names such a file. Raises InputError for broken syntax."""
    options, _ = option_list("deepspeed")
    inner = DEEPSPEED.import_files({path: arguments.texts[path]}, options, ())
    facts = without_rounding(read_facts(inner, DEEPSPEED.table(options)), inner)
    arguments.problems += inner.problems_under(FILE)
    arguments.gaps += inner.gaps
    arguments.notes += [note for note in inner.notes if note != PRECISION_OPEN]
    if facts.get("ep", 1) > 1:
        arguments.gaps.append(FieldProblem(f"experts over {facts['ep']} ranks", "expert_parallel.autoep_size", path,
                                           inner.lines["expert_parallel.autoep_size"]))  # fmt: skip
    arguments.settings[FILE] = {name: facts[name] for name in _OF_JSON if name in facts}
    for name in ("bf16", "fp16"):
        if inner.settings.get(f"{name}.enabled") is True and PRECISION_OPEN not in inner.notes:
            arguments.settings["mixed_precision"] = name
