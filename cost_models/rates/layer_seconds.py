"""Table 2: operations x Rates -> seconds per layer kind and shard key.

Quantities come from `operations`. Search, calibration and what-if share this path: a changed constant needs only this
step again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Array, Ints, Mask
from ..layouts import MODULES
from ..quantities.operations import Exchange, LayerOperations
from ..specs.stack import StackSpec
from . import collectives
from .products import batched, products
from .rates import Rates
from .surfaces import attention_seconds

# Components of the seconds of a layer, in the order of the component axis.
COMPONENTS = ("matmul", "attention", "memory", "tp", "cp", "ep", "host")
_ON_HOST = np.array([[float(name == "host")] for name in COMPONENTS])  # [component, 1]
_AXES = {"tp": 3, "cp": 4, "ep": 5}
_HOST = 6
_LAYERS = ("layer", "moe layer")  # names of operations, not of what stands at the ends of a model


@dataclass(frozen=True, slots=True)
class LayerSeconds:
    """Seconds of one kind of layer per micro-batch."""

    forward: Array  # [component, key] of all forward passes
    backward: Array  # [component, key]
    weight: Array  # [key] the part of `backward` that makes weight gradients
    recompute_by_tag: Mapping[int, Array]  # recompute tag -> [component, key] of operations with exactly that tag
    full_recompute_s: float = 0.0  # of recomputing the whole layer, beyond its forward pass
    # [key] that a forward and a backward pass take longer where no other micro-batch runs beside them (`ep_overlap`).
    alone: Array | float = 0.0
    gather_s: Array | float = 0.0  # [key] of gathering what the ranks of tp keep in parts, before a full recomputation
    reference: Array | float = 0.0  # [component, key] of `forward`, those of a frozen reference: never recomputed

    def recompute(self, modules: int) -> Array:
        """[component, key] seconds of selectively recomputing `modules` (bit mask)."""
        chosen = [seconds for tag, seconds in self.recompute_by_tag.items() if tag & modules]
        return np.asarray(sum(chosen)) if chosen else np.zeros_like(self.forward)


class _Sums:
    """Accumulates component seconds, in all and per recompute tag."""

    def __init__(self, num_keys: int) -> None:
        self.all = np.zeros((len(COMPONENTS), num_keys))
        self.tagged: dict[int, Array] = {}

    def add(self, component: int, seconds: Array, tag: int) -> None:
        self.all[component] += seconds
        if tag:
            self.tagged.setdefault(tag, np.zeros_like(self.all))[component] += seconds

    def untagged(self) -> _Sums:
        """The same in all, to change apart from these."""
        other = _Sums(self.all.shape[1])
        other.all += self.all
        return other

    def at(self, keys: Ints) -> _Sums:
        """The seconds of `keys`."""
        out = _Sums(len(keys))
        out.all = self.all[:, keys]
        out.tagged = {tag: seconds[:, keys] for tag, seconds in self.tagged.items()}
        return out


def layer_seconds(ops: LayerOperations, rates: Rates, num_keys: int, *, reference: bool = False) -> LayerSeconds:
    """Seconds of one kind of layer for every key, overlaps and the host floor applied; of a frozen copy, too."""
    if not (ops.gemms or ops.traffic or ops.exchanges or np.any(ops.kernels)):
        return LayerSeconds(_Sums(num_keys).all, _Sums(num_keys).all, np.zeros(num_keys), {})
    if ops.alike is None:
        forward, backward, weight = _products_and_exchanges(ops, rates, num_keys)
    else:
        first, index = ops.alike
        few = _products_and_exchanges(ops.products_of(first), rates, len(first))
        forward, backward, weight = few[0].at(index), few[1].at(index), few[2][index]
    _price_memory_bound(ops, rates, forward, backward)
    if ops.trains == "frozen":
        backward = _Sums(num_keys)
    host_s = ops.kernels * rates.stack.host_s_per_kernel
    forward_s, backward_s = rates.latency_s.get(ops.name, (host_s, 2 * host_s))
    exponent = np.where(ops.host_waits, 1.0, rates.host_exponent)
    alone = (1 + reference) * _alone_s(forward, rates.stack, ops, forward_s, exponent)
    alone = alone + _alone_s(backward, rates.stack, ops, backward_s, rates.host_exponent)
    _hide(forward, rates.stack, ops)
    # What hides behind weight gradients takes them from the bubbles that they could fill (`step`).
    weight = np.maximum(weight - _hide(backward, rates.stack, ops), 0.0)
    _host_floor(forward, forward_s, exponent)
    if ops.trains != "frozen":
        _host_floor(backward, backward_s, rates.host_exponent)
    if ops.name in _LAYERS and ops.trains == "all":
        weight = np.minimum(weight + rates.latency_s.get("weights", (0.0, 0.0))[1], backward.all.sum(axis=0))
    recompute = dict(forward.tagged)
    for bit, module in enumerate(MODULES if rates.latency_s else ()):
        if (more := _recompute_overhead_s(rates, module)) and any(tag >> bit & 1 for tag in recompute):
            recompute[1 << bit] = recompute.get(1 << bit, 0.0) + more * _ON_HOST * np.ones(num_keys)
    of_reference, beside_s = reference * forward.all, _recompute_overhead_s(rates, "layer")
    gather_s = exchange_seconds(ops.gathered_input, rates) if ops.gathered_input is not None else 0.0
    return LayerSeconds(forward.all + of_reference, backward.all, weight, recompute, beside_s, alone, gather_s,
                        of_reference)  # fmt: skip


def _products_and_exchanges(ops: LayerOperations, rates: Rates, num_keys: int) -> tuple[_Sums, _Sums, Array]:
    """Forward and backward, and [key] seconds of weight gradients."""
    forward, backward, weight = _Sums(num_keys), _Sums(num_keys), np.zeros(num_keys)
    _price_gemms(ops, rates, forward, backward, weight)
    for exchange in ops.exchanges:
        if exchange.awaited and ops.name not in rates.latency_s:
            continue  # the seconds of a layer's launches are those of whole runs, and have it
        call_s = exchange_seconds(exchange, rates)
        forward.add(_AXES[exchange.axis], call_s * exchange.forward_calls, exchange.tag)
        backward.add(_AXES[exchange.axis], call_s * exchange.backward_calls, 0)
    return forward, backward, weight


def _recompute_overhead_s(rates: Rates, recomputed: str) -> float:
    """Measured overhead seconds of recomputation beyond its work."""
    return sum(rates.latency_s.get(f"recompute {recomputed}", (0.0, 0.0)))


def _price_gemms(ops: LayerOperations, rates: Rates, forward: _Sums, backward: _Sums, weight: Array) -> None:
    for gemm, (output, dgrad, wgrad) in zip(ops.gemms, products(ops.gemms, rates), strict=True):
        forward.add(0, output, gemm.tag)
        if gemm.has_dgrad:
            backward.add(0, dgrad, 0)
        if gemm.has_wgrad:
            backward.add(0, wgrad, 0)
            weight += wgrad
    for core in ops.cores:
        flops, context, head = core.flops, core.context, core.head_dim
        forward.add(1, attention_seconds(rates.attention, flops, context, head, False), core.tag)
        if core.has_gradients:
            backward.add(1, attention_seconds(rates.attention, 2 * flops, context, head, True), 0)
    for product in ops.batched:
        output, left, right = batched(product, rates)
        forward.add(1, output, product.tag)
        gradients = left + right if product.has_gradients else 0.0 * output
        backward.add(1, gradients + product.remade * output, 0)


def _price_memory_bound(ops: LayerOperations, rates: Rates, forward: _Sums, backward: _Sums) -> None:
    for traffic in ops.traffic:
        eager = traffic.fusable and traffic.name not in rates.passes
        factor = rates.stack.elementwise_traffic if eager else 1.0
        into, back = rates.bandwidth(traffic.name)
        forward_s, backward_s = traffic.forward_bytes * (factor / into), traffic.backward_bytes * (factor / back)
        if rates.vector_flops_per_s is not None:
            forward_s = np.maximum(forward_s, traffic.forward_flops / rates.vector_flops_per_s)
            backward_s = np.maximum(backward_s, traffic.backward_flops / rates.vector_flops_per_s)
        forward.add(2, forward_s, traffic.tag)
        backward.add(2, backward_s, 0)


def exchange_seconds(exchange: Exchange, rates: Rates) -> Array:
    """[key] seconds of one call, before overlap."""
    levels, spread = rates.levels_of(exchange.links or exchange.axis), (exchange.copies, exchange.groups)
    curve = collectives.curve_of_rows(rates.collectives, levels, exchange.op, exchange.size, exchange.stride, *spread)
    return collectives.seconds(curve, exchange.num_bytes)


def tp_overlap(stack: StackSpec, sequence_parallel: Mask | bool) -> Array:
    """[n] share of the collectives of tensor parallelism that hides, by whether they gather and scatter a sequence."""
    return np.where(sequence_parallel, max(stack.tp_overlap, stack.sequence_parallel_overlap), stack.tp_overlap)


def _cp_overlap(stack: StackSpec, ops: LayerOperations) -> Array:
    """Share of the messages of context parallelism that hides, [key] or one for all keys."""
    swaps = [np.asarray(exchange.num_bytes) > 0 for exchange in ops.exchanges
             if exchange.axis == "cp" and exchange.op == "all_to_all"]  # fmt: skip
    blocks = np.any(swaps, axis=0) if swaps and stack.blocking_heads else False
    return np.where(blocks, 0.0, stack.cp_overlap)


def _hide(sums: _Sums, stack: StackSpec, ops: LayerOperations) -> Array:
    """Keep only exposed communication. A share of it hides, at most as long as the overlapped compute.

    tp hides under matmul, cp under attention, ep under both and the element-wise kernels of the layer. A hidden
    message slows both sides: `contention` of it shows. Returns the seconds hidden, of all axes.
    """
    every = np.zeros_like(sums.all[0])
    matmul, attention, memory = sums.all[0], sums.all[1], sums.all[2]
    ep = np.where(ops.ep_overlap, max(stack.ep_overlap, stack.ep_overlap_beside), stack.ep_overlap)
    share = {"tp": tp_overlap(stack, ops.sequence_parallel), "cp": _cp_overlap(stack, ops), "ep": ep}
    for axis, index in _AXES.items():
        total = sums.all[index]
        if not total.any():
            continue
        # A second of compute hides one message: those of experts have what the others leave.
        room = {"tp": matmul, "cp": attention}.get(axis, matmul + attention + memory - every)
        hidden = np.minimum(share[axis] * total, room)
        every = every + hidden
        exposed = total - (1.0 - stack.contention) * hidden
        exposed_share = np.divide(exposed, total, out=np.zeros_like(total), where=total > 0)
        sums.all[index] = exposed
        for seconds in sums.tagged.values():
            seconds[index] *= exposed_share
    return np.asarray(every)


def _alone_s(
    sums: _Sums, stack: StackSpec, ops: LayerOperations, host_s: Array | float, exponent: Array | float
) -> Array:
    """[key] seconds that a pass takes longer without another micro-batch beside it, where a layout has such a one."""
    if not np.any(ops.ep_overlap):
        return np.zeros(sums.all.shape[1])
    beside, alone = sums.untagged(), sums.untagged()
    for passed, operations in ((beside, ops), (alone, replace(ops, ep_overlap=False))):
        _hide(passed, stack, operations)
        _host_floor(passed, host_s, exponent)
    return np.asarray(np.sum(alone.all - beside.all, axis=0))


def _host_floor(sums: _Sums, host_s: Array | float, exponent: Array | float) -> None:
    """Kernels are launched one after another by the host: a layer takes the soft maximum of device and host time.

    A host that waits for the device in every layer never runs ahead: exponent 1, the two add.
    """
    device = sums.all.sum(axis=0)
    high, low = np.maximum(device, host_s), np.minimum(device, host_s)
    both = high * (1.0 + np.divide(low, high, out=np.zeros_like(high), where=high > 0) ** exponent) ** (1 / exponent)
    sums.all[_HOST] += both - device
