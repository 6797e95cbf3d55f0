"""Seconds of the optimizer, wherever it runs."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.gradients import cast_bytes
from ..quantities.ledger import Ledger
from ..quantities.memory import MASTER_BYTES
from ..quantities.stores import ADAM_BYTES
from ..quantities.zeroth_order_bytes import noise_bytes
from ..rates.rates import Rates
from . import muon_seconds, store_seconds
from .data_parallel import group_curve, in_pieces

_NUMBER_BYTES = 8.0  # in double precision


def optimizer_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of the optimizer, on the GPU or on the host."""
    if ledger.store is not None and ledger.store.optimizer:
        beside = _extra_s(ledger, rates), reductions_s(ledger, rates)
        return store_seconds.update_s(ledger.store, ledger, rates) + beside[0] + beside[1]
    on_gpu, on_host = optimizer_places_s(ledger, rates)
    if ledger.store is not None and ledger.store.weights and ledger.store.on_host:
        on_gpu = on_gpu + store_seconds.new_weights_s(ledger, rates)
    return np.asarray(np.where(ledger.states.offloads_optimizer, on_host, on_gpu))


def optimizer_places_s(ledger: Ledger, rates: Rates) -> tuple[Array, Array]:
    """[n] each, an optimizer step on the GPU and on the host. GPU: gradient and states read, states and weight written.
    Host: over PCIe and back, Adam there."""
    if ledger.zeroth_order is not None:
        after = [noise_bytes(ledger, j, ledger.zeroth_order.after) for j in range(ledger.num_profiles)]
        update_s = np.max(after, axis=0) / rates.memory_bw_bytes_per_s
        return update_s, update_s  # on the GPU, wherever the weights wait
    states = ledger.problem.state_bytes
    updated = np.max(ledger.updated, axis=0)
    cast = np.max([cast_bytes(ledger, j) for j in range(ledger.num_profiles)], axis=0) / rates.memory_bw_bytes_per_s
    extra = _extra_s(ledger, rates) + reductions_s(ledger, rates)
    if ledger.problem.workload.optimizer == "muon":
        on_gpu = muon_seconds.update_s(ledger, rates) + cast + extra
    else:
        # Adam does a few FLOPs per byte, far below the ratio of a GPU: moving the states takes the time.
        on_gpu = updated * update_bytes(ledger) / rates.bandwidth("update")[0] + cast + extra
    # The update starts when the gradient is in host memory, and the next step when the weights are back: nothing hides
    # either way.
    gradient = np.where(ledger.states.sums_on_host, MASTER_BYTES, states.gradient)
    over_pcie = updated * (gradient + states.weight) / rates.pcie_bw_bytes_per_s
    adam_s = updated * ADAM_BYTES * store_seconds.host_s_per_byte(ledger, rates)
    return on_gpu, over_pcie + cast + extra + adam_s


def update_bytes(ledger: Ledger) -> float:
    """Bytes that the optimizer moves per parameter that it updates on the GPU."""
    states = ledger.problem.state_bytes
    return states.update_bytes(states.optimizer) + ledger.problem.stack.optimizer_extra_bytes


def _extra_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of what techniques move in GPU memory beside the optimizer."""
    moved = sum(traffic.share * traffic.moved for traffic in ledger.traffic)
    return np.asarray(moved * np.max(ledger.updated, axis=0) / rates.memory_bw_bytes_per_s)


def reductions_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of summing single numbers over all ranks (StackSpec.step_reductions)."""
    calls = np.full(len(ledger.layouts), float(ledger.problem.stack.step_reductions))
    if not calls.any():
        return calls
    ranks = np.full(len(calls), ledger.problem.num_gpus)
    world = group_curve(rates, "world", "all_reduce", ranks, np.ones_like(ranks))
    return in_pieces(world, _NUMBER_BYTES * calls, calls)


def least_optimizer_s(ledger: Ledger, rates: Rates, states_known: bool) -> Array:
    """[n] seconds of the optimizer, where it is faster unless `states_known`."""
    if ledger.states.stores_optimizer:
        hidden = ledger.store is not None and ledger.store.during_backward
        return np.zeros(len(ledger.layouts)) if hidden else optimizer_s(ledger, rates)
    on_gpu, on_host = optimizer_places_s(ledger, rates)
    return np.where(ledger.states.offloads_optimizer, on_host, on_gpu) if states_known else np.minimum(on_gpu, on_host)
