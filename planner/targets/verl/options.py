"""A placement -> overrides of verl's config.

verl 0.9.1 (PyPI): trainer/config (ppo_trainer.yaml and its groups), workers/config (engine.py, actor.py, rollout.py),
trainer/ppo/v1 (trainer_separate_async.py, replay_buffer.py), workers/engine/utils.py (tokens of a micro-batch are
those of a GPU times the ranks of a sequence).
"""

from __future__ import annotations

from ....cost_models.layouts import CP_ALGORITHMS, OFFLOADS, RECOMPUTE_MODES, Layout
from ....cost_models.quantities.even_stages import chunk_sizes
from ....cost_models.serving.pool import MEMORY_SHARE
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.variants import valued
from ...document.objective import CLIP_HIGH
from ...document.rl_plan import RlCall
from ...space.stage_string import write_stages
from ..megatron.offload import VARIABLE
from ..megatron.options import CP_COMM, STRATEGIES
from ..options import Settings
from ..post_training.core import OPTIMIZERS, offloaded, on_core, overlaps, recomputed
from ..post_training.overrides import Overrides
from ..post_training.setup import RlSetup, layout_of

# A field of workers/config/critic.py that the YAML lacks. The V1 trainer takes the tokens of the critic's micro-batches
# from it (trainer_base.py), and not from ppo_max_token_len_per_gpu.
_CRITIC_TOKENS = "critic.ppo_infer_max_token_len_per_gpu"
OVERRIDES = Overrides(framework="verl", file="verl.overrides", open_blocks=("ray_kwargs.ray_init.runtime_env",),
                      fields={_CRITIC_TOKENS: "int"}, choice="model_engine",
                      blocks={"fsdp_config": "dp", "fsdp": "dp", "megatron": "megatron"})  # fmt: skip
ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
# The default of CUDA. verl sets 1 (trainer/constants_ppo.py), which Megatron-FSDP refuses.
_CONNECTIONS = "8"
DYNAMIC, TOKENS = "dynamic_context_parallel", "max_seqlen_per_dp_cp_rank"
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp")  # that Megatron-Core is initialised with
_ROLLOUT, _REWARD = "actor_rollout_ref.rollout.", "reward.reward_model."
_ACTOR, _CRITIC = "actor_rollout_ref.actor.", "critic."
MODELS = {"policy": "actor_rollout_ref.model.", "critic": "critic.model."}


def overrides(setup: RlSetup) -> Settings:
    """Option -> value; `+` before an option that verl's YAML does not have."""
    out: Settings = {"model_engine": "megatron" if on_core(setup) else "dp"}
    out |= _algorithm(setup) | _batch(setup) | _placement(setup)
    out |= {"actor_rollout_ref.model.path": setup.names["policy"]}
    out |= _trained(setup, setup.train, _ACTOR, "fsdp_config.")
    if on_core(setup):
        out |= _environment(layout_of(setup.train))
    if "reference" in setup.models:
        engine = "megatron" if on_core(setup) else "fsdp_config"
        out[f"actor_rollout_ref.ref.{engine}.param_offload"] = setup.leaves("reference")
    if (critic := critic_call(setup)) is not None:
        out |= {"critic.model.path": setup.names["critic"]} | _trained(setup, critic, _CRITIC, "fsdp.")
    return out | _generation(setup) | _rewards(setup)


def degrees(call: RlCall) -> tuple[int, ...]:
    """Those of DEGREES."""
    layout = layout_of(call)
    return tuple(getattr(layout, name) for name in DEGREES)


def critic_call(setup: RlSetup) -> RlCall | None:
    """The call that trains the critic: by the layout of the policy where the plan has other degrees for an equal model,
    because one process holds both, and Megatron-Core is initialised once in it (workers/engine/megatron)."""
    critic = setup.calls.get("train-critic")
    if critic is None or not on_core(setup) or degrees(critic) == degrees(setup.train):
        return critic
    equal = setup.models["critic"] == valued(setup.models["policy"])
    return critic.model_copy(update={"layout": setup.train.layout}) if equal else critic


def _environment(layout: Layout) -> Settings:
    """Variables of all processes, which Ray sets."""
    out: Settings = {VARIABLE: "1"} if layout.offload_modules else {}
    if layout.zero > 1:
        out["CUDA_DEVICE_MAX_CONNECTIONS"] = _CONNECTIONS
    return _named(out, "+ray_kwargs.ray_init.runtime_env.env_vars.")


