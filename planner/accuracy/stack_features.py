"""Changes of a stack by the recorded features of a run: one rule per feature, the same for every run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, get_args

from ...cost_models.specs.stack import AttentionKernel, StackSpec


class Notes(Protocol):
    """Takes the labels of assumptions."""

    def assume(self, label: str) -> None: ...


class NoNotes:
    """Drops the labels: for a run that is priced again."""

    def assume(self, label: str) -> None:
        pass


_KERNELS: tuple[AttentionKernel, ...] = get_args(AttentionKernel)
# The values of features, each with its source. FIDELITY: the fit of docs/reference/efficiencies.md, on published runs.
TP_OVERLAP = 0.45  # FIDELITY 6: tp_comm_overlap and async TP hide 42-47 %
EP_OVERLAP = 0.8  # FIDELITY 6: overlap of the all-to-all with another micro-batch hides 70-90 %
DP_OVERLAP = 0.8  # assumed, as dp_overlap of stacks/generic.yaml
# Share of a launch's host time left under CUDA graphs. FIDELITY 5: divided by 2 to 5 by graphs of layers; one launch
# replays a whole iteration (assumed: a twentieth remains, of the optimizer and the data).
GRAPHED_LAYERS, GRAPHED_ITERATION = 0.2, 0.05
GRAPHS = {"layer": GRAPHED_LAYERS, "full_iteration": GRAPHED_ITERATION}
# Where graphs hold only some modules. Attention and norms are 11 of the 14 kernels of a layer with TransformerEngine
# (stacks/megatron-core.yaml): the feed-forward block's three remain.
GRAPHED_ATTENTION = 0.2
# Kernels of an expert block that route and count: softmax, top-k, permutation maps, counts per expert and rank
# (assumed: over a third of the 110 of stacks/generic.yaml).
GRAPHED_ROUTER = 40
# Kernels of a decoder layer, forward, once torch.compile has fused its element-wise chains: as many as with
# TransformerEngine's own fusions (stacks/megatron-core.yaml; assumed).
COMPILED_KERNELS = 14
COMPILED_TRAFFIC = 1.0  # over perfectly fused: by definition, what torch.compile reads and writes once
# Bytes moved per logit and held at the loss. Moved: FIDELITY 3. Held: fused in place of the logits (2 and an fp32
# softmax of 4), torch as stacks/torch-fsdp.yaml counts it; None: as the stack does it.
LOSS = {"fused": (14.0, 6.0), "plain": (24.0, 12.0), "parallel": (56.0, None)}
# Dispatchers that send a token once per node (deepseek-ai/DeepEP, README; HybridEP is its Megatron Core successor).
DISPATCH = {"alltoall": "alltoall", "allgather": "alltoall", "deepep": "deduplicated", "hybridep": "deduplicated"}
# Bytes to quantise an element, both layouts. Delayed scaling needs no maximum, and is written by the norm or activation
# before it: two fp8 layouts instead of one in bf16. MXFP8 and blocks: read (2), written twice (2). A maximum of the
# whole tensor is read for first (2). TransformerEngine, pytorch/module/_common.py and tensor/*_tensor.py; torchao.
CAST_DELAYED = 2.0
CAST_BLOCKS = 4.0
CAST_CURRENT = 6.0
CASTS = {"delayed": CAST_DELAYED, "mxfp8": CAST_BLOCKS, "blockwise": CAST_BLOCKS, "current": CAST_CURRENT}
CASTS |= dict.fromkeys(("tensorwise-dynamic", "rowwise-dynamic"), CAST_CURRENT)
# Whether a norm is one kernel. torchtitan of 2024, norm_type: fused_rmsnorm, compiled_rmsnorm, rmsnorm.
NORMS = {"fused": True, "compiled": True, "eager": False}
GRADIENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def has_gpt_defaults(stack_name: str, family: str) -> bool:
    """Whether a run's GPT models have biases, learned positions and dropout: defaults of Megatron-LM's own scripts
    (training/arguments.py: hidden_dropout 0.1, add_bias_linear), which NeMo and Megatron-Bridge set anew."""
    return family == "megatron-lm" or stack_name.lower().startswith("megatron-core")


def with_features(stack: StackSpec, features: Mapping[str, Any], row: Notes) -> StackSpec:
    """`stack` as the run had it switched; what is not recorded stays as the family has it, with a label."""
    changed: dict[str, Any] = {}
    _attention(changed, features, row, stack)
    _overlaps(changed, features, stack)
    loss, reduced = features.get("loss"), features.get("grad_reduce")
    if loss == "plain":  # torch's, on all logits: a loss that splits the vocabulary is called `parallel` or `fused`
        changed["split_logits"] = False
    if loss not in LOSS:
        row.assume("loss kernel of the stack's family (not stated)")
    elif loss != "plain" or stack.loss_traffic_bytes != LOSS["plain"][0]:  # else it is the stack's own, as that says
        traffic_bytes, logit_bytes = LOSS[loss]
        changed["loss_traffic_bytes"] = traffic_bytes
        changed["logit_bytes"] = stack.logit_bytes if logit_bytes is None else logit_bytes
    if reduced in GRADIENT_BYTES:
        changed["gradient_bytes"] = GRADIENT_BYTES[reduced]
    else:
        row.assume("gradient dtype of the stack's family (not stated)")
    gathers = [features.get(key) for key in ("float8_allgather", "fp8_param_gather")]
    if any(isinstance(flag, bool) for flag in gathers):
        changed["fp8_gather"] = True in gathers
    if (recipe := str(features.get("fp8_recipe"))) in CASTS:
        changed["cast_bytes"] = CASTS[recipe]
    if isinstance(fused := features.get("gradient_accumulation_fusion"), bool):
        changed["fused_accumulation"] = fused
    if features.get("norms") in NORMS:
        changed["fused_norms"] = NORMS[features["norms"]]
    if features.get("torch_compile") is True:  # element-wise chains become one kernel each
        changed |= {"elementwise_traffic": COMPILED_TRAFFIC, "kernels_per_projection": 0.0}
        changed |= dict.fromkeys(("fused_norms", "fused_positions", "fused_activation"), True)
        changed["kernels_per_layer"] = min(stack.kernels_per_layer, COMPILED_KERNELS)
    _graphs(changed, features, stack)
    _experts(changed, features)
    return replace(stack, **changed)


def _graphs(changed: dict[str, Any], features: Mapping[str, Any], stack: StackSpec) -> None:
    """Graphs of a whole layer or step need fixed shapes: no token counts are read back."""
    graphs = str(features.get("cuda_graphs"))
    if graphs in GRAPHS:
        changed |= {"host_s_per_kernel": stack.host_s_per_kernel * GRAPHS[graphs], "dropless": False}
    elif graphs == "partial":
        modules = features.get("cuda_graph_modules") or ()
        if "attn" in modules:
            changed["kernels_per_layer"] = stack.kernels_per_layer * GRAPHED_ATTENTION
        if "moe_router" in modules:
            changed["kernels_per_expert_block"] = max(stack.kernels_per_expert_block - GRAPHED_ROUTER, 0.0)


def _attention(changed: dict[str, Any], features: Mapping[str, Any], row: Notes, stack: StackSpec) -> None:
    stated = str(features.get("attention") or "").split(" ")[0].lower()
    if features.get("attn_impl") == "triton":  # takes the bias of ALiBi, which the kernels of its time did not
        changed["attention"] = "triton"
    elif stated in _KERNELS:
        changed["attention"] = stated
    elif stated in ("flash", "flash-attention"):
        changed["attention"] = "flash2"
    else:
        row.assume(f"attention kernel {stack.attention}, the default of {stack.name} (not stated)")


def _overlaps(changed: dict[str, Any], features: Mapping[str, Any], stack: StackSpec) -> None:
    tp = features.get("tp_comm_overlap", features.get("async_tp"))
    if isinstance(tp, bool):
        changed["tp_overlap"] = max(stack.tp_overlap, TP_OVERLAP) if tp else stack.tp_overlap
    dp = features.get("dp_overlap")
    if dp is None:
        stated = [features.get(key) for key in ("grad_sync_overlap", "dp_overlap_grad")]
        dp = next((flag for flag in stated if isinstance(flag, bool)), None)
    if isinstance(dp, bool):
        changed["dp_overlap"] = max(stack.dp_overlap, DP_OVERLAP) if dp else 0.0
    gather = next((flag for key in ("param_sync_overlap", "dp_overlap_param", "dp_overlap")
                   if isinstance(flag := features.get(key), bool)), None)  # fmt: skip
    if gather is not None:
        changed["dp_gather_overlap"] = max(stack.dp_gather_overlap, DP_OVERLAP) if gather else 0.0
    if features.get("moe_a2a_overlap") is True:
        changed["ep_overlap"] = EP_OVERLAP


def _experts(changed: dict[str, Any], features: Mapping[str, Any]) -> None:
    """Forced balance: every expert gets the same; token drop: no expert gets more than its capacity."""
    dispatch = DISPATCH.get(str(features.get("moe_dispatcher")))
    if dispatch is not None:
        changed["ep_dispatch"] = dispatch
    capacity = features.get("moe_capacity_factor")
    if features.get("moe_force_balance") is True:
        changed["moe_imbalance"] = 1.0
    elif isinstance(capacity, int | float) and not isinstance(capacity, bool) and capacity > 0:
        changed["moe_imbalance"] = float(capacity)
    if features.get("moe_token_drop") is True or features.get("moe_pad_to_capacity") is True:
        changed["dropless"] = False
