"""Bytes per element of activations and of casts to the dtype of products."""

from __future__ import annotations

from ..specs.stack import StackSpec
from ..specs.workload import Workload

FP32_BYTES = 4.0  # of an element
# Of a weight in 4-bit integers: 128 share a scale of 16 bits and a zero point of 4 (group_size of AutoAWQ and
# GPTQModel, `q_group_size`, `zero_point`).
INT4_BYTES = 0.5 + 2.5 / 128


def activation_bytes(workload: Workload) -> float:
    """Bytes per activation element: 2, or 4 in fp32 training (fp8 and fp4 training keep activations in bf16)."""
    return 4.0 if workload.precision == "fp32" else 2.0


def quantises_once(workload: Workload, stack: StackSpec, *, any_fp8_layout: bool) -> bool:
    """Whether a tensor is quantised in one layout. Float8Quantizer of TransformerEngine (e7c550c5, pytorch/csrc/
    quantizer.cpp) makes a transpose only where nvte_is_non_tn_fp8_gemm_supported says no; blocks are scaled along one
    side, so that they are quantised twice."""
    return any_fp8_layout and workload.precision == "fp8" and stack.scales_tensors and stack.caches_fp8_weights


def cast_bytes(workload: Workload, stack: StackSpec, *, any_fp8_layout: bool = False) -> float:
    """Moved to quantise one element in the layouts that products read: both, or one (`quantises_once`). In fp4
    (NVFP4BlockScaling of TransformerEngine; arXiv 2509.25149, section 4) a tensor is scaled as a whole and by blocks:
    read for its maximum (2), read (2), written twice. The Hadamard transform of one layout happens on the way, its
    maximum in the first pass."""
    if workload.precision != "fp8":
        return 2.0 + 2.0 + 2 * workload.operand_bytes
    left_out = workload.operand_bytes if quantises_once(workload, stack, any_fp8_layout=any_fp8_layout) else 0.0
    return stack.cast_bytes - left_out
