"""Megatron-Core (core_v0.16.1, core/transformer/transformer_config.py) as the trainer of post-training."""

from __future__ import annotations

from ....cost_models.layouts import Layout, modules_of
from ....cost_models.offload_modules import OFFLOAD_MODULES
from ...switches.base import Settings
from ..megatron.options import MODULES
from .limits import RlStep

# Optimizer -> its name there.
OPTIMIZERS = {"adamw": "adam", "adamw-bf16": "adam", "sgd": "sgd"}
# Targets whose layouts Megatron-Core runs; all others are written for FSDP.
CORE = ("megatron", "megatron-bridge", "nemo")


# Switches that frameworks of post-training leave as Megatron-Core has them: their files set none of them, and they pack
# answers of all lengths. verl-project/verl@1dda039b, workers/engine/megatron/transformer_impl.py, provider_overrides
# (alltoall), utils/megatron_utils.py, ddp_config_dict (sums in fp32), utils/megatron/tensor_parallel.py
# (vocab_parallel_cross_entropy on fp32 logits); inclusionAI/AReaL@4aef98d8, api/cli_args.py, models/mcore/registry.py.
# Data parallelism overlaps by an option that all of them have, and that verl and AReaL leave off unless it is given.
PLAIN: Settings = {
    "moe_dispatcher": "alltoall", "tp_comm_overlap": "off", "cross_entropy": "parallel", "grad_reduce_dtype": "fp32",
}  # fmt: skip


def on_core(step: RlStep) -> bool:
    """Whether Megatron-Core trains, and not FSDP."""
    return step.trainer in CORE


def recomputed(layout: Layout) -> list[str]:
    """`recompute_modules` of selective recomputation; `moe` also runs the shared experts."""
    modules = modules_of(layout.recompute_modules)
    return [MODULES[name] for name in modules if name != "shared" or "moe" not in modules]


def offloaded(layout: Layout) -> list[str]:
    """`offload_modules`, whose saved activations go to the host."""
    return OFFLOAD_MODULES[layout.offload_modules].split("+")
