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


# Switches of frameworks of post-training, which pack answers of all lengths. Most are left as Megatron-Core has them:
# files set none of them. verl-project/verl@1dda039b, workers/engine/megatron/transformer_impl.py, provider_overrides
# (alltoall), utils/megatron_utils.py, ddp_config_dict (sums in fp32), utils/megatron/tensor_parallel.py
# (vocab_parallel_cross_entropy on fp32 logits); inclusionAI/AReaL@4aef98d8, api/cli_args.py, models/mcore/registry.py.
# Reductions of gradients overlap, and tokens are permuted by one kernel, by options that they leave off, and that our
# files give (register_megatron_training_hooks of verl, engine/megatron_engine.py of AReaL, slime's
# megatron_utils/model.py do what the first needs). Gathers of weights do not: files give no option for them.
PLAIN: Settings = {
    "moe_dispatcher": "alltoall", "tp_comm_overlap": "off", "cross_entropy": "parallel", "grad_reduce_dtype": "fp32",
    "overlap_grad_reduce": "on", "overlap_param_gather": "off", "moe_permute_fusion": "on",
}  # fmt: skip


def overlaps(layout: Layout) -> bool:
    """Whether there are gradients of copies to reduce beside the backward pass."""
    return layout.dp * layout.cp > 1


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
