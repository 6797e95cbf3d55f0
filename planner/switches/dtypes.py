"""Switches of numerics: the dtype of gradient reductions, and the quantisation of tensors.

A search never compares them. The switches of NUMERICS change the trained model: they keep the framework's values
unless requested. Gathers of quantised weights are on wherever they are legal.
"""

from __future__ import annotations

from ...cost_models.layouts import OPTIMIZER_ON_HOST, Layout
from ...cost_models.specs.cluster import BLACKWELL
from .base import Situation, Switch
from .megatron import of_megatron

_GRADIENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
# Bytes to quantise an element in both layouts. Delayed scaling needs no maximum, and the previous norm or activation
# writes two fp8 layouts instead of one in bf16. MXFP8 and blocks: one read (2) and two writes (2). A maximum over the
# whole tensor needs another read (2). TransformerEngine, pytorch/module/_common.py and tensor/*_tensor.py; torchao.
CAST_DELAYED = 2.0
_CAST_BLOCKS = 4.0
CAST_CURRENT = 6.0
_CASTS = {"delayed": CAST_DELAYED, "mxfp8": _CAST_BLOCKS, "blockwise": _CAST_BLOCKS, "current": CAST_CURRENT}
_CASTS |= dict.fromkeys(("tensorwise-dynamic", "rowwise-dynamic"), CAST_CURRENT)


_MEGATRON_RECIPES = {"delayed": "delayed", "current": "tensorwise", "blockwise": "blockwise", "mxfp8": "mxfp8"}


def _recipe(situation: Situation) -> tuple[str, ...]:
    """Blackwell quantises blocks of 32 in hardware. Earlier GPUs scale whole tensors by their maximum."""
    return ("mxfp8" if situation.capability >= BLACKWELL else "current",)


GRAD_REDUCE_DTYPE = Switch(
    name="grad_reduce_dtype",
    meaning="dtype in which gradients are accumulated and reduced",
    values=tuple(_GRADIENT_BYTES),
    # A run in fp16 that states fp32 had --accumulate-allreduce-grads-in-fp32.
    changes=lambda stack, value: {"gradient_bytes": _GRADIENT_BYTES[value],
                                  **({"fp16_gradients": False} if value == "fp32" else {})},
    source="bytes of the dtype",
    # fp32 and fp16 accumulate in their own dtype: Megatron-LM d98e8a64, training/arguments.py:1213.
    concerns=lambda problem: problem.workload.precision not in ("fp32", "fp16"),
    subject="training in bf16, fp8 or fp4",
    options=of_megatron({"fp32": {}, "bf16": {"--grad-reduce-in-bf16": True}}),
)
FP8_RECIPE = Switch(
    name="fp8_recipe",
    meaning="how the scale of a quantised tensor is found",
    values=tuple(_CASTS),
    changes=lambda stack, value: {"cast_bytes": _CASTS[value], "fuses_expert_blocks": value == "mxfp8",
                                  "scales_tensors": value in ("delayed", "current"),
                                  "gathers_in_bf16": value == "mxfp8"},
    source="TransformerEngine, pytorch/module/_common.py, tensor/*_tensor.py and ops/fused/grouped_mlp.py; torchao; "
           "Megatron-LM d98e8a64, core/distributed/param_and_grad_buffer.py:1160",
    concerns=lambda problem: problem.workload.precision == "fp8",
    subject="training in fp8",
    options=of_megatron({value: {"--fp8-recipe": spelled} for value, spelled in _MEGATRON_RECIPES.items()}),
    choices=_recipe,
)


def _gathers(layout: Layout) -> bool:
    """Whether a distributed optimizer on the GPU updates weights.

    An optimizer on the host supports quantised weights under delayed scaling only, which is left out (Megatron-LM
    d98e8a64, training/arguments.py:1095 and 1889).
    """
    return layout.zero > 0 and layout.offload not in OPTIMIZER_ON_HOST


# MXFP8 keeps an additional bf16 buffer of weights unless the buffer of gradients replaces it:
# core/distributed/param_and_grad_buffer.py:1245.
_GATHER, _BUFFER = {"--fp8-param-gather": True}, {"--reuse-grad-buf-for-mxfp8-param-ag": True}
FP8_PARAM_GATHER = Switch(
    name="fp8_param_gather",
    meaning="weights of layers are kept and gathered in fp8, of MXFP8 through the buffer of gradients",
    values=("off", "on", "grad_buffer"),
    changes=lambda stack, value: {"fp8_gather": value != "off"},
    source="torchao, enable_fsdp_float8_all_gather; Megatron-LM d98e8a64, core/distributed/param_and_grad_buffer.py",
    options=of_megatron({"off": {}, "on": _GATHER, "grad_buffer": {**_GATHER, **_BUFFER}}),
    concerns=lambda problem: problem.workload.precision == "fp8",
    subject="training in fp8",
    applies=_gathers,
    needs={"grad_buffer": {"fp8_recipe": ("mxfp8",)}},
    # training/config.py:1487 of Megatron-Bridge 51885cf1. Under FSDP it removes the buffer automatically.
    needs_of={target: {"on": {"fp8_recipe": ("delayed", "current", "blockwise")}}
              for target in ("megatron-bridge", "nemo")},
    choices=lambda situation: ("grad_buffer", "on"),
)
FP4_PARAM_GATHER = Switch(
    name="fp4_param_gather",
    meaning="weights of layers are kept and gathered in NVFP4",
    values=("off", "on"),
    changes=lambda stack, value: {"fp8_gather": value == "on"},
    source="Megatron-LM d98e8a64, core/distributed/param_and_grad_buffer.py",
    options=of_megatron({"off": {}, "on": {"--fp4-param-gather": True}}, nemo=("off",)),
    concerns=lambda problem: problem.workload.precision == "fp4",
    subject="training in fp4",
    applies=_gathers,
    choices=lambda situation: ("on",),
)
# These switches change the trained model. Gathers in 8 or 4 bits only omit a rounding to bf16.
NUMERICS = (GRAD_REDUCE_DTYPE, FP8_RECIPE)
