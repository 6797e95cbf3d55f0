"""Switches of overlap: collectives that overlap with compute."""

from __future__ import annotations

from collections.abc import Callable

from ...cost_models.problem import Problem
from ...cost_models.specs.stack import StackSpec
from .base import Changes, Options, Switch, of, on_off
from .megatron import of_megatron

_TP_SHARE = 0.45  # FIDELITY 6: tp_comm_overlap and async TP hide 42-47 %
_DP_SHARE = 0.8  # assumed, as dp_overlap of stacks/generic.yaml


def _hides(share: str) -> Callable[[StackSpec, str], Changes]:
    """The changes of a switch that hides collectives of data parallelism. share: the field of the stack."""
    return lambda stack, value: {share: max(getattr(stack, share), _DP_SHARE) if value == "on" else 0.0}


def _one_sequence(problem: Problem) -> bool:
    """Whether all products of a layer have the tokens of one sequence, as the buffers of Transformer Engine have them:
    CrossAttention of Megatron Core d98e8a64 has none for its own, and the layer fails with the overlap on."""
    return all(kind.cross_attention is None for kind in problem.model.kinds)


TP_COMM_OVERLAP = Switch(
    name="tp_comm_overlap",
    meaning="collectives of tensor parallelism run beside the products that they feed",
    values=("off", "on"),
    changes=on_off({"sequence_parallel_overlap": _TP_SHARE}),
    source="FIDELITY 6: tp_comm_overlap and async TP hide 42-47 %",
    concerns=_one_sequence, subject="models without cross attention",
    applies=lambda layout: bool(layout.sequence_parallel),
    needs={"on": {"torch_compile": ("on",)}},  # torchtitan v0.3.0, config/configs.py, CompileConfig.__post_init__
    options={**of_megatron({"off": {}, "on": {"--tp-comm-overlap": True}}),
             **of("torchtitan", {"off": {}, "on": {"compile.enable_async_tensor_parallel": True}})},
    choices=lambda situation: ("on",),
)  # fmt: skip
OVERLAP_GRAD_REDUCE = Switch(
    name="overlap_grad_reduce",
    meaning="gradients are reduced beside the backward pass",
    values=("off", "on"),
    changes=_hides("dp_overlap"),
    source="dp_overlap of stacks/generic.yaml",
    applies=lambda layout: layout.dp * layout.cp > 1,
    options={**of_megatron({"off": {}, "on": {"--overlap-grad-reduce": True}}),
             **of("deepspeed", {"off": {"zero_optimization.overlap_comm": False},
                                "on": {"zero_optimization.overlap_comm": True}})},
    choices=lambda situation: ("on",),
)  # fmt: skip
OVERLAP_PARAM_GATHER = Switch(
    name="overlap_param_gather",
    meaning="updated weights are gathered beside the first forward pass",
    values=("off", "on"),
    changes=_hides("dp_gather_overlap"),
    source="dp_gather_overlap of stacks/generic.yaml",
    applies=lambda layout: layout.dp * layout.cp > 1 and layout.zero > 0,
    needs={"on": {"layer_wise_layout": ("on",)}},  # Megatron-Bridge, recipes/kimi_vl/h100/kimi_k25_vl.py:174
    # Megatron-LM d98e8a64, training/arguments.py:1028. Only that parser requires it. Recipes of Bridge overlap gathers
    # without overlapping reductions (067f987d, perf_recipes/deepseek/h100/deepseek_v3.py:94).
    needs_of={"megatron": {"on": {"overlap_grad_reduce": ("on",)}}},
    options=of_megatron({"off": {}, "on": {"--overlap-param-gather": True}}),
    choices=lambda situation: ("on", "off"),
)


def _kept_whole(stack: StackSpec, value: str) -> Changes:
    """FSDP2 without a sync keeps the gradients of a micro-batch whole."""
    return {"sharded_states": "fsdp2" if value == "on" else "fsdp2-no-sync"} if stack.is_fsdp2 else {}


_SYNC = "accelerator_config"
_EACH: Options = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
SYNC_EACH_BATCH = Switch(
    name="sync_each_batch",
    meaning="gradients of sharded weights are scattered after every micro-batch, not kept whole until the last",
    values=("off", "on"),
    changes=_kept_whole,
    source="transformers 5.12, trainer.py, and accelerate 1.15, accelerator.py, no_sync: set_requires_gradient_sync",
    applies=lambda layout: layout.zero > 1,
    options={**{target: {"off": ({},), "on": ({f"training_arguments.{_SYNC}": _EACH},)}
                for target in ("accelerate", "trl", "llama-factory")},
             **of("axolotl", {"off": {}, "on": {_SYNC: _EACH}})},
    choices=lambda situation: ("on",),
)  # fmt: skip
