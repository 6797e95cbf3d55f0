"""A placement -> overrides of NeMo-RL's GRPO config.

NeMo-RL 7ea279ab (2026-08-22, 0.6.0): grpo_math_1B.yaml and grpo_math_1B_megatron.yaml of its examples (names),
nemo_rl/algorithms/grpo.py (nodes of trainer and engine), nemo_rl/models/generation/vllm/vllm_generation.py (degrees of
an engine), nemo_rl/models/megatron/data.py (multiples of packed sequences).
"""

from __future__ import annotations

from ....cost_models.layouts import OFFLOADS, RECOMPUTE_MODES, Layout
from ....cost_models.serving.pool import MEMORY_SHARE
from ...document.objective import CLIP_HIGH
from ..megatron.offload import VARIABLE
from ..options import Settings
from ..post_training.core import offloaded, on_core, recomputed
from ..post_training.overrides import Overrides
from ..post_training.setup import RlSetup, layout_of

OVERRIDES = Overrides(framework="nemo-rl", file="nemo-rl.overrides")
_POLICY, _CORE, _DTENSOR = "policy.", "policy.megatron_cfg.", "policy.dtensor_cfg."
_GENERATION = "policy.generation."
_HALVES = 2  # parts of a packed sequence on each rank of context parallelism
_OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}


def overrides(setup: RlSetup) -> Settings:
    """Option -> value; `+` before an option that the examples do not have."""
    layout = layout_of(setup.train)
    tokens = setup.prompt_tokens + setup.answer_tokens
    out: Settings = {
        "cluster.num_nodes": setup.num_gpus // min(setup.num_gpus, setup.gpus_per_node),
        "cluster.gpus_per_node": min(setup.num_gpus, setup.gpus_per_node),
        "grpo.num_prompts_per_step": setup.prompts, "grpo.num_generations_per_prompt": setup.samples,
        f"{_POLICY}model_name": setup.names["policy"], f"{_POLICY}max_total_sequence_length": tokens,
        f"{_POLICY}train_global_batch_size": setup.prompts * setup.samples // setup.updates,
        f"{_POLICY}train_micro_batch_size": layout.micro_batch,
    }  # fmt: skip
    if "reference" not in setup.models:
        out["loss_fn.reference_policy_kl_penalty"] = 0.0
    if setup.trains_on_policy:
        out["loss_fn.force_on_policy_ratio"] = True
    if setup.algorithm == "dapo":
        out["loss_fn.ratio_clip_max"] = CLIP_HIGH["dapo"]
    out |= {f"{_POLICY}sequence_packing.enabled": True,
            f"{_POLICY}sequence_packing.train_mb_tokens": setup.packed_tokens(setup.train),
            f"{_POLICY}make_sequence_length_divisible_by": _multiple(layout)}  # fmt: skip
    out |= (_core if on_core(setup) else _dtensor)(setup, layout)
    return out | _generation(setup)


def _multiple(layout: Layout) -> int:
    """Tokens that ranks of tensor and context parallelism divide."""
    return (layout.tp if layout.sequence_parallel else 1) * (_HALVES * layout.cp if layout.cp > 1 else 1)


def _core(setup: RlSetup, layout: Layout) -> Settings:
    out: Settings = {
        f"{_CORE}tensor_model_parallel_size": layout.tp, f"{_CORE}pipeline_model_parallel_size": layout.pp,
        f"{_CORE}context_parallel_size": layout.cp, f"{_CORE}sequence_parallel": bool(layout.sequence_parallel),
        f"{_CORE}optimizer.optimizer": _OPTIMIZERS[setup.optimizer],
        f"{_CORE}optimizer.use_distributed_optimizer": layout.zero > 0,
    }  # fmt: skip
    if setup.models["policy"].is_moe:
        out |= {f"{_CORE}expert_model_parallel_size": layout.ep, f"{_CORE}expert_tensor_parallel_size": layout.etp,
                f"{_CORE}moe_permute_fusion": True}  # fmt: skip
    mode = RECOMPUTE_MODES[layout.recompute]
    out[f"{_CORE}activation_checkpointing"] = mode != "none"
    if mode != "none":
        out[f"{_CORE}recompute_granularity"] = mode
    if mode == "selective":
        out[f"{_CORE}recompute_modules"] = recomputed(layout)
    if layout.offload_modules:
        out |= {f"{_CORE}fine_grained_activation_offloading": True,
                f"{_CORE}offload_modules": offloaded(layout),
                f"+{_CORE}env_vars.{VARIABLE}": "1"}  # fmt: skip
    if "opt" in OFFLOADS[layout.offload]:
        out |= {f"{_CORE}optimizer.optimizer_cpu_offload": True, f"{_CORE}optimizer.optimizer_offload_fraction": 1.0,
                f"{_CORE}optimizer.overlap_cpu_optimizer_d2h_h2d": True}  # fmt: skip
    return out


def _dtensor(setup: RlSetup, layout: Layout) -> Settings:
    return {f"{_DTENSOR}tensor_parallel_size": layout.tp, f"{_DTENSOR}context_parallel_size": layout.cp,
            f"{_DTENSOR}sequence_parallel": bool(layout.sequence_parallel),
            f"{_DTENSOR}activation_checkpointing": RECOMPUTE_MODES[layout.recompute] == "full"}  # fmt: skip


def _generation(setup: RlSetup) -> Settings:
    engine, generate, lag = setup.rollout, setup.generate, setup.candidate.lag
    if engine is None or generate is None:
        return {}
    out: Settings = {
        f"{_GENERATION}backend": "vllm", f"{_GENERATION}vllm_cfg.tensor_parallel_size": engine.tp,
        f"{_GENERATION}vllm_cfg.pipeline_parallel_size": engine.pp,
        f"{_GENERATION}vllm_cfg.expert_parallel_size": engine.ep,
        f"{_GENERATION}vllm_cfg.gpu_memory_utilization": MEMORY_SHARE,
        f"{_GENERATION}vllm_cfg.async_engine": lag > 0 or engine.pp > 1,
        f"{_GENERATION}colocated.enabled": lag == 0,
    }  # fmt: skip
    if not lag:
        return out
    nodes, per_node = setup.pool(generate)
    return out | {
        "grpo.async_grpo.enabled": True, "grpo.async_grpo.max_trajectory_age_steps": lag,
        "grpo.async_grpo.in_flight_weight_updates": lag > 1, "loss_fn.use_importance_sampling_correction": True,
        f"{_GENERATION}colocated.resources.num_nodes": nodes,
        f"{_GENERATION}colocated.resources.gpus_per_node": per_node,
    }  # fmt: skip