def _algorithm(setup: RlSetup) -> Settings:
    out: Settings = {"algorithm.adv_estimator": "gae" if setup.algorithm == "ppo" else "grpo"}
    if setup.algorithm == "dapo":
        out[f"{_ACTOR}clip_ratio_high"] = CLIP_HIGH["dapo"]
    if "reference" in setup.models:
        out["algorithm.use_kl_in_reward" if setup.algorithm == "ppo" else f"{_ACTOR}use_kl_loss"] = True
    # True: the engine's log-probabilities are taken, and the trainer scores no answers.
    return out | {"algorithm.rollout_correction.bypass_mode": "logprobs" not in setup.calls}


def _batch(setup: RlSetup) -> Settings:
    return {
        "data.train_batch_size": setup.prompts, "data.max_prompt_length": setup.prompt_tokens,
        "data.max_response_length": setup.answer_tokens, f"{_ROLLOUT}n": setup.samples,
        f"{_ACTOR}ppo_mini_batch_size": setup.prompts // setup.updates, f"{_ACTOR}use_dynamic_bsz": True,
    }  # fmt: skip


def _placement(setup: RlSetup) -> Settings:
    nodes, per_node = setup.pool(setup.train)
    out: Settings = {"trainer.nnodes": nodes, "trainer.n_gpus_per_node": per_node}
    lag, generate = setup.candidate.lag, setup.generate
    if not lag or generate is None:
        return out | {"trainer.v1.trainer_mode": "sync"}
    nodes, per_node = setup.pool(generate)
    return out | {
        "trainer.v1.trainer_mode": "separate_async", "actor_rollout_ref.hybrid_engine": False,
        "trainer.v1.separate_async.num_warmup_batches": lag,
        "trainer.v1.separate_async.parameter_sync_step": setup.updates,
        # Counts the step that trains on an answer too.
        "trainer.v1.sampler.max_off_policy_threshold": lag + 1, "trainer.v1.sampler.max_off_policy_strategy": "wait",
        f"{_ROLLOUT}nnodes": nodes, f"{_ROLLOUT}n_gpus_per_node": per_node,
        f"{_ROLLOUT}checkpoint_engine.backend": "nccl",
    }  # fmt: skip


