"""Bytes per element of activations and of casts to the dtype of products."""

from __future__ import annotations

from ..specs.stack import StackSpec
from ..specs.workload import Workload

FP32_BYTES = 4.0  # of an element


def activation_bytes(workload: Workload) -> float:
    """Bytes per activation element: 2, or 4 in fp32 training (fp8 and fp4 training keep activations in bf16)."""
    return 4.0 if workload.precision == "fp32" else 2.0


def cast_bytes(workload: Workload, stack: StackSpec) -> float:
    """Moved to quantise one element in both layouts that products read. In fp4 (NVFP4BlockScaling of TransformerEngine;
    arXiv 2509.25149, section 4) a tensor is scaled as a whole and by blocks: read for its maximum (2), read (2),
    written twice. The Hadamard transform of one layout happens on the way, its maximum in the first pass."""
    return stack.cast_bytes if workload.precision == "fp8" else 2.0 + 2.0 + 2 * workload.operand_bytes
