"""Rounding of weights and inputs in quantisation-aware training, as element-wise kernels of torch.

DeepSpeed edaa7221 (SymQuantizer, AsymQuantizer, QuantAct, LinearLayer_Compress): every statement is a kernel that reads
and writes all elements, a minimum or maximum one that reads them. The gradient passes through, by a copy. A product
keeps what was rounded, for its backward pass.
"""

from __future__ import annotations

from ..arrays import Array
from .operation_builder import Builder
from .operations import LayerOperations, MemoryTraffic, Saved

# (range, symmetric) -> times that an element is read or written, kernels.
_ROUNDS = {("dynamic", True): (11, 8), ("dynamic", False): (14, 13), ("static", True): (10, 18),
           ("static", False): (14, 21)}  # fmt: skip
_BACKWARD = 2
# Whether symmetric -> times that an element is read or written in place (quantize_highbit of its Quantizer).
IN_PLACE = {True: 12, False: 16}


def add_rounding(builder: Builder, ops: LayerOperations) -> None:
    """Rounds the weights and inputs of the products of a layer, but for those that stay in higher precision."""
    rounding, w = builder.workload.rounding, builder.activation_bytes
    if rounding is None:
        return
    for gemm in [product for product in ops.gemms if not product.wide]:
        if rounding.weights == "forward":
            weights = gemm.count * gemm.n * gemm.k
            _add(ops, "rounded weights", w * weights, ("dynamic", rounding.symmetric_weights), gemm.tag)
            ops.saved.append(Saved("rounded weights", w * weights, gemm.tag))
        if rounding.inputs != "none":
            inputs = gemm.count * gemm.m * gemm.k
            _add(ops, "rounded inputs", w * inputs, (rounding.inputs, rounding.symmetric_inputs), gemm.tag)


def _add(ops: LayerOperations, name: str, num_bytes: Array, how: tuple[str, bool], tag: int) -> None:
    moved, kernels = _ROUNDS[how]
    ops.traffic.append(MemoryTraffic(name, moved * num_bytes, _BACKWARD * num_bytes, tag, fusable=False))
    ops.kernels = ops.kernels + kernels
