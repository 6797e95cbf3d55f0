"""A placement -> arguments of OpenRLHF's train_ppo_ray.

OpenRLHF 0.11.2 (PyPI): openrlhf/cli/train_ppo_ray.py (options and what it asserts),
openrlhf/trainer/ray/vllm_engine.py (engines), openrlhf/trainer/ppo_trainer_async.py (lag),
openrlhf/utils/deepspeed/deepspeed.py (degrees), deepspeed_utils.py beside it (what sleeps),
openrlhf/trainer/ppo_trainer.py (who trains at once), openrlhf/utils/seqlen_balancing.py (tokens of a micro-batch).
"""

from __future__ import annotations

import math

from ....cost_models.layouts import OFFLOADS, RECOMPUTE_MODES
from ....cost_models.quantities.params import total_parameters
from ....cost_models.serving.pool import MEMORY_SHARE
from ...document.objective import CLIP, CLIP_HIGH
from ..options import Settings
from ..post_training.arguments import Arguments
from ..post_training.limits import RlStep
from ..post_training.setup import RlSetup, layout_of

ARGUMENTS = Arguments(framework="openrlhf", file="openrlhf.args")
_MODELS = {"policy": "actor", "reference": "ref", "critic": "critic", "reward": "reward"}
_MOVED = ("reference", "reward")  # at ZeRO-3, by `offload`
_ZERO_3 = 3
BF16_BYTES = 2


def arguments(setup: RlSetup) -> Settings:
    """Option -> value."""
    return _placement(setup) | _algorithm(setup) | _batch(setup) | _deepspeed(setup) | _engine(setup)


def _placement(setup: RlSetup) -> Settings:
    """All models of DeepSpeed are on the same GPUs; with lag the engine is not."""
    nodes, per_node = setup.pool(setup.train)
    out: Settings = {}
    for role in _MODELS:
        if role in setup.models:
            prefix = f"--{_MODELS[role]}."
            out |= {f"{prefix}num_nodes": nodes, f"{prefix}num_gpus_per_node": per_node}
            if role != "reference":  # it is made of the actor
                out[f"{prefix}model_name_or_path"] = setup.names[role]
    out["--train.colocate_all"] = True
    # Actor and critic train at once where DeepSpeed does not sleep, and take turns in the plan.
    lag = setup.candidate.lag
    if not lag or "critic" in setup.models or setup.leaves("policy"):
        out["--ds.enable_sleep"] = True
    if lag:
        return out | {"--train.async_enable": True, "--train.async_queue_size": lag}
    return out | {"--vllm.enable_sleep": True}


def _algorithm(setup: RlSetup) -> Settings:
    out: Settings = {"--algo.advantage.estimator": "gae" if setup.algorithm == "ppo" else "group_norm"}
    if "reference" not in setup.models:
        out["--algo.kl.init_coef"] = 0.0
    elif setup.algorithm != "ppo":
        out |= {"--algo.kl.use_loss": True, "--algo.kl.estimator": "k3"}
    if setup.algorithm == "dapo":
        out["--actor.eps_clip_low_high"] = [CLIP, CLIP_HIGH["dapo"]]
    if setup.algorithm == "grpo":
        out["--actor.loss_agg_mode"] = "seq-mean-token-mean"
    return out


def _batch(setup: RlSetup) -> Settings:
    layout = layout_of(setup.train)
    tokens = -(-setup.packed_tokens(setup.train) // (layout.cp * layout.tp))  # times the ranks of a copy
    return {
        "--rollout.batch_size": setup.prompts, "--rollout.n_samples_per_prompt": setup.samples,
        "--train.batch_size": setup.prompts * setup.samples // setup.updates,
        "--data.max_len": setup.prompt_tokens + setup.answer_tokens, "--rollout.max_new_tokens": setup.answer_tokens,
        "--rollout.micro_batch_size": 1,
        "--train.dynamic_batch_enable": True, "--ds.packing_samples": True, "--train.max_tokens_per_gpu": tokens,
    }  # fmt: skip


def _deepspeed(setup: RlSetup) -> Settings:
    layout = layout_of(setup.train)
    # One copy is the same at stages 0 and 1, and stage 0 cannot sleep.
    out: Settings = {"--ds.zero_stage": max(layout.zero, 1), "--ds.tensor_parallel_size": layout.tp,
                     "--ds.ring_attn_size": layout.cp}  # fmt: skip
    if RECOMPUTE_MODES[layout.recompute] == "full":
        out["--actor.gradient_checkpointing_enable"] = True
    if "opt" in OFFLOADS[layout.offload]:
        out["--ds.adam_offload"] = True
    for role in _MOVED:
        if role in setup.models and layout.zero == _ZERO_3 and setup.leaves(role):
            out[f"--{_MODELS[role]}.offload"] = True
    return out


def staying_bytes(step: RlStep, zero: int, ranks: int) -> float:
    """Bytes of a GPU that weights take beside the engine while it generates. DeepSpeed's sleep moves gradients and
    states of the optimizer alone, and `offload` moves models that score at ZeRO-3. ranks: that share the weights."""
    stay = [model for role, model in step.models.items() if not (zero == _ZERO_3 and role in _MOVED)]
    return BF16_BYTES * sum(map(total_parameters, stay)) / ranks


def engine_weights_bytes(setup: RlSetup) -> float:
    """Weights of the policy in an engine, over all of its ranks."""
    return BF16_BYTES * total_parameters(setup.models["policy"])


def engine_share(setup: RlSetup) -> float:
    """Share of a GPU's memory for vLLM."""
    layout = layout_of(setup.train)
    ranks = setup.train.gpus if layout.zero == _ZERO_3 else layout.tp
    stay = 0.0 if setup.candidate.lag else staying_bytes(setup, layout.zero, ranks)
    return math.floor(1000 * (MEMORY_SHARE - stay / setup.gpu_memory_bytes)) / 1000


def _engine(setup: RlSetup) -> Settings:
    engine = setup.rollout
    if engine is None:
        return {}
    return {"--vllm.num_engines": engine.instances, "--vllm.tensor_parallel_size": engine.tp,
            "--vllm.gpu_memory_utilization": engine_share(setup)}  # fmt: skip
