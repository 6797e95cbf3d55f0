"""Switches of expert parallelism: the dispatch of tokens, and overlap with it."""

from __future__ import annotations

from ...cost_models.cuda_graphs import GRAPH_CODE, RANK_CAPACITY, STASH_FACTOR
from ...cost_models.layouts import Layout
from ...cost_models.problem import Problem
from ...cost_models.specs.cluster import BLACKWELL
from .base import Situation, Switch
from .megatron import of_megatron

# A token is sent to all ranks, once per expert, or once per node.
_DISPATCH = {"allgather": "allgather", "alltoall": "alltoall", "deepep": "deduplicated", "hybridep": "deduplicated"}
_NODE = 8  # GPUs of an NVLink domain of DeepEP, at most (deepseek-ai/DeepEP, NUM_MAX_NVL_PEERS)
_TYPE, _BACKEND = "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"
# DeepEP and HybridEP take fp32 probabilities only. Others are cast, with a warning in every dispatch (Megatron-LM
# d98e8a64, core/transformer/moe/token_dispatcher.py:1139 and :1316).
_ROUTER = "--moe-router-dtype"
_FLEX = {_TYPE: "flex", _ROUTER: "fp32"}


def has_experts(problem: Problem) -> bool:
    """Whether the model is a mixture of experts."""
    return problem.model.is_moe


def spreads_experts(layout: Layout) -> bool:
    """Whether tokens are sent to other ranks."""
    return layout.ep > 1


def _dispatchers(situation: Situation) -> tuple[str, ...]:
    """The preferred dispatchers.

    HybridEP is first on Blackwell and later, whose racks DeepEP rejects, and in NVLink domains larger than a node.
    DeepEP is first elsewhere. Both run on NVIDIA GPUs from Ampere on (Megatron-Bridge,
    training/flex_dispatcher_backend.py). With a capacity only the plain all-to-all is used, because DeepEP does not pad
    to it (core/transformer/transformer_config.py).
    """
    if situation.problem.model.capacity_factor is not None or situation.capability < 8.0:
        return ("alltoall",)
    wide = situation.capability >= BLACKWELL or situation.cluster.levels[0].size > _NODE
    return ("hybridep", "deepep") if wide else ("deepep", "hybridep")


MOE_DISPATCHER = Switch(
    name="moe_dispatcher",
    meaning="how tokens are sent to the ranks of their experts",
    values=tuple(_DISPATCH),
    changes=lambda stack, value: {"ep_dispatch": _DISPATCH[value]},
    source="deepseek-ai/DeepEP, README (HybridEP is its successor in Megatron Core): a token crosses to a node once",
    concerns=has_experts,
    subject="mixtures of experts",
    options=of_megatron({
        "allgather": {}, "alltoall": {_TYPE: "alltoall"},
        "deepep": {**_FLEX, _BACKEND: "deepep"}, "hybridep": {**_FLEX, _BACKEND: "hybridep"},
    }, nemo=("allgather", "alltoall", "deepep")),
    companions=frozenset({_ROUTER}),
    choices=_dispatchers,
)  # fmt: skip
EP_OVERLAP = Switch(
    name="ep_overlap",
    meaning="tokens of one micro-batch travel to experts while another one computes",
    values=("off", "on"),
    axis=True,
    # One more forward pass runs ahead and reuses the memory that the parallel backward pass frees: no extra memory.
    source="ep_overlap_beside of stacks/generic.yaml; Megatron-LM pipeline_parallel/schedules.py",
    concerns=has_experts,
    subject="mixtures of experts",
    applies=spreads_experts,
    needs={"on": {"moe_dispatcher": ("alltoall", "deepep", "hybridep")}},  # core/transformer/transformer_config.py
    options=of_megatron({"off": {}, "on": {"--overlap-moe-expert-parallel-comm": True}}, nemo=("off",)),
    choices=lambda situation: ("off", "on"),
)  # fmt: skip


def _delays(situation: Situation) -> tuple[str, ...]:
    """Off where attention has biases.

    Megatron-Bridge rejects it with graphs of such attention (067f987d, training/comm_overlap.py: "does not support
    attention bias for now").
    """
    biased = any(attention.qkv_bias or attention.output_bias for attention in situation.problem.model.attentions)
    return ("off",) if biased else ("on",)


