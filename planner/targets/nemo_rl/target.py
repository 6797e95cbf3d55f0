"""NeMo-RL: post-training by run_grpo.py of its examples, on Megatron-Core or DTensor."""

from __future__ import annotations

from ....profiles.stack.engines import EngineDegrees
from ..post_training import limits
from ..post_training.base import RlTarget, of_train, scores_first
from ..post_training.core import PLAIN, on_core
from ..post_training.limits import LayoutLimit, Limits, RlStep
from ..post_training.option_file import SCRIPT
from ..post_training.setup import RlSetup
from .options import OVERRIDES, overrides

_CHECKOUT, _EXAMPLES = "NEMO_RL_PATH", "examples"
# NVIDIA-NeMo/RL@5fb58893 (0.6.0): distributed_data_parallel_config of grpo_math_1B.yaml of its examples, and
# DistributedLogprob of nemo_rl/distributed/model_utils.py.
_SWITCHES = {**PLAIN, "grad_reduce_dtype": "bf16", "cross_entropy": "log_softmax", "overlap_param_gather": "on"}
_BEYOND = "data.train.dataset_name=... policy.megatron_cfg.optimizer.lr=1e-6"


def _files(setup: RlSetup, header: tuple[str, ...]) -> dict[str, str]:
    base = "grpo_math_1B_megatron" if on_core(setup) else "grpo_math_1B"
    command = f"uv run {_EXAMPLES}/run_grpo.py --config {_EXAMPLES}/configs/{base}.yaml"
    needs = f'cd "${{{_CHECKOUT}:?must be the folder of a checkout of NeMo-RL}}"\n'
    return OVERRIDES.files(setup, header, overrides(setup), command, _BEYOND, needs)


def _step(step: RlStep, lag: int) -> list[str]:
    if step.algorithm not in ("grpo", "dapo"):
        return [f"{step.algorithm}: run_grpo.py is written for GRPO and DAPO"]
    out = list[str]()
    if "reward" in step.models:
        out.append("reward: a reward model is an environment on GPUs of its own, which the plan does not have")
    optimizers = ("adamw", "sgd") if on_core(step) else ("adamw",)
    return out if step.optimizer in optimizers else [*out, f"optimizer {step.optimizer} is not written"]


def _engine(engine: EngineDegrees, lag: int) -> list[str]:
    """vllm_generation.py."""
    out = []
    if engine.ep > 1 and engine.ep != engine.tp * engine.attention_dp:
        out.append(f"ep {engine.ep} is not tp {engine.tp} x dp {engine.attention_dp}")
    if engine.ep == 1 and engine.attention_dp > 1:
        out.append(f"dp {engine.attention_dp} without ep")
    if lag and engine.ep > engine.tp:
        out.append(f"ep {engine.ep} beyond tp {engine.tp} is not for the asynchronous engine that lag needs")
    return out


def _layouts(step: RlStep, leaves: bool) -> tuple[LayoutLimit, ...]:
    layers = step.models["policy"].num_layers
    even = LayoutLimit(("pp",), lambda x: layers % x["pp"] == 0, "pp {pp} does not divide the layers")
    # batched_data_dict.py, shard_by_batch_size.
    return (limits.dividing(step), *((even, *_CORE) if on_core(step) else _DTENSOR))


# Megatron-Core.
_CORE = (
    limits.BF16, limits.WHOLE_SHARDS,
    LayoutLimit(("vpp",), lambda x: x["vpp"] == 1, "vpp {vpp}, and its training loop has no interleaved pipeline"),
    LayoutLimit(("zero",), lambda x: x["zero"] <= 1, "z{zero}: Megatron-FSDP is not written"),
    limits.context_parallelism("ring", message="cp by {algorithm}, and ring is the one without an option"),
    LayoutLimit(("recompute_layers", "offload_layers", "offload"),
                lambda x: (x["recompute_layers"] == 0) & (x["offload_layers"] == 0) & ~limits.offloads_activations(x),
                "recomputation or offload of single layers"),
)  # fmt: skip
_DTENSOR = (
    limits.BF16,
    LayoutLimit(("pp", "ep"), lambda x: (x["pp"] == 1) & (x["ep"] == 1), "pp {pp}, ep {ep}: DTensor has neither"),
    limits.WHOLE_WEIGHTS,
    limits.context_parallelism("ring", message="cp by {algorithm}, and DTensor has ring"),
    limits.WHOLE_LAYERS,
    limits.NO_OFFLOAD,
)  # fmt: skip


def _notes(setup: RlSetup) -> list[str]:
    kept = of_train(setup, "NeMo-RL")
    if "logprobs" not in setup.calls and not setup.trains_on_policy:
        kept.append(scores_first("NeMo-RL"))
    return kept + ([] if setup.algorithm != "dapo" else [
        "DAPO's dynamic sampling (grpo.use_dynamic_sampling=true) generates more answers than planned"])  # fmt: skip


NEMO_RL = RlTarget(name="nemo-rl", framework="nemo-rl", release="0.6.0", files=_files, notes=_notes,
                   limits=Limits(step=_step, layouts=_layouts, engine=_engine, scores_by_train=True),
                   scores_first=lambda work: work.updates > 1 or work.lag > 0, option_file=OVERRIDES,
                   core=_SWITCHES, ray_engine=True,  # vllm_worker.py, distributed_executor_backend
                   engines=("vllm",), next_step=f"{_CHECKOUT}=... bash {SCRIPT} {_BEYOND}")  # fmt: skip
