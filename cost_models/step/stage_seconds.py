"""Seconds of a micro-batch on a stage: compute, recomputation, gradient accumulation, exposed traffic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array, Ints
from ..quantities.activations import Activations
from ..quantities.by_code import ByCode
from ..quantities.gradients import accumulated_bytes, accumulated_per_kind
from ..quantities.ledger import Ledger
from ..quantities.offloads import offloads_of
from ..quantities.zeroth_order import ZerothOrder
from ..quantities.zeroth_order_bytes import noise_bytes
from ..rates.kernel_seconds import kernel_seconds
from ..rates.layer_seconds import COMPONENTS
from ..rates.rates import Rates
from . import store_seconds
from .per_pass_overhead import is_measured, per_pass_overhead_s
from .sharded_states import exchange


@dataclass(frozen=True)
class StageSeconds:
    """Seconds per micro-batch of the device of each stage profile."""

    forward: Array  # [J, n]
    backward: Array  # [J, n] with recomputation
    accumulate: Array  # [J, n] adding gradients up
    fsdp: Array  # [J, n] exposed traffic of sharded states
    offload: Array  # [J, n] exposed traffic of activations and stores
    cycle: Array  # [J, n] sum of all above
    used: Array  # [2, J, n] of forward and backward, the seconds that traffic hides behind
    spare: Array  # [J, n] of the backward pass, the seconds in which the links of a store are idle


def stage_seconds(
    ledger: Ledger, rates: Rates, *, shards_known: bool = True, states: bool = True, least_shard: Ints | None = None,
    moves: bool = False,
) -> StageSeconds:  # fmt: skip
    """`shards_known`: the size of the shard group is the row's; else scattered states move as over the group that moves
    them fastest, of those from `least_shard` [n] on. `states`: ZeRO stage and offload are the row's; else the stage
    that costs least, and nothing goes out but to a store and, where it `moves`, the activations of rows that offload
    them."""
    (forward, backward), zero = compute_s(ledger, rates), ledger.layouts["zero"]
    # The product of a weight gradient writes to a buffer of its own unless it is fused with the addition; adding it to
    # the sum over micro-batches is a memory-bound pass over both.
    accumulate = _accumulate_s(ledger, rates)
    compute = np.array([forward, backward])
    exposed, used, offload = np.zeros_like(compute), np.zeros_like(compute), np.zeros_like(compute)
    sharded = np.flatnonzero((zero >= 2) & ~ledger.states.whole_in_pipeline)
    if len(sharded):
        exposed[..., sharded], used[..., sharded] = exchange(
            ledger, rates, sharded, compute[..., sharded], states=states, shards_known=shards_known,
            least_shard=least_shard,
        )  # fmt: skip
    fsdp = exposed.sum(axis=0)
    if not states:  # ZeRO-2 moves less than 3; 0 and 1 move nothing, and add whole gradients up
        whole = _accumulate_s(ledger, rates, scattered=False)
        fsdp, used = np.minimum(fsdp, whole - accumulate), np.zeros_like(compute)
    one_ways = offloaded_s(ledger, rates, all_kinds=states, moves=states or moves)
    moved = np.flatnonzero(one_ways.any(axis=(0, 1)))
    if len(moved):
        # Copies run on a stream beside compute, over PCIe instead of the links of collectives.
        one_way = one_ways[..., moved]
        hidden = np.minimum(one_way, rates.stack.offload_overlap * compute[..., moved])
        # Both streams hide behind the same compute at once: the longer of the two shows.
        offload[..., moved] = np.maximum(one_way - hidden - exposed[..., moved], 0.0)
        used[..., moved] = np.maximum(used[..., moved], hidden)
    busy = one_ways[1] if ledger.store is not None and not ledger.store.duplex else 0.0
    spare = np.maximum(backward + exposed[1] + offload[1] - busy, 0.0)
    shown = offload.sum(axis=0)
    cycle = forward + backward + accumulate + fsdp + shown
    return StageSeconds(forward, backward, accumulate, fsdp, shown, cycle, used, spare)


def compute_s(ledger: Ledger, rates: Rates) -> tuple[Array, Array]:
    """[J, n] seconds of compute per micro-batch: forward, and backward with recomputation."""
    kernels, profiles = kernel_seconds(ledger.tables, rates), range(ledger.num_profiles)

    def passes(unlike: Ledger) -> Array:
        """[2, J, n] seconds without recomputation."""
        rows = unlike.per_kind(kernels.forward_s), unlike.per_kind(kernels.backward_s)
        return np.array([[unlike.on_profile(j, of_pass) for j in profiles] for of_pass in rows])

    forward, backward = ledger.once(passes)
    if ledger.zeroth_order is not None:
        forward = forward + _noise_s(ledger, rates, ledger.zeroth_order)
    recompute_rows = ledger.per_code(kernels.recompute_by_code)
    backward = backward + np.array([ledger.recomputed(j, recompute_rows) for j in profiles])
    if is_measured(rates):
        beside = ledger.once(lambda unlike: per_pass_overhead_s(unlike, rates))
        return forward + beside[0], backward + beside[1]
    return forward, backward


def _noise_s(ledger: Ledger, rates: Rates, step: ZerothOrder) -> Array:
    """[J, n] seconds per micro-batch of moving the weights along a direction and back."""
    moved = [noise_bytes(ledger, j, step.in_passes) for j in range(ledger.num_profiles)]
    return np.array(moved) / rates.memory_bw_bytes_per_s


def _accumulate_s(ledger: Ledger, rates: Rates, *, scattered: bool = True) -> Array:
    """[J, n] seconds per micro-batch of adding its gradients up; `scattered`: as of `accumulated_bytes`."""
    num_bytes = ledger.once(lambda unlike: np.array([accumulated_bytes(unlike, j, scattered=scattered)
                                                     for j in range(unlike.num_profiles)]))  # fmt: skip
    return np.asarray(num_bytes / rates.bandwidth("accumulation")[0])


def offloaded_s(ledger: Ledger, rates: Rates, *, all_kinds: bool = True, moves: bool = True) -> Array:
    """[2, J, n] seconds per micro-batch of what goes to the host or a store and comes back: forward, backward. Without
    `all_kinds` only of a store and, where it `moves`, of `offload: act`."""
    out = ledger.once(lambda unlike: store_seconds.pass_s(unlike, rates))
    offloads, copy_s = ledger.states.offloads_activations, store_seconds.copy_s_per_byte(ledger, rates)
    if moves and offloads.any():
        out += np.where(offloads, np.array(Activations(ledger).saved) * copy_s, 0.0)
    if not all_kinds:
        return out
    if (some := offloads_of(ledger)) is not None:
        out += np.array(some.sent) * copy_s
    if ledger.states.sums_on_host.any():
        both_ways = 2 * ledger.problem.state_bytes.gradient / rates.pcie_bw_bytes_per_s
        out[1] += np.where(ledger.states.sums_on_host, np.array(ledger.updated) * both_ways, 0.0)
    return out


def unhidden_s(ledger: Ledger, rates: Rates, *, shards_known: bool) -> Array:
    """[n] seconds per micro-batch of exposed FSDP and offload traffic on the first profile."""
    stage = stage_seconds(ledger, rates, shards_known=shards_known)
    return np.asarray((stage.fsdp + stage.offload)[0])


def cycle_s(ledger: Ledger, rates: Rates, *, states_known: bool, shards_known: bool) -> Array:
    """[n] seconds per micro-batch of the slowest stage, at least: unless `shards_known` whatever the shard size, and
    unless `states_known` whatever the ZeRO stage and the offload."""
    return np.asarray(stage_seconds(ledger, rates, shards_known=shards_known, states=states_known).cycle.max(axis=0))


def kind_seconds(ledger: Ledger, rates: Rates) -> dict[int, Array]:
    """Kind -> [n] seconds per micro-batch of one layer of that kind: forward, backward, what is recomputed and the
    addition of its gradients."""
    kernels, accumulated = kernel_seconds(ledger.tables, rates), accumulated_per_kind(ledger)
    again = ledger.per_code(kernels.recompute_by_code)
    forward, backward = ledger.per_kind(kernels.forward_s), ledger.per_kind(kernels.backward_s)
    bandwidth, _ = rates.bandwidth("accumulation")
    return {k: forward[k] + backward[k] + again[k] + accumulated[k] / bandwidth for k in ledger.kinds}


def component_s(ledger: Ledger, rates: Rates, index: int) -> Array:
    """[J, n] seconds of one component per micro-batch and profile: forward, backward and what is computed again."""
    kernels = kernel_seconds(ledger.tables, rates)
    rows = ledger.per_kind(np.array([k.forward[index] + k.backward[index] for k in kernels.layers]))
    under = ByCode(lambda codes: np.stack([kernels.recompute_s(*code)[:, index] for code in codes], axis=1))
    again = ledger.per_code(under)
    of_layers = [ledger.on_profile(j, rows) + ledger.recomputed(j, again) for j in range(ledger.num_profiles)]
    if ledger.zeroth_order is not None and COMPONENTS[index] == "memory":
        return np.array(of_layers) + _noise_s(ledger, rates, ledger.zeroth_order)
    return np.array(of_layers)