DELAY_WGRAD = Switch(
    name="delay_wgrad",
    meaning="weight gradients of experts wait until their tokens travel back",
    values=("off", "on"),
    source="Megatron-LM core/transformer/transformer_config.py, delay_wgrad_compute; not priced by itself",
    concerns=has_experts,
    subject="mixtures of experts",
    applies=lambda layout: bool(layout.ep_overlap),
    options=of_megatron({"off": {}, "on": {"--delay-wgrad-compute": True}}, nemo=("off",)),
    choices=_delays,
)
# An expert rank has room for 1.5 times its average tokens. Saved tensors are stashed in pages: 1.2 times the average on
# the GPU, the rest on the host. Source: recipes of Megatron-Bridge (perf_recipes/qwen,
# _enable_hybridep_full_iteration_mxfp8) and checks of Megatron Core (core/transformer/transformer_config.py:1868).
# TransformerEngine fuses gates that are interleaved with values every 32 columns (ops/fused/grouped_mlp.py).
_STASH = {
    "--moe-paged-stash": True, "--moe-paged-stash-buffer-size-factor-cuda": STASH_FACTOR,
    "--moe-paged-stash-buffer-size-factor-cpu": 1.0, "--moe-expert-rank-capacity-factor": RANK_CAPACITY,
    "--use-transformer-engine-op-fuser": True, "--moe-mlp-glu-interleave-size": 32,
}  # fmt: skip


def _stash_choices(situation: Situation) -> tuple[str, ...]:
    """Off where experts read token counts back to the host (the function in `needs`).

    These are GPUs before Hopper, Blackwell for workstations, and fp32. Also off with a capacity, which fixes shapes.
    """
    dropless = situation.problem.model.capacity_factor is None
    able = 9.0 <= situation.capability <= 11.0 and situation.problem.workload.precision != "fp32"
    return ("on", "off") if dropless and able else ("off",)


MOE_PAGED_STASH = Switch(
    name="moe_paged_stash",
    meaning="experts have fixed shapes, and no token is dropped: an iteration that overflows runs again without graphs",
    values=("off", "on"),
    source="Megatron-LM core/transformer/moe/paged_stash.py, PagedStashRunner",
    concerns=has_experts,
    subject="mixtures of experts",
    applies=lambda layout: layout.cuda_graphs == GRAPH_CODE["full_iteration"],
    # Under other recipes experts read token counts back to the host, which excludes graphs: TransformerEngine e7c550c5,
    # pytorch/ops/basic/grouped_linear.py, _is_graph_safe_path_supported.
    needs={"on": {"moe_dispatcher": ("hybridep",), "fp8_recipe": ("mxfp8", "current")}},
    options=of_megatron({"off": {}, "on": _STASH}, nemo=("off",)),
    choices=_stash_choices,
)
MOE_PERMUTE_FUSION = Switch(
    name="moe_permute_fusion",
    meaning="one kernel puts tokens in the order of experts, and one sums up what comes back",
    values=("off", "on"),
    changes=lambda stack, value: {"sums_rows": "fused" if value == "on" else "scatter_add"},
    source="Megatron-LM core/transformer/moe/moe_utils.py, unpermute; TransformerEngine pytorch/permutation.py",
    concerns=has_experts,
    subject="mixtures of experts",
    options=of_megatron({"off": {}, "on": {"--moe-permute-fusion": True}}),
    choices=lambda situation: ("on",),
)
MOE_FORCE_BALANCE = Switch(
    name="moe_force_balance",
    meaning="every expert gets equally many tokens, drawn at random: for benchmarks",
    values=("off", "on"),
    changes=lambda stack, value: {"moe_imbalance": 1.0} if value == "on" else {},
    source="Megatron-LM core/transformer/moe/moe_utils.py, apply_random_logits",
    concerns=has_experts,
    subject="mixtures of experts",
    options=of_megatron({"off": {}, "on": {"--moe-router-force-load-balancing": True}}),
)
