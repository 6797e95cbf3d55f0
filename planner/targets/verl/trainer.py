"""The trainer of a config of verl: degrees, shards, recomputation, states on the host, and room for packed answers.

verl 0.9.1 (PyPI): trainer/config (names and defaults), workers/engine/utils.py (tokens of a micro-batch are those of a
GPU times the ranks of a sequence), utils/megatron/optimizer.py (override_optimizer_config).
"""

from __future__ import annotations

from ....cost_models.layouts import OFFLOADS
from ....cost_models.specs.model import ModelSpec
from ..post_training.on_host import on_host
from ..post_training.stated import StepConfig
from .options import DYNAMIC

_ACTOR, _MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.model."
_MEGATRON, _FSDP = f"{_ACTOR}megatron.", f"{_ACTOR}fsdp_config."
_LAYERS = f"{_MEGATRON}override_transformer_config."


def most_packed(config: StepConfig, row_tokens: int, cp: int) -> int | None:
    """Tokens of a micro-batch of packed answers, at most; None: it has a number of answers (use_dynamic_bsz is off).
    row_tokens: of the longest answer with its prompt; cp: ranks of a sequence."""
    if not config.get(dynamic := f"{_ACTOR}use_dynamic_bsz", False):
        config.assumed.append(f"{dynamic} is off: micro-batches are priced as long as the longest answer")
        return None
    name = f"{_ACTOR}ppo_max_token_len_per_gpu"
    tokens = config.count(name, 16384) * cp
    if tokens < row_tokens:
        config.assumed.append(f"{name}: answers of over {tokens} tokens with their prompts stop verl")
    return tokens


def core_layout(config: StepConfig, model: ModelSpec | None) -> dict[str, int]:
    """Degrees on Megatron-Core, what it keeps on the host, and its recomputation: 0 none, 1 selective, 2 full. model:
    None where it is unknown."""
    names = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}
    out = {field: config.get(f"{_MEGATRON}{name}_parallel_size", 1) for field, name in names.items()}
    out["vpp"] = config.get(f"{_MEGATRON}virtual_pipeline_model_parallel_size", 1)
    if model is not None and model.is_moe:  # tp where it is not given (Megatron-Core, core/parallel_state.py)
        out["etp"] = config.get(f"{_MEGATRON}expert_tensor_parallel_size", out["tp"])
    if config.get(f"{_MEGATRON}{DYNAMIC}", False):
        config.assumed.append(f"{_MEGATRON}{DYNAMIC}: answers are priced with one degree for all, {out['cp']}")
    granularity = config.get(f"{_LAYERS}recompute_granularity", None)
    out |= on_host(config, f"{_ACTOR}optim.override_optimizer_config.", _LAYERS)
    return {**out, "recompute": {"selective": 1, "full": 2}.get(str(granularity), 0)}


def fsdp_layout(config: StepConfig, ranks: int) -> dict[str, int]:
    """Shards over all ranks, or over fsdp_size of them (workers/engine/fsdp/utils.py)."""
    cp = config.get(f"{_FSDP}ulysses_sequence_parallel_size", 1)
    cp = max(cp, config.get(f"{_ACTOR}ulysses_sequence_parallel_size", 1))
    full = config.get(f"{_MODEL}enable_gradient_checkpointing", True)
    zero = 3 if config.get(f"{_FSDP}reshard_after_forward", True) else 2
    if config.get(host := f"{_FSDP}offload_policy", False):
        config.assumed.append(f"{host}: priced with weights and states of the optimizer on the GPU")
    out = {"cp": cp, "zero": zero, "recompute": 2 if full else 0, "offload": OFFLOADS.index("none")}
    size = config.get(f"{_FSDP}fsdp_size", -1)
    if (critic := config.get("critic.fsdp.fsdp_size", size)) != size:
        config.assumed.append(f"critic.fsdp.fsdp_size {critic}: the critic is priced by the actor's shards, {size}")
    if size < 0 or size >= ranks:
        return {**out, "shard": max(ranks // max(cp, 1), 1)}
    if size < 1 or ranks % size:
        config.fail(f"{_FSDP}fsdp_size", f"{size} does not divide the {ranks} GPUs that train")
    elif size % cp:
        config.fail(f"{_FSDP}fsdp_size", f"{size} is no multiple of the {cp} ranks that share a sequence: not planned")
    return {**out, "zero": 0} if size == 1 else {**out, "shard": size // max(cp, 1)}
