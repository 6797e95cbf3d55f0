"""Residual experts: a dense block beside the routed ones, whose outputs a small layer weighs (arXiv 2201.05596).

Source: DeepSpeed 38327e07, moe/layer.py (`coefficient`, MoE.forward). The dense block is the shared one of a model.
"""

from __future__ import annotations

from ..arrays import Array
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved

_KERNELS = 5.0  # the product with its bias, a softmax, two products with the weights, their sum


def parameters(hidden: int) -> int:
    """Elements of the linear layer that gives a token two weights."""
    return 2 * (hidden + 1)


def add_weighed_sum(builder: Builder, ops: LayerOperations, tokens: Array) -> None:
    """The sum of both outputs of these tokens, of which a rank has as many, with the two weights of each.

    Forward: each output read and its product written, both products read and the sum written. Backward: two products
    of the gradient with the weights, and for each weight a product of gradient and output, which is summed. Both
    outputs are kept."""
    moved = builder.activation_bytes * builder.model.hidden * tokens
    builder.add_gemm(ops, "coefficient", tokens, 2.0, builder.model.hidden)
    ops.saved.append(Saved("outputs that are weighed", 2 * moved))
    ops.traffic.append(MemoryTraffic("weighed sum of outputs", 7 * moved, 12 * moved, fusable=False))
    ops.kernels = ops.kernels + _KERNELS
