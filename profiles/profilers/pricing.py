"""Prices kernels by the surfaces of the cost model, and fits constants of a device to the measured times.

No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.rates.rates import Rates
from ...cost_models.rates.surfaces import at_training_factor, attention_seconds, gemm_seconds
from .kernels import Kernel, Need

# Kinds that are one kernel of an eager framework, with the bytes that the cost model counts: they show the share of the
# memory bandwidth that such a kernel reaches. The others take several kernels, which move more.
SINGLE = ("norm", "residual", "accumulation")
CLASSES = {"gemm": "matmul", "attention": "attention", "update": "optimizer", "accumulation": "gradient accumulation"}
OTHERS = "norms, elementwise"
_SURFACES = ("gemm", "wide_gemm", "attention")
_FACTORS, _HALVINGS = (1e-4, 1e2), 60


def seconds(kernel: Kernel, rates: Rates) -> float:
    """Seconds of one call, as `cost_models.rates` prices it."""
    if kernel.kind == "gemm":
        return _gemm(kernel, rates)
    if kernel.kind == "attention":
        backward = kernel.direction == "backward"
        context, width = kernel["tokens"], kernel["head_dim"]
        return float(attention_seconds(rates.attention, kernel.flops, context, width, backward))
    factor = rates.stack.elementwise_traffic if kernel.fusable else 1.0
    return float(np.asarray(kernel.num_bytes * factor / rates.memory_bw_bytes_per_s))


def _gemm(kernel: Kernel, rates: Rates) -> float:
    surface, width = (rates.wide_gemm, rates.wide_element_bytes) if kernel.wide else (rates.gemm, rates.element_bytes)
    return float(gemm_seconds(surface, *kernel.product, width, contiguous=(kernel["n"], kernel["k"])))


def class_of(kernel: Kernel) -> str:
    """The term of a step that the kernel belongs to, in its words on the screen."""
    return CLASSES.get(kernel.kind, OTHERS)


def calls_per_step(need: Need, kernel: Kernel, num_micro_batches: float) -> float:
    """An optimizer steps once; with one micro-batch the model counts no sum of gradients."""
    if kernel.kind == "update":
        return need.calls[kernel]
    if kernel.kind == "accumulation" and num_micro_batches <= 1:
        return 0.0
    return need.calls[kernel] * num_micro_batches


@dataclass(frozen=True)
class Efficiencies:
    """Constants of assumptions.yaml for one GPU, as measured; None: no kernel of the profile shows it."""

    gemm: float | None  # training_factor of products
    attention: float | None  # training_factor of attention
    fused: float | None  # share of the memory bandwidth


def efficiencies(
    measured: Mapping[Kernel, float], needs: Iterable[Need], rates: Rates, bandwidth: float
) -> Efficiencies:
    """From seconds of kernels, weighted as the layouts run them. `rates`: what they were priced by; `bandwidth`: of the
    datasheet, bytes/s.

    gemm, attention: the training_factor under which all kernels of the kind together take what was measured. fused:
    bytes over seconds over bandwidth.
    """
    calls: dict[Kernel, float] = {}
    for need in needs:
        for kernel, number in need.calls.items():
            calls[kernel] = calls.get(kernel, 0.0) + number

    def factor(kind: str) -> float | None:
        chosen = {k: calls[k] * measured[k] for k in measured if k.kind == kind and k in calls}
        return _factor_for(sum(chosen.values()), {k: calls[k] for k in chosen}, rates) if chosen else None

    single = [k for k in measured if k.kind in SINGLE and k in calls]
    spent = sum(calls[k] * measured[k] for k in single)
    moved = sum(calls[k] * k.num_bytes for k in single)
    return Efficiencies(
        gemm=factor("gemm"),
        attention=factor("attention"),
        fused=moved / spent / bandwidth if spent else None,
    )


def _factor_for(spent_s: float, calls: Mapping[Kernel, float], rates: Rates) -> float:
    """The training_factor, without the stack's throughput, that prices `calls` at `spent_s`: by bisection, since what
    memory and the start of a kernel take does not scale with it."""
    low, high = _FACTORS
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        under = replace(rates, **{name: at_training_factor(getattr(rates, name), middle) for name in _SURFACES})
        low, high = (middle, high) if sum(n * seconds(k, under) for k, n in calls.items()) > spent_s else (low, middle)
    return math.sqrt(low * high) / rates.stack.throughput