def _trained(setup: RlSetup, call: RlCall, prefix: str, block: str) -> Settings:
    """The layout of a model that trains. block: the name of FSDP's options."""
    layout = layout_of(call)
    out: Settings = {f"{prefix}ppo_max_token_len_per_gpu": -(-setup.packed_tokens(call) // layout.cp)}
    if prefix == _CRITIC:
        out[f"+{_CRITIC_TOKENS}"] = out[f"{prefix}ppo_max_token_len_per_gpu"]
    leaves = setup.leaves(call.role)
    if on_core(setup):
        engine = _core(layout, setup.models[call.role]) | {"param_offload": leaves, "optimizer_offload": leaves}
        if call.rank_tokens:
            engine |= {DYNAMIC: True, TOKENS: call.rank_tokens}
        return out | _named(engine, f"{prefix}megatron.") | _optimizer(setup, layout, f"{prefix}optim.")
    engine = {
        "fsdp_size": -1 if layout.shard == layout.dp else layout.shard * layout.cp,
        "ulysses_sequence_parallel_size": layout.cp, "reshard_after_forward": layout.zero == 3,
        "param_offload": leaves, "optimizer_offload": leaves,
    }  # fmt: skip
    full = RECOMPUTE_MODES[layout.recompute] == "full"
    out |= {f"{prefix}strategy": "fsdp2", f"{prefix}ulysses_sequence_parallel_size": layout.cp}
    return out | _named(engine, f"{prefix}{block}") | {
        f"{MODELS[call.role]}enable_gradient_checkpointing": full}  # fmt: skip


def _named(settings: Settings, prefix: str) -> Settings:
    """The settings below `prefix`; `+` stays in front."""
    return {f"+{prefix}{name[1:]}" if name.startswith("+") else f"{prefix}{name}": value
            for name, value in settings.items()}  # fmt: skip


def _core(layout: Layout, model: ModelSpec) -> Settings:
    """Options of Megatron-Core's engine."""
    out: Settings = {
        "tensor_model_parallel_size": layout.tp, "pipeline_model_parallel_size": layout.pp,
        "context_parallel_size": layout.cp, "sequence_parallel": bool(layout.sequence_parallel),
        "use_distributed_optimizer": layout.zero > 0,
    }  # fmt: skip
    if layout.zero > 1:
        out |= {"use_megatron_fsdp": True,
                "+override_ddp_config.data_parallel_sharding_strategy": STRATEGIES[layout.zero]}  # fmt: skip
    if overlaps(layout):
        out["+override_ddp_config.overlap_grad_reduce"] = True
    if layout.vpp > 1:
        out["virtual_pipeline_model_parallel_size"] = layout.vpp
    if model.is_moe:
        out |= {"expert_model_parallel_size": layout.ep, "expert_tensor_parallel_size": layout.etp}
    return out | _named(_layers(layout, model), "override_transformer_config.")


def _layers(layout: Layout, model: ModelSpec) -> Settings:
    """Fields of Megatron-Core's TransformerConfig (core_v0.16.1, core/transformer/transformer_config.py)."""
    out: Settings = {}
    mode = RECOMPUTE_MODES[layout.recompute]
    if mode == "selective":
        out |= {"recompute_granularity": "selective", "recompute_modules": recomputed(layout)}
    elif mode == "full":
        out |= {"recompute_granularity": "full", "recompute_method": "block" if layout.recompute_layers else "uniform",
                "recompute_num_layers": layout.recompute_layers or 1}  # fmt: skip
    if model.is_moe:
        out["+moe_permute_fusion"] = True
    if layout.cp > 1:
        out["+cp_comm_type"] = CP_COMM[CP_ALGORITHMS[layout.cp_algorithm]]
    if layout.offload_modules:
        out |= {"+fine_grained_activation_offloading": True, "+offload_modules": offloaded(layout)}
    if layout.offload_layers:
        out |= {"+cpu_offloading": True, "+cpu_offloading_num_layers": layout.offload_layers}
    sizes = chunk_sizes(model.num_layers, layout.pp * layout.vpp)
    if layout.pp > 1 and len(set(sizes)) > 1:
        # Without prediction modules, which verl leaves out (utils/megatron_utils.py, check_mtp_config).
        out["+pipeline_model_parallel_layout"] = write_stages(sizes, mtp_layers=0)
    return out


def _optimizer(setup: RlSetup, layout: Layout, prefix: str) -> Settings:
    """Options of Megatron-Core's optimizer; on the host as in the GRPO examples of verl."""
    out: Settings = {f"{prefix}optimizer": OPTIMIZERS[setup.optimizer]}
    if setup.optimizer == "adamw-bf16":
        out |= {f"{prefix}use_precision_aware_optimizer": True, f"{prefix}exp_avg_dtype": "bf16",
                f"{prefix}exp_avg_sq_dtype": "bf16"}  # fmt: skip
    if "opt" in OFFLOADS[layout.offload]:
        more = {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0,
                "overlap_cpu_optimizer_d2h_h2d": True, "use_precision_aware_optimizer": True}  # fmt: skip
        out |= _named(more, f"+{prefix}override_optimizer_config.")
    return out


def _generation(setup: RlSetup) -> Settings:
    engine = setup.rollout
    if engine is None:
        return {}
    out: Settings = {
        f"{_ROLLOUT}name": ENGINES[setup.engine], f"{_ROLLOUT}tensor_model_parallel_size": engine.tp,
        f"{_ROLLOUT}data_parallel_size": engine.attention_dp, f"{_ROLLOUT}expert_parallel_size": engine.ep,
    }  # fmt: skip
    # SGLang 0.5.12, ServerArgs: the sequences are those of all groups, the share is without buffers, and groups of
    # attention need a switch (async_sglang_server.py gives it tp x dp as tp_size).
    groups = 1 if setup.engine == "sglang" else engine.attention_dp
    share = setup.static_share if setup.engine == "sglang" else MEMORY_SHARE
    out |= {f"{_ROLLOUT}max_num_seqs": -(-engine.cache_sequences // groups),
            f"{_ROLLOUT}gpu_memory_utilization": share}  # fmt: skip
    if groups < engine.attention_dp:
        out[f"+{_ROLLOUT}engine_kwargs.sglang.enable_dp_attention"] = True
    return out


def _rewards(setup: RlSetup) -> Settings:
    """The reward model, which an engine runs, over the GPUs that its planned weights are divided among."""
    call = setup.calls.get("reward")
    if call is None:
        return {}
    layout = layout_of(call)
    return {
        f"{_REWARD}enable": True, f"{_REWARD}model_path": setup.names["reward"],
        f"{_REWARD}rollout.name": ENGINES[setup.engine],
        f"{_REWARD}rollout.tensor_model_parallel_size": min(layout.tp * layout.pp, setup.gpus_per_node),
    }  # fmt: skip
