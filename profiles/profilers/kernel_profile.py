"""`profile kernels`: times the kernels of some layouts, and writes down what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from ...cost_models.rates.rates import Rates
from . import pricing, runners, timing
from .kernel_ranks import SAVED, TIME_IT, Ranks
from .kernels import Kernel, Need
from .runners import NO_CUSTOM_KERNELS, CustomKernels
from .samples import SampleRange, Samples

# The loss in bf16 is the widest: logits 2, fp32 copy and log-softmax 4 each, gradients 4 and 2.
PEAK_OVER_INPUTS = 8
_LEAST_REST = 0.1  # of both passes, that the backward pass takes at least
ALONE = Ranks()
Progress = Callable[[float, float, str], None]


def key_of(kernel: Kernel) -> str:
    """`gemm forward m=8192 n=3072 k=2048`: its line in the file of samples."""
    return " ".join([kernel.kind, kernel.direction, *(f"{dim}={size}" for dim, size in kernel.shape)])


@dataclass(frozen=True)
class Measured:
    """The outcome of timing kernels."""

    spreads: dict[Kernel, SampleRange]  # of every kernel that was timed, seconds
    skipped: dict[Kernel, str]  # why the others were not timed


def measure(
    kernels: Sequence[Kernel], dtype: str, device: torch.device, effort: timing.Effort, samples: Samples,
    progress: Progress = lambda done, total, note: None, custom: CustomKernels = NO_CUSTOM_KERNELS,
    ranks: Ranks = ALONE,
) -> Measured:  # fmt: skip
    """Times kernels; what `samples` holds already is not timed again. A kernel that does not fit is skipped, and so is
    what comes after the time is up (Effort.total_s)."""
    spreads: dict[Kernel, SampleRange] = {}
    skipped: dict[Kernel, str] = {}
    clock = timing.Clock(effort)
    for done, kernel in enumerate(kernels):
        progress(done, len(kernels), f"{kernel.name}, {kernel.direction}")
        key = key_of(kernel)
        decision = ranks.agree(SAVED if key in samples.by_key else _against(kernel, dtype, device, clock))
        if decision == TIME_IT:
            times = _timed(kernel, dtype, device, effort, clock, custom)
            forward = spreads.get(replace(kernel, direction="forward"))
            if kernel.kind in custom.with_forward and kernel.direction == "backward" and forward is not None:
                times = [max(both - forward.median, _LEAST_REST * both) for both in times]
            samples.add(key, times)
        elif decision != SAVED:
            skipped[kernel] = decision
            continue
        if key in samples.by_key:
            spreads[kernel] = SampleRange.of(samples.by_key[key])
    return Measured(spreads, skipped)


def _against(kernel: Kernel, dtype: str, device: torch.device, clock: timing.Clock) -> str:
    """Why a kernel is not timed, or TIME_IT."""
    if (reason := clock.refuses(kernel.flops, kernel.num_bytes)) is not None:
        return reason
    num_bytes = runners.input_bytes(kernel, dtype)
    needed = PEAK_OVER_INPUTS * num_bytes * timing.sets(num_bytes, device)
    return "it does not fit into memory" if needed > timing.free_bytes(device) else TIME_IT


def _timed(
    kernel: Kernel, dtype: str, device: torch.device, effort: timing.Effort, clock: timing.Clock, custom: CustomKernels
) -> list[float]:
    """Samples of one kernel; its inputs are gone when it returns."""
    num_bytes = runners.input_bytes(kernel, dtype)
    times = timing.sample(lambda: runners.make(kernel, dtype, device, custom), num_bytes, device, effort)
    clock.learn(kernel.flops, kernel.num_bytes, min(times))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return times


def document(
    measured: Measured, needs: Sequence[Need], about: Mapping[str, str], *, model: str, dtype: str, gpu: str,
    rates: Rates | None, num_micro_batches: Sequence[float], bandwidth: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """The profile, in base units. rates: of the GPU that was measured, None where nothing is known of it."""
    medians = {kernel: spread.median for kernel, spread in measured.spreads.items()}
    efficiencies = pricing.efficiencies(medians, needs, rates, bandwidth) if rates else None
    return {
        "kind": "kernel-profile", "model": model, "dtype": dtype, "gpu": gpu, "environment": dict(about),
        "kernels": [_item(kernel, spread, rates) for kernel, spread in measured.spreads.items()],
        "skipped": [{"kernel": key_of(kernel), "reason": reason} for kernel, reason in measured.skipped.items()],
        "layouts": [_layout(need, m, measured, rates) for need, m in zip(needs, num_micro_batches, strict=True)],
        "efficiencies": asdict(efficiencies) if efficiencies else {},
    }  # fmt: skip


def _item(kernel: Kernel, spread: SampleRange, rates: Rates | None) -> dict[str, Any]:
    priced = pricing.seconds(kernel, rates) if rates else None
    work = {"flops_per_s": kernel.flops / spread.median} if kernel.flops else {}
    moved = {"bytes_per_s": kernel.num_bytes / spread.median} if kernel.num_bytes else {}
    return {"name": kernel.name, "kind": kernel.kind, "direction": kernel.direction, "shape": dict(kernel.shape),
            "median_s": spread.median, "low_s": spread.low, "high_s": spread.high, "samples": spread.number,
            **work, **moved, "priced_s": priced}  # fmt: skip


def _layout(need: Need, num_micro_batches: float, measured: Measured, rates: Rates | None) -> dict[str, Any]:
    """Seconds of a step by class of kernel: measured, and priced for the same kernels."""
    terms: dict[str, dict[str, float | None]] = {}
    for kernel, spread in measured.spreads.items():
        if kernel not in need.calls:
            continue
        calls = pricing.calls_per_step(need, kernel, num_micro_batches)
        term = terms.setdefault(pricing.class_of(kernel), {"measured_s": 0.0, "priced_s": 0.0 if rates else None})
        term["measured_s"] = (term["measured_s"] or 0.0) + calls * spread.median
        if rates:
            term["priced_s"] = (term["priced_s"] or 0.0) + calls * pricing.seconds(kernel, rates)
    missing = [*need.missing, *sorted({k.name for k in need.calls if k in measured.skipped})]
    return {"layout_id": str(need.layout), "micro_batches": num_micro_batches, "terms": terms, "missing": missing}
