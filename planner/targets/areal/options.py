"""A placement -> overrides of AReaL's GRPO and PPO examples.

AReaL 1.0.4 (PyPI): areal/api/cli_args.py (dataclasses), areal/api/alloc_mode.py (degrees as text),
areal/trainer/rl_trainer.py (who is offloaded, who scores), areal/infra/controller/rollout_controller.py (instances),
areal/engine/megatron_engine.py and fsdp_engine.py (layouts).
"""

from __future__ import annotations

from ....cost_models.layouts import RECOMPUTE_MODES, Layout
from ...document.objective import CLIP, CLIP_HIGH
from ...document.rl_plan import RlCall
from ..options import Settings
from ..post_training.core import on_core, overlaps, recomputed
from ..post_training.overrides import Overrides
from ..post_training.setup import RlSetup, layout_of

OVERRIDES = Overrides(framework="areal", file="areal.overrides")
OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}


def overrides(setup: RlSetup) -> Settings:
    """Option -> value. `++` before each: the examples have some of the options, the dataclasses all."""
    out = _step(setup) | _trained(setup, setup.train, "actor.")
    if "reference" in setup.models:
        out |= {"ref.backend": out["actor.backend"], "ref.path": setup.names["reference"],
                "ref.offload": setup.leaves("reference"), **_colocated("ref."),
                "ref.mb_spec.max_tokens_per_mb": out["actor.mb_spec.max_tokens_per_mb"]}  # fmt: skip
    else:
        out["actor.kl_ctl"] = 0.0
    if (critic := setup.calls.get("train-critic")) is not None:
        out |= _trained(setup, critic, "critic.") | _colocated("critic.")
    out |= _generation(setup)
    return {f"++{name}": value for name, value in out.items()}


def _step(setup: RlSetup) -> Settings:
    nodes = setup.num_gpus // min(setup.num_gpus, setup.gpus_per_node)
    colocated = not setup.candidate.lag
    out: Settings = {
        "cluster.n_nodes": nodes, "cluster.n_gpus_per_node": min(setup.num_gpus, setup.gpus_per_node),
        "scheduler.type": "local" if nodes == 1 else "ray",
        "enable_offload": colocated or any(map(setup.leaves, setup.models)),
        "train_dataset.batch_size": setup.prompts, "gconfig.n_samples": setup.samples,
        # Its packing stops at a sequence that is longer than a micro-batch (utils/seqpack.py).
        "train_dataset.max_length": setup.prompt_tokens,
        "gconfig.max_new_tokens": setup.answer_tokens,
        # The engine's scores are taken where the plan has no call that scores first.
        "actor.use_decoupled_loss": False, "actor.recompute_logprob": "logprobs" in setup.calls,
        "actor.rejection_sampling": None,
    }  # fmt: skip
    if colocated:
        out["actor.weight_update_mode"] = "disk"
    if setup.algorithm == "dapo":
        out |= {"actor.eps_clip": CLIP, "actor.eps_clip_higher": CLIP_HIGH["dapo"]}
    return out


def _colocated(prefix: str) -> Settings:
    """The options of an engine on the GPUs of the actor, in processes of its own."""
    place = f"{prefix}scheduling_strategy."
    return {f"{place}type": "colocation", f"{place}target": "actor", f"{place}fork": True}


def _trained(setup: RlSetup, call: RlCall, prefix: str) -> Settings:
    layout = layout_of(call)
    out: Settings = {
        f"{prefix}path": setup.names[call.role], f"{prefix}backend": backend(setup, layout),
        f"{prefix}mb_spec.max_tokens_per_mb": setup.packed_tokens(call), f"{prefix}ppo_n_minibatches": setup.updates,
        f"{prefix}offload": setup.leaves(call.role),
    }  # fmt: skip
    # The critic of the examples has `${actor.optimizer}`: an option below it would take its learning rate away.
    if call.role == "policy":
        out[f"{prefix}optimizer.type"] = OPTIMIZERS[setup.optimizer]
    mode = RECOMPUTE_MODES[layout.recompute]
    out[f"{prefix}gradient_checkpointing"] = mode != "none"
    if not on_core(setup):
        return out
    core = f"{prefix}megatron."
    out |= {f"{core}virtual_pipeline_parallel_size": layout.vpp, f"{core}ddp.overlap_grad_reduce": overlaps(layout)}
    if setup.models[call.role].is_moe:
        out[f"{core}moe_permute_fusion"] = True
    if mode == "selective":
        out |= {f"{core}recompute_granularity": mode, f"{core}recompute_method": None,
                f"{core}recompute_num_layers": None, f"{core}recompute_modules": recomputed(layout)}  # fmt: skip
    elif mode == "full":
        out |= {f"{core}recompute_granularity": mode, f"{core}recompute_num_layers": layout.recompute_layers or 1,
                f"{core}recompute_method": "block" if layout.recompute_layers else "uniform"}  # fmt: skip
    return out


def backend(setup: RlSetup, layout: Layout) -> str:
    """The engine that trains and its degrees, as `megatron:d2p2t4c1e4`."""
    if not on_core(setup):
        return f"fsdp:d{layout.dp}c{layout.cp}"
    dense = f"d{layout.dp}p{layout.pp}t{layout.tp}c{layout.cp}"
    if not setup.models["policy"].is_moe:
        return f"megatron:{dense}"
    if layout.etp == 1:
        return f"megatron:{dense}e{layout.ep}"
    return f"megatron:(attn:{dense}|ffn:p{layout.pp}t{layout.etp}e{layout.ep})"


def _generation(setup: RlSetup) -> Settings:
    engine, lag = setup.rollout, setup.candidate.lag
    if engine is None:
        return {}
    out: Settings = {
        "rollout.backend": f"sglang:d{engine.instances}t{engine.tp * engine.attention_dp}p{engine.pp}",
        "rollout.max_head_offpolicyness": lag, "rollout.consumer_batch_size": setup.prompts,
        "rollout.max_concurrent_rollouts": setup.prompts * max(lag, 1),
    }  # fmt: skip
    if not lag:
        out |= _colocated("rollout.")
    out |= {"sglang.max_running_requests": engine.cache_sequences, "sglang.context_length": None,
            "sglang.mem_fraction_static": setup.static_share, "sglang.ep_size": engine.ep}  # fmt: skip
    if engine.attention_dp > 1:
        out |= {"sglang.dp_size": engine.attention_dp, "sglang.enable_dp_attention": True}
    return out
