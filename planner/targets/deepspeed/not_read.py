"""Options of DeepSpeed's JSON that change a training but have no field in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import FieldProblem
from ..argv import Arguments
from ..option_lists import Option

CHANGES: Mapping[str, str] = {
    r"zero_optimization\.mics_shard_size": "shards over part of the ranks",
    r"sparse_attention.*": "sparse attention",
    r"hybrid_engine.*": "generation beside the training",
    r"quantize_training.*": "quantised weights",
    r"progressive_layer_drop.*": "layers that are left out",
    r"elasticity.*": "a batch that follows the ranks",
    r"(bf16\.bf16|fp16\.fp16)_(master_weights_and_grads|optimizer_states)": "states of another size",
    r"(torch_autocast|amp)(\..*)?": "another mixed precision",
    r"weight_quantization.*|zero_optimization\.zero_quantized_nontrainable_weights": "quantised weights",
    r"zero_optimization\.zenflow.*|zero_optimization\.offload_optimizer\.super_offload":
        "updates on the host beside the step",
    r"tensor_parallel\.vocab_parallel_lm_head": "a head that is split over tp ranks",
}
# Regular expression of options without an entry -> their effect on price or memory.
PRICES: Mapping[str, str] = {
    r"activation_checkpointing": "saved activations elsewhere, or in parts",
    r"(seq_parallel_)?communication_data_type|data_types": "messages or sums of another size",
    r"zero_optimization\.cpu_offload(_param)?": "states or weights on the host",
    r"zero_optimization\.(\w+_bucket_size|sub_group_size|stage3_(?!gather)\w+)": "other buffers",
    r"zero_optimization\.(allgather_partitions|round_robin_gradients|legacy_stage1|use_multi_rank_bucket_allreduce)|"
    r"sparse_gradients|disable_allgather|tensor_parallel\.tp_overlap_comm": "other messages",
    r"zero_optimization\.offload_(optimizer|param)\.(ratio|buffer_\w+|max_in_cpu|pipeline_\w+)":
        "another traffic of states",
    r"bf16\.immediate_grad_update|graph_harvesting": "another memory",
    r"tensor_parallel\.(tp|partition_config|injection_policy_tuple|kernel_inject)": "layers that are split otherwise",
    r"compile": "compiled kernels",
    r"eigenvalue": "passes beside those of a step",
    r"curriculum_learning|autotuning": "lengths or a batch that change",
    r"data_efficiency.*": "layers that skip tokens, or lengths that change",
}  # fmt: skip
# deepspeed/runtime/config.py asserts it.
EXCLUSIVE = (("bf16.enabled", "fp16.enabled"),)
PRECISION_OPEN = "the precision is `auto`, that of the trainer: taken as on, bf16 before fp16"
# deepspeed 0.19, deepspeed/runtime/engine.py, _configure_zero_optimizer: stages 1 and 2 do not take offload_param.
STAGE_3_ALONE = "offload_param is read as none: DeepSpeed keeps weights on the host in ZeRO-3 alone"
_SIZES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# Older name of a block that keeps states or weights on the host (runtime/zero/config.py) -> its present name.
_DEPRECATED = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
# Older name of `bf16.enabled`, which counts where that is absent (deepspeed 0.19, runtime/precision_config.py).
_OLDER_BF16 = "bfloat16.enabled"
OLDER: Mapping[str, Option] = {_OLDER_BF16: Option(_OLDER_BF16, "bool")}
# DeepSpeed has no block fp32: weights are in fp32 where fp16 and bf16 are off.
HARMLESS = (
    r"^[_#]|^fp32(\.|$)|_comment|^zero_optimization\.(?!offload|stage$|hpz|zero_|mics|param)|bucket|prefetch|persistence|"
    r"^(optimizer|scheduler|fp16|bf16|amp|flops_profiler|aio|comms_logger|autotuning|steps_per_print|zero_allow|"
    r"zero_force|prescale|wall_clock|gradient|communication|curriculum|train_iters|micro_batch_size_per_gpu|"
    r"activation_checkpointing|local_rank|model_dtype|memory_breakdown|pipeline\.(seed_layers|use_reentrant)$|"
    r"sparse_gradients|seq_parallel_comm|fp32_allreduce)|^zero_optimization\.(mics_hierarchical_params_gather|"
    r"offload_(optimizer|param)\.(fast_init|pin_memory|buffer_(size|count)|max_in_cpu|pipeline_\w+|cpuadam_\w+))$"
)
# Switch of a block -> its effect, which is named and has no price. deepspeed 0.19,
# deepspeed/runtime/activation_checkpointing/checkpointing.py: for models that call its `checkpoint`, as those of
# transformers do not; activations are parted over ranks of tp alone.
_NAMED = {("activation_checkpointing", "cpu_checkpointing"): "acts on models that call deepspeed.checkpointing",
          ("compile", "deepcompile"): "makes another program of the layers",
          ("curriculum_learning", "enabled"): "begins with shorter sequences",
          ("eigenvalue", "enabled"): "runs passes beside those of a step",
          ("autotuning", "enabled"): "tries other batches and stages"}  # fmt: skip
# The same of stages 1 and 2, where it is off (deepspeed/runtime/zero/stage_1_and_2.py).
_NAMED_OFF = {"reduce_scatter": "every rank gets all gradients", "allgather_partitions": "weights are broadcast"}


def modernise(arguments: Arguments) -> None:
    """Names weights and states that the file keeps in another place than a plan does."""
    given = arguments.settings
    if _OLDER_BF16 in arguments.lines:
        stated = {} if _OLDER_BF16 not in given or "bf16.enabled" in arguments.lines else {
            "bf16.enabled": given[_OLDER_BF16]}  # fmt: skip
        arguments.lines.setdefault("bf16.enabled", arguments.lines[_OLDER_BF16])
        arguments.replace(_OLDER_BF16, stated)
    for old, block in _DEPRECATED.items():
        if given.pop(f"zero_optimization.{old}", False) is True:
            name, device = f"zero_optimization.{old}", f"zero_optimization.{block}.device"
            given.setdefault(device, "cpu")
            arguments.lines.setdefault(device, arguments.lines[name])
            arguments.files.setdefault(device, arguments.files.get(name, ""))
    _name_switches(arguments)
    ratio = "zero_optimization.offload_optimizer.ratio"
    if given.get(ratio, 1) != 1:
        arguments.gap(ratio, "keeps a part of the states on the host")
    _data_efficiency(arguments)
    types = given.get("data_types")
    if isinstance(types, Mapping) and types.get("grad_accum_dtype") not in (None, "fp32"):
        arguments.gap("data_types", f"gradients are summed in {types['grad_accum_dtype']}")
    # Techniques zero-infinity and cpu-offload: weights follow the states of the optimizer, or the host has them alone.
    states, weights = (str(given.get(f"zero_optimization.{block}.device", "none"))
                       for block in ("offload_optimizer", "offload_param"))
    if weights != "none" and given.get("zero_optimization.stage") != 3:
        arguments.notes.append(STAGE_3_ALONE)
        del given["zero_optimization.offload_param.device"]
    with_states = ("none", "cpu") if states == "none" else ("none", states)
    planned = {"offload_optimizer": ("none", "cpu", "nvme"), "offload_param": with_states}
    for block, devices in planned.items():
        name = f"zero_optimization.{block}.device"
        device = str(given.get(name, "none"))
        if device not in devices:
            arguments.gaps.append(FieldProblem(
                f"keeps {'weights' if block == 'offload_param' else 'states'} on {device}",
                file=arguments.files.get(name, ""), line=arguments.lines.get(name, 0), field=name))  # fmt: skip
    _precision(arguments)


def _divide_batch(arguments: Arguments) -> None:
    """A batch alone is divided by the ranks (deepspeed/runtime/config.py, _set_batch_related_parameters)."""
    batch, micro, steps = _SIZES
    if batch in arguments.settings and not {micro, steps} & arguments.lines.keys():
        arguments.lines[steps], arguments.files[steps] = arguments.lines[batch], arguments.files.get(batch, "")
        arguments.settings[steps] = 1


def _name_switches(arguments: Arguments) -> None:
    """Names switches that are priced as if they were not there, and a stage that another file states."""
    _divide_batch(arguments)
    given, stage = arguments.settings, "zero_optimization.stage"
    if given.get("zero_optimization") is True:  # deepspeed/runtime/zero/config.py, read_zero_config_deprecated
        arguments.replace("zero_optimization", {stage: 1})
    for (option, part), effect in _NAMED.items():
        if isinstance(block := given.get(option), Mapping) and block.get(part) is True:
            arguments.notes.append(f"{option}.{part} {effect}: priced as without")
    for part, effect in _NAMED_OFF.items():
        if given.get(f"zero_optimization.{part}") is False and given.get(stage) in (1, 2):
            arguments.notes.append(f"{part} is off, so that {effect}: priced as on")
    open_fields = {doubt.field for doubt in arguments.unclear}
    if stage in arguments.lines and stage not in given and stage not in open_fields:
        arguments.gap(stage, "is `auto`: the trainer fills it in")


def _data_efficiency(arguments: Arguments) -> None:
    """Layers that skip tokens are a gap; orders and lengths of samples are priced at the length that they grow to.

    deepspeed 0.19, deepspeed/runtime/data_pipeline/constants.py: every block is off unless it has `enabled`.
    """

    def on(block: Mapping[str, Any], *path: str) -> bool:
        for name in path:
            inner = block.get(name)
            if not isinstance(inner, Mapping) or not inner.get("enabled", False):
                return False
            block = inner
        return True

    name = "data_efficiency"
    block = {name: arguments.settings.pop(name, None)}
    if on(block, name, "data_routing", "random_ltd"):
        arguments.gap(name, "layers that skip tokens (random_ltd)")
    if on(block, name, "data_sampling", "dynamic_batching"):
        arguments.gap(name, "a batch that follows the lengths of samples (dynamic_batching)")
    if on(block, name, "data_sampling", "curriculum_learning"):
        arguments.notes.append(f"{name}: priced at the length that sequences grow to")


def _precision(arguments: Arguments) -> None:
    """Takes a type that is `auto` as on where no other is."""
    given, types = arguments.settings, ("bf16.enabled", "fp16.enabled")
    automatic = next((name for name in types if name in arguments.lines and name not in given), "")
    if automatic and not any(given.get(name) for name in types):
        arguments.notes.append(PRECISION_OPEN)
        given[automatic] = True
