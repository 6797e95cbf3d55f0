"""The file of a kernel profile: YAML, every quantity with its unit. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_HEAD = """\
# Kernels of {model} in {dtype}, timed one by one: medians, and the quartiles of the samples beside this file.
# Written by `meshwright profile kernels`; it holds for the device and the versions that it names.
"""


def profile_text(document: Mapping[str, Any], date: str, samples: str) -> str:
    """`document` of kernel_profile as YAML. samples: name of the file of raw samples."""
    return "".join(f"{line}\n" for line in _lines(document, date, samples))


def _lines(document: Mapping[str, Any], date: str, samples: str) -> Iterator[str]:
    yield _HEAD.format(**document).rstrip("\n")
    yield "kind: kernel-profile"
    yield f"date: {date}"
    yield f"gpu: {document['gpu'] or 'null'}"
    yield f"model: {document['model']}"
    yield f"dtype: {document['dtype']}"
    yield f"samples: {samples}"
    yield "environment:"
    yield from (f"  {name}: {_quoted(value)}" for name, value in document["environment"].items())
    if known := {name: value for name, value in document["efficiencies"].items() if value is not None}:
        yield "# As in assumptions.yaml: training_factor of products and attention, share of the memory bandwidth."
        yield "efficiencies:"
        yield from (f"  {name}: {value:.4g}" for name, value in known.items())
    if "overlap" in document:
        yield "# Time factors of computing and of communicating, where both run at once."
        yield f"overlap: {{{', '.join(f'{name}: {value:.3f}' for name, value in document['overlap'].items())}}}"
    if "device" in document:
        yield from _device(document["device"])
    yield "layouts:"
    for layout in document["layouts"]:
        yield f"- layout: {_quoted(layout['layout_id'])}"
        yield f"  micro_batches: {layout['micro_batches']:g}"
        yield "  step:"
        yield from (f"    {name}: {_term(term)}" for name, term in layout["terms"].items())
        yield f"  not_timed: [{', '.join(map(_quoted, layout['missing']))}]"
    yield "kernels:"
    yield from (f"- {_kernel(kernel)}" for kernel in document["kernels"])
    if document["skipped"]:
        yield "skipped:"
    for skipped in document["skipped"]:
        yield f"- {{kernel: {_quoted(skipped['kernel'])}, reason: {_quoted(skipped['reason'])}}}"


def _device(device: Mapping[str, Any]) -> Iterator[str]:
    """What prices a device that no catalogue knows; profiles/cluster/measured_device.py says what it means."""
    yield "device:"
    yield f"  name: {device['name']}"
    for key, name, scale, unit in _DEVICE:
        if key in device:
            yield f"  {name}: {device[key] / scale:.5g} {unit}"
    for section in ("gemm", "attention", "in_place"):
        if section in device:
            yield f"  {section}: {{{', '.join(f'{key}: {value:.4g}' for key, value in device[section].items())}}}"
    for section, scale, unit in (("passes", 1e9, "GB/s"), ("latency", 1e-6, "us")):
        yield f"  {section}:"
        for key, pair in device[section].items():
            both = [f"{way}: {value / scale:.4g} {unit}" for way, value in zip(_WAYS, pair, strict=True)]
            yield f"    {key}: {{{', '.join(both)}}}"


_WAYS = ("forward", "backward")
_DEVICE = (("peak_flops_per_s", "peak", 1e9, "GFLOP/s"), ("memory_bytes", "memory", 2**30, "GiB"),
           ("memory_bw_bytes_per_s", "memory_bandwidth", 1e9, "GB/s"))  # fmt: skip


def _term(term: Mapping[str, float | None]) -> str:
    priced = f", priced: {_seconds(term['priced_s'])}" if term["priced_s"] is not None else ""
    return f"{{measured: {_seconds(term['measured_s'])}{priced}}}"


def _kernel(kernel: Mapping[str, Any]) -> str:
    shape = ", ".join(f"{dim}: {size}" for dim, size in kernel["shape"].items())
    parts = [f"kind: {kernel['kind']}", f"name: {_quoted(kernel['name'])}", f"direction: {kernel['direction']}",
             f"shape: {{{shape}}}", f"median: {_seconds(kernel['median_s'])}", f"low: {_seconds(kernel['low_s'])}",
             f"high: {_seconds(kernel['high_s'])}", f"samples: {kernel['samples']}"]  # fmt: skip
    if "flops_per_s" in kernel:
        parts.append(f"rate: {kernel['flops_per_s'] / 1e12:.4g} TFLOP/s")
    if "bytes_per_s" in kernel:
        parts.append(f"bandwidth: {kernel['bytes_per_s'] / 1e9:.4g} GB/s")
    if kernel["priced_s"] is not None:
        parts.append(f"priced: {_seconds(kernel['priced_s'])}")
    return f"{{{', '.join(parts)}}}"


def _seconds(value: float | None) -> str:
    return "null" if value is None else f"{value * 1e6:.5g} us"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
