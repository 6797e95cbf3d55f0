"""Switches of kernels: attention, loss, norms, compilation, accumulation of gradients."""

from __future__ import annotations

from typing import get_args

from ...cost_models.specs.stack import AttentionKernel, StackSpec
from .base import Changes, Switch, of
from .megatron import of_megatron

# Forward kernels of a decoder layer after torch.compile has fused its element-wise chains: as many as with
# TransformerEngine's fusions (stacks/megatron-core.yaml; assumed).
COMPILED_KERNELS = 14
COMPILED_TRAFFIC = 1.0  # over perfect fusion; 1 by definition, because torch.compile reads and writes each tensor once
# Bytes moved per logit and held at the loss. Moved: FIDELITY 3. Held: fused in place of the logits (2 and an fp32
# softmax of 4), torch as stacks/torch-fsdp.yaml counts it; None: as the stack does it.
# log_softmax: NVIDIA-NeMo/RL@5fb58893, distributed/model_utils.py, DistributedLogprob: a cast (6), maximum (4), shift
# (8), exponentials (8), sum (4), shift (8), exponentials (8); backwards a negation (8), product (8) and cast (6). Held:
# fp32 logits, shifted ones and exponentials (12).
_LOSS = {"fused": (14.0, 6.0), "plain": (24.0, 12.0), "parallel": (56.0, None), "log_softmax": (68.0, 12.0)}


def _loss(stack: StackSpec, value: str) -> Changes:
    # torch's own takes all logits: a loss that splits the vocabulary is called `parallel` or `fused`.
    whole = {"split_logits": False} if value == "plain" else {}
    traffic_bytes, logit_bytes = _LOSS[value]
    if value == "plain" and stack.loss_traffic_bytes == traffic_bytes:  # else it is the stack's own, as that says
        return whole
    held_bytes = stack.logit_bytes if logit_bytes is None else logit_bytes
    return {**whole, "loss_traffic_bytes": traffic_bytes, "logit_bytes": held_bytes}


def _compiled(stack: StackSpec, value: str) -> Changes:
    """The changes of compilation: element-wise chains become one kernel each."""
    if value == "off":
        return {}
    fused = dict.fromkeys(("fused_norms", "fused_positions", "fused_scaled_positions", "fused_activation"), True)
    kernels = min(stack.kernels_per_layer, COMPILED_KERNELS)
    return {**fused, "elementwise_traffic": COMPILED_TRAFFIC, "kernels_per_projection": 0.0,
            "kernels_per_layer": kernels}  # fmt: skip


ATTENTION = Switch(
    name="attention",
    meaning="kernel of core attention",
    values=get_args(AttentionKernel),
    changes=lambda stack, value: {"attention": value},
    source="docs/reference/efficiencies.md: each kernel has its own efficiencies",
    # By itself (`auto`) TransformerEngine takes what the stack says: pytorch/attention/dot_product_attention/utils.py,
    # get_attention_backend. `flash` is FlashAttention 3 where that is installed, else 2. Megatron-Bridge and NeMo have
    # an enum in place of the words, which is not written.
    options={
        **of("megatron", {"flash2": {"--attention-backend": "flash"}, "flash3": {"--attention-backend": "flash"},
                          "cudnn": {"--attention-backend": "fused"}, "unfused": {"--attention-backend": "unfused"}}),
        **of("megatron-bridge", {"cudnn": {}}),
        **of("nemo", {"cudnn": {}}),
    },
)  # fmt: skip
CROSS_ENTROPY = Switch(
    name="cross_entropy",
    meaning="kernel of the loss: torch's on all logits, one over tensor-parallel ranks, that fused, or log-softmax in "
            "fp32 over them",
    values=tuple(_LOSS),
    changes=_loss,
    source="FIDELITY 3 (bytes moved per logit); stacks/torch-fsdp.yaml (bytes held)",
    concerns=lambda problem: problem.model.diffusion is None, subject="models with a loss on logits",
    # Releases after 0.19 refuse the kernel `te`.
    options=of_megatron({"parallel": {}, "fused": {"--cross-entropy-loss-fusion": True,
                                                   "--cross-entropy-fusion-impl": "native"}}),
    companions=frozenset({"--cross-entropy-fusion-impl"}),
    choices=lambda situation: ("fused",),
)  # fmt: skip
NORMS = Switch(
    name="norms",
    meaning="whether a norm is one kernel",
    values=("eager", "fused", "compiled"),
    changes=lambda stack, value: {"fused_norms": value != "eager"},
    source="torchtitan of 2024, norm_type: fused_rmsnorm, compiled_rmsnorm, rmsnorm",
)
GRADIENT_ACCUMULATION_FUSION = Switch(
    name="gradient_accumulation_fusion",
    meaning="products of weight gradients add to the sum themselves",
    values=("off", "on"),
    changes=lambda stack, value: {"fused_accumulation": value == "on"},
    source="Megatron-LM, --no-gradient-accumulation-fusion",
)
TORCH_COMPILE = Switch(
    name="torch_compile",
    meaning="blocks are compiled: chains of element-wise operations become one kernel",
    values=("off", "on"),
    changes=_compiled,
    source="by definition of a perfectly fused chain; kernels as with TransformerEngine (assumed)",
    options=of("torchtitan", {"off": {}, "on": {"compile.enable": True}}),
    choices=lambda situation: ("on",),
)
