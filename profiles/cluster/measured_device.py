"""A device that no catalogue knows, such as a CPU rank under a quota, priced by what `profile kernels` measured on it.

    device:                     # of a kernel profile
      name: cpu-0.3-cores       # what a cluster file calls it: `groups: [{gpu: cpu-0.3-cores, ...}]`
      peak: 22.6 GFLOP/s        # the best product that was measured
      memory: 8 GiB             # that tensors may take
      memory_bandwidth: 9 GB/s  # of plain sums
      gemm: {efficiency: 0.97, ramp_k: 9.1, memory_efficiency: 0.8}                       # GemmSurface
      attention: {forward_efficiency: 0.4, backward_efficiency: 0.3, half_context: 40}    # AttentionSurface
      passes: {norms: {forward: 2 GB/s, backward: 3 GB/s}, ...}     # bytes as the cost model counts them; message: of
                                # one to another stage, at either end
      latency: {layer: {forward: 1.1 ms, backward: 2.3 ms}, ...}    # of a layer that has hardly any data;
                                # split: what it takes more in a schedule that splits the backward pass;
                                # weights: of that, what makes gradients of weights and may wait (both the same);
                                # ulysses: where it deals out its heads over cp, beside the all-to-alls;
                                # dispatch: where ranks share its experts, beside the all-to-alls;
                                # recompute layer, recompute attn, ...: where it recomputes all of itself or a module;
                                # message: of a rank that sends one to another stage, or receives it, beside its bytes
      in_place: {calls: 1.1, work: 1.3}    # a model takes so many times what its parts take by themselves: `latency`,
                                # and all else; it is in the others

A call's own time is in `latency`, once for all calls of a layer; the other constants are of work alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cost_models.layouts import MODULES
from ...cost_models.rates.surfaces import AttentionSurface, GemmSurface
from ...cost_models.specs.cluster import GpuSpec
from ..io.document import FieldPath
from ..io.facts import Facts
from ..io.registry import PRECISIONS, GpuEntry

PATH: FieldPath = ("device",)
GEMM = ("efficiency", "ramp_k", "memory_efficiency")
ATTENTION = ("forward_efficiency", "backward_efficiency", "half_context")
DIRECTIONS = ("forward", "backward")
# Operations of the cost model that move bytes and that a profile has rates of: traffic of a layer and of the ends of a
# model, the optimizer's step and the sum of gradients.
PASSES = ("norms", "residuals", "positions", "activation", "permute", "sort", "embedding", "final norm", "loss",
          "update", "accumulation", "message")  # fmt: skip
LATENCIES = ("layer", "moe layer", "embedding", "head", "split", "weights", "ulysses", "dispatch",
             "message", *(f"recompute {part}" for part in ("layer", *MODULES)))  # fmt: skip
IN_PLACE = ("calls", "work")
TILES = ((16, 16),)  # rows and columns of a block in a CPU's registers: products are cut this fine
_KEYS = ("name", "peak", "memory", "memory_bandwidth", "gemm", "attention", "passes", "latency", "in_place")
_CUT_EVENLY: Mapping[str, float] = {"num_sms": 1.0, "small_tile_factor": 1.0, "wave_quantisation": 0.0, "fixed_s": 0.0}


def entry(facts: Facts) -> GpuEntry | None:
    """The device of a kernel profile, None if it has none; what is wrong goes to `facts`."""
    if not facts.keys(PATH, _KEYS):
        return None
    before = len(facts.problems)
    dtype = facts.text(("dtype",), PRECISIONS, required=True)
    name = facts.text((*PATH, "name"), required=True)
    peak = facts.quantity((*PATH, "peak"), "FLOP/s", required=True)
    memory = facts.quantity((*PATH, "memory"), "B", required=True)
    bandwidth = facts.quantity((*PATH, "memory_bandwidth"), "B/s", required=True)
    measured = {"gemm": _numbers(facts, "gemm", GEMM), "attention": _numbers(facts, "attention", ATTENTION)}
    for section, names, unit in (("passes", PASSES, "B/s"), ("latency", LATENCIES, "s")):
        for direction in DIRECTIONS:
            measured[f"{section} {direction}"] = _quantities(facts, section, names, direction, unit)
    in_place = facts.document.at((*PATH, "in_place"))  # for people: the other numbers have it in them
    if in_place is not None and not isinstance(in_place, Mapping):
        facts.fail((*PATH, "in_place"), f"`{in_place}` must be a mapping of {' and '.join(IN_PLACE)}")
    elif in_place is not None:
        for way, factor in _numbers(facts, "in_place", IN_PLACE).items():
            if factor == 0:
                facts.fail((*PATH, "in_place", way), "`0` must be a number above 0")
    if len(facts.problems) > before or not (dtype and name and peak and memory and bandwidth):
        return None
    # Its links come with the cluster file; to itself it copies within its memory.
    spec = GpuSpec(name=name, vendor="", arch="", peak_flops_per_s={dtype: peak}, memory_bytes=memory,
                   memory_bw_bytes_per_s=bandwidth, link_bw_bytes_per_s=bandwidth / 2,
                   pcie_bw_bytes_per_s=bandwidth / 2, measured=measured)  # fmt: skip
    return GpuEntry(spec=spec, link_kind="pcie5", topology="switch", pair_only=False, usual_node=None)


def _numbers(facts: Facts, section: str, names: tuple[str, ...]) -> dict[str, float]:
    path = (*PATH, section)
    if not facts.keys(path, names):
        facts.fail(path, f"`{section}` is missing: its kernels were not timed", "`meshwright profile kernels --resume`")
        return {}
    numbers = {}
    for name in names:
        value = facts.value((*path, name), required=True)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            facts.fail((*path, name), f"`{value}` must be a number of at least 0")
        else:
            numbers[name] = float(value)
    return numbers


def _quantities(
    facts: Facts, section: str, names: tuple[str, ...], direction: str, unit: Any
) -> dict[str, float]:  # fmt: skip
    path, quantities = (*PATH, section), {}
    if not facts.keys(path, names):
        if direction == DIRECTIONS[0]:
            hint = "`meshwright profile kernels --resume`"
            facts.fail(path, f"`{section}` is missing: its kernels were not timed", hint)
        return {}
    for name in facts.document.at(path):
        facts.keys((*path, name), DIRECTIONS)
        if (value := facts.quantity((*path, name, direction), unit, required=True)) is not None:
            quantities[name] = value
    return quantities


def gemm(gpu: GpuSpec) -> dict[str, GemmSurface]:
    """Products of the dtype that was measured."""
    (dtype, peak), *_ = gpu.peak_flops_per_s.items()
    return {dtype: GemmSurface(peak_flops_per_s=peak, memory_bw_bytes_per_s=gpu.memory_bw_bytes_per_s, tiles=TILES,
                               source="measured", **_CUT_EVENLY, **gpu.measured["gemm"])}  # fmt: skip


def attention(gpu: GpuSpec) -> AttentionSurface:
    """Whatever kernel the software runs there: it is what was timed."""
    (peak,) = gpu.peak_flops_per_s.values()
    return AttentionSurface(peak_flops_per_s=peak, memory_bw_bytes_per_s=gpu.memory_bw_bytes_per_s,
                            narrow_head_factor=1.0, backward_work=1.0, source="measured",
                            **gpu.measured["attention"])  # fmt: skip


def pairs(gpu: GpuSpec, section: str) -> dict[str, tuple[float, float]]:
    """`passes` or `latency` of a device by name: (forward, backward). Empty for a device of the catalogue."""
    forward, backward = (gpu.measured.get(f"{section} {direction}", {}) for direction in DIRECTIONS)
    return {name: (value, backward[name]) for name, value in forward.items()}
