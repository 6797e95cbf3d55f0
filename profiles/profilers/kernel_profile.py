"""`profile kernels`: times the kernels of some layouts, and writes down what was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from ...cost_models.rates.rates import Rates
from . import pricing, runners, timing
from .kernel_ranks import SAVED, TIME_IT, Ranks
from .kernel_results import KernelProfile, LayoutTimes, SkippedKernel, StepTerm, TimedKernel
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


def profile_of(
    measured: Measured, needs: Sequence[Need], environment: Mapping[str, str], *, model: str, dtype: str, gpu: str,
    rates: Rates | None, num_micro_batches: Sequence[float], bandwidth: float = 0.0,
) -> KernelProfile:  # fmt: skip
    """The profile of what was measured. rates: of the GPU that was measured, None where nothing is known of it;
    bandwidth: of its memory by the datasheet, bytes/s."""
    medians = {kernel: samples.median for kernel, samples in measured.spreads.items()}
    efficiencies = asdict(pricing.efficiencies(medians, needs, rates, bandwidth)) if rates else {}
    return KernelProfile(
        model=model, dtype=dtype, gpu=gpu, environment=environment, efficiencies=efficiencies,
        kernels=tuple(_timed_kernel(kernel, samples, rates) for kernel, samples in measured.spreads.items()),
        skipped=tuple(SkippedKernel(key_of(kernel), reason) for kernel, reason in measured.skipped.items()),
        layouts=tuple(_layout(need, number, measured, rates)
                      for need, number in zip(needs, num_micro_batches, strict=True)),
    )  # fmt: skip


def _timed_kernel(kernel: Kernel, samples: SampleRange, rates: Rates | None) -> TimedKernel:
    return TimedKernel(
        name=kernel.name, kind=kernel.kind, direction=kernel.direction, shape=dict(kernel.shape),
        median_s=samples.median, low_s=samples.low, high_s=samples.high, samples=samples.number,
        flops_per_s=kernel.flops / samples.median if kernel.flops else None,
        bytes_per_s=kernel.num_bytes / samples.median if kernel.num_bytes else None,
        priced_s=pricing.seconds(kernel, rates) if rates else None,
    )  # fmt: skip


def _layout(need: Need, num_micro_batches: float, measured: Measured, rates: Rates | None) -> LayoutTimes:
    """Seconds of a step by class of kernel: measured, and priced for the same kernels."""
    terms: dict[str, StepTerm] = {}
    for kernel, samples in measured.spreads.items():
        if kernel not in need.calls:
            continue
        calls = pricing.calls_per_step(need, kernel, num_micro_batches)
        name = pricing.class_of(kernel)
        priced_s = calls * pricing.seconds(kernel, rates) if rates else None
        term = terms.get(name, StepTerm(0.0, 0.0 if rates else None))
        terms[name] = term.plus(calls * samples.median, priced_s)
    missing = [*need.missing, *sorted({kernel.name for kernel in need.calls if kernel in measured.skipped})]
    return LayoutTimes(str(need.layout), num_micro_batches, terms, tuple(missing))
