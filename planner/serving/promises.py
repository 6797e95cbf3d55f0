"""The largest load under which deployments keep their promises, one deployment per column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.lengths import RequestLengths
from ...cost_models.serving.load import steady_state
from ...cost_models.serving.percentiles import Latencies, latencies
from ...cost_models.serving.phases import phases
from ...cost_models.serving.pool import Pool
from ...cost_models.serving.service import Load, Service

_HALVINGS = 40  # of the logarithm of the load: to 1e-9 of it
ROUNDING = 1e-6  # relative, of the bisection: a load that it misses by less is kept
ALONE = 1e-4  # requests per second, or at once, of an instance: none meets another one
_FIRST_TRIED = 1e4  # load of an instance, doubled while it is kept
_DOUBLINGS = 64
_COLUMNS = 256  # that are priced in hardly more time than one


@dataclass(frozen=True, kw_only=True)
class Promises:
    """Requests, and what `share` of them is promised, in seconds; infinite: nothing."""

    requests: RequestLengths
    ttft_s: float
    tpot_s: float
    share: float
    closed: bool  # the load is requests at any time, not requests per second


@dataclass(frozen=True)
class Priced:
    """Deployments under a load, columns [n]."""

    pools: tuple[Pool, Pool, Mask]  # that prefill, that decode, and whether these are two
    load: Load
    constants: ServingConstants
    fullest: Service  # of the instance with the most requests, which the promises are about
    latencies: Latencies  # there
    kept: Mask
    even: bool  # whether all instances have as many

    @cached_property
    def service(self) -> Service:
        """The mean over the instances, which a search for the largest load does not ask for."""
        return self.fullest if self.even else steady_state(*self.pools, self.load, self.constants)


def capacity(pool: Pool, requests: RequestLengths) -> Array:
    """[n] sequences of such requests that the caches of an instance hold."""
    return pool.capacity(np.array(requests.running_prompt), np.array(requests.running_output), requests.prefix_hit,
                         requests.prefixes)  # fmt: skip


def holds_a_sequence(pool: Pool, promises: Promises) -> Mask:
    """[n] whether an instance has room for a request, the longest too: engines refuse what their cache cannot hold."""
    longest = pool.capacity(np.array(promises.requests.longest), np.array(0.0))
    return np.asarray(np.minimum(capacity(pool, promises.requests), longest) >= 1)


def priced(
    prefill: Pool, decode: Pool, disaggregated: Mask, load: Array, promises: Promises, constants: ServingConstants,
    transfer_s: Array | None = None,
) -> Priced:  # fmt: skip
    """disaggregated: [n] whether prefill and decode have instances of their own. load: [n] of all instances.
    transfer_s: [n] of a prompt's cache from pool to pool. Where prompts and answers have
    multiprocessors of their own, each is a pool."""
    shape = load.shape
    if decode.methods.prompt_share:
        prefill, decode, disaggregated = phases(decode)
    columns = Load.of(
        promises.requests, concurrency=load if promises.closed else np.full(shape, np.inf),
        rate=np.zeros(shape) if promises.closed else load,
        burst_share=np.zeros(shape), transfer_s=np.zeros(shape) if transfer_s is None else transfer_s,
    )  # fmt: skip
    whole = _whole_requests(load, decode, disaggregated) if promises.closed else load
    even = not (whole > load).any()
    at_fullest = columns if even else replace(columns, concurrency=whole)
    fullest = steady_state(prefill, decode, disaggregated, at_fullest, constants)
    tails = latencies(promises.share, fullest, prefill, decode, disaggregated, at_fullest, promises.requests, constants)
    kept = fullest.stable & (tails.ttft_s <= promises.ttft_s) & (tails.tpot_s <= promises.tpot_s)
    return Priced((prefill, decode, disaggregated), columns, constants, fullest, tails, kept, even)


def _whole_requests(load: Array, decode: Pool, disaggregated: Mask) -> Array:
    """[n] requests at any time if all instances had as many as the fullest one; of disaggregated pools the given ones,
    since those that decode are not a fixed number."""
    each = np.ceil(load / decode.instances * (1 - ROUNDING))
    return np.where(disaggregated, load, np.maximum(each * decode.instances, load))


def largest_load(
    prefill: Pool, decode: Pool, disaggregated: Mask, promises: Promises, constants: ServingConstants,
    transfer_s: Array | None = None, worth: Array | None = None,
) -> Array:  # fmt: skip
    """[n] the largest load of each deployment that keeps the promises; 0 where one request alone breaks them. Equal
    instances have whole requests of a closed loop. worth: as of `largest`."""

    def keeps(load: Array, rows: Ints) -> Mask:
        first, second = (pool.rows(rows, pool.instances[rows]) for pool in (prefill, decode))
        seconds = None if transfer_s is None else transfer_s[rows]
        return priced(first, second, disaggregated[rows], load, promises, constants, seconds).kept

    load = largest(keeps, np.minimum(prefill.instances, decode.instances), worth)
    if not promises.closed:
        return load
    each = np.floor(load / decode.instances * (1 + ROUNDING))
    return np.where(disaggregated, load, each * decode.instances)


def largest(keeps: Callable[[Array, Ints], Mask], instances: Array, worth: Array | None = None) -> Array:
    """[n] the largest load that each row keeps; 0 where it does not keep that of one request alone.

    Bisects: latencies grow with the load. keeps: whether rows, each as often as it is named, keep a load each.
    instances: [n] of each row. worth: [n] of a unit of its load, where only rows whose loads are worth most are sought:
    for others a part of their load is enough. None: all rows are.
    """
    rows = np.arange(len(instances))
    low, high = np.full(instances.shape, np.log(ALONE)), np.log(_FIRST_TRIED * instances)
    alone, kept = keeps(np.exp(np.concatenate([low, high])), np.tile(rows, 2)).reshape(2, -1)
    for _ in range(_DOUBLINGS):
        kept = kept & alone
        if not kept.any():
            break
        low, high = np.where(kept, high, low), np.where(kept, high + np.log(2.0), high)
        kept = keeps(np.exp(high), rows)
    left, rows = _HALVINGS, rows[alone]
    while left and len(rows):
        levels = min(max(int(np.log2(_COLUMNS / len(rows) + 1)), 1), left)
        low[rows], high[rows] = _halved(keeps, rows, low[rows], high[rows], levels)
        left -= levels
        if worth is not None:
            least = (low[rows] + np.log(worth[rows])).max() - 2 * ROUNDING
            rows = rows[high[rows] + np.log(worth[rows]) >= least]
    return np.where(alone, np.exp(low), 0.0)


def _halved(
    keeps: Callable[[Array, Ints], Mask], rows: Ints, low: Array, high: Array, levels: int
) -> tuple[Array, Array]:  # fmt: skip
    """[n] ends of the intervals of these rows halved so often, by one call for all loads that the halvings may ask
    for."""
    ends, tree = np.array([low, high]), list[Array]()
    for _ in range(levels):
        tree.append((ends[:-1] + ends[1:]) / 2)
        ends = np.insert(ends, np.arange(1, len(ends)), tree[-1], axis=0)
    middles, each = np.concatenate(tree), np.arange(len(low))  # the halves of interval i are 2i + 1 and 2i + 2
    kept = keeps(np.exp(middles).ravel(), np.tile(rows, len(middles))).reshape(middles.shape)
    at = np.zeros(len(low), dtype=np.int64)
    for _ in range(levels):
        middle, goes_up = middles[at, each], kept[at, each]
        low, high = np.where(goes_up, middle, low), np.where(goes_up, high, middle)
        at = 2 * at + 1 + goes_up
    return low, high


def unpromised(promises: Promises) -> Promises:
    """The same requests without promises."""
    return replace(promises, ttft_s=np.inf, tpot_s=np.inf)
