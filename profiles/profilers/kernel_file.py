"""The file of a kernel profile: YAML, every quantity with its unit. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from .kernel_results import DeviceRates, KernelProfile, StepTerm, TimedKernel

_HEAD = """\
# Kernels of {model} in {dtype}, timed one by one: medians, and the quartiles of the samples beside this file.
# Written by `meshwright profile kernels`; it holds for the device and the versions that it names.
"""


def profile_text(profile: KernelProfile, date: str, samples: str) -> str:
    """The profile as YAML. samples: name of the file of raw samples."""
    return "".join(f"{line}\n" for line in _lines(profile, date, samples))


def _lines(profile: KernelProfile, date: str, samples: str) -> Iterator[str]:
    yield _HEAD.format(model=profile.model, dtype=profile.dtype).rstrip("\n")
    yield "kind: kernel-profile"
    yield f"date: {date}"
    yield f"gpu: {profile.gpu or 'null'}"
    yield f"model: {profile.model}"
    yield f"dtype: {profile.dtype}"
    yield f"samples: {samples}"
    yield "environment:"
    yield from (f"  {name}: {_quoted(value)}" for name, value in profile.environment.items())
    if known := {name: value for name, value in profile.efficiencies.items() if value is not None}:
        yield "# As in assumptions.yaml: training_factor of products and attention, share of the memory bandwidth."
        yield "efficiencies:"
        yield from (f"  {name}: {value:.4g}" for name, value in known.items())
    if profile.overlap is not None:
        yield "# Time factors of computing and of communicating, where both run at once."
        yield f"overlap: {{{', '.join(f'{name}: {value:.3f}' for name, value in profile.overlap.items())}}}"
    if profile.device is not None:
        yield from _device(profile.device)
    yield "layouts:"
    for layout in profile.layouts:
        yield f"- layout: {_quoted(layout.layout_id)}"
        yield f"  micro_batches: {layout.micro_batches:g}"
        yield "  step:"
        yield from (f"    {name}: {_term(term)}" for name, term in layout.terms.items())
        yield f"  not_timed: [{', '.join(map(_quoted, layout.missing))}]"
    yield "kernels:"
    yield from (f"- {_kernel(kernel)}" for kernel in profile.kernels)
    if profile.skipped:
        yield "skipped:"
    for kernel in profile.skipped:
        yield f"- {{kernel: {_quoted(kernel.kernel)}, reason: {_quoted(kernel.reason)}}}"


def _device(device: DeviceRates) -> Iterator[str]:
    """The prices of a device that no catalogue knows; profiles/cluster/measured_device.py explains the fields."""
    yield "device:"
    yield f"  name: {device.name}"
    for field, name, scale, unit in _DEVICE:
        if (value := getattr(device, field)) is not None:
            yield f"  {name}: {value / scale:.5g} {unit}"
    for section, values in (("gemm", device.gemm), ("attention", device.attention), ("in_place", device.in_place)):
        if values is not None:
            yield f"  {section}: {{{', '.join(f'{name}: {value:.4g}' for name, value in values.items())}}}"
    for section, pairs, scale, unit in (("passes", device.passes, 1e9, "GB/s"),
                                        ("latency", device.latency, 1e-6, "us")):  # fmt: skip
        yield f"  {section}:"
        for name, pair in pairs.items():
            both = [f"{way}: {value / scale:.4g} {unit}" for way, value in zip(_WAYS, pair, strict=True)]
            yield f"    {name}: {{{', '.join(both)}}}"


_WAYS = ("forward", "backward")
_DEVICE = (("peak_flops_per_s", "peak", 1e9, "GFLOP/s"), ("memory_bytes", "memory", 2**30, "GiB"),
           ("memory_bw_bytes_per_s", "memory_bandwidth", 1e9, "GB/s"))  # fmt: skip


def _term(term: StepTerm) -> str:
    priced = f", priced: {_seconds(term.priced_s)}" if term.priced_s is not None else ""
    return f"{{measured: {_seconds(term.measured_s)}{priced}}}"


def _kernel(kernel: TimedKernel) -> str:
    shape = ", ".join(f"{dim}: {size}" for dim, size in kernel.shape.items())
    parts = [f"kind: {kernel.kind}", f"name: {_quoted(kernel.name)}", f"direction: {kernel.direction}",
             f"shape: {{{shape}}}", f"median: {_seconds(kernel.median_s)}", f"low: {_seconds(kernel.low_s)}",
             f"high: {_seconds(kernel.high_s)}", f"samples: {kernel.samples}"]  # fmt: skip
    if kernel.flops_per_s is not None:
        parts.append(f"rate: {kernel.flops_per_s / 1e12:.4g} TFLOP/s")
    if kernel.bytes_per_s is not None:
        parts.append(f"bandwidth: {kernel.bytes_per_s / 1e9:.4g} GB/s")
    if kernel.priced_s is not None:
        parts.append(f"priced: {_seconds(kernel.priced_s)}")
    return f"{{{', '.join(parts)}}}"


def _seconds(value: float) -> str:
    return f"{value * 1e6:.5g} us"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
