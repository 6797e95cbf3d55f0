"""Percentiles of the latencies of an open loop, in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from ..arrays import Array, Mask
from .constants import ServingConstants
from .filling import filling_latencies
from .iteration import iteration_seconds
from .lengths import RequestLengths
from .load import by_phase, decoding_batch, prompt_iterations, queued
from .phases import growth
from .pool import Pool
from .service import BUSIEST, Load, Service
from .stages import prompt_seconds


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles of requests, columns [n], seconds."""

    ttft_s: Array
    tpot_s: Array


_STRATA = 16  # equal shares of the prompts, and of the answers, whose latencies are priced
_MET = 16  # prompts that an answer meets; of more the deviation of the sequences tells
_HALVINGS = 24  # of the interval that holds a percentile of several strata


def latencies(
    share: float, service: Service, prefill: Pool, decode: Pool, disagg: Mask, load: Load, requests: RequestLengths,
    constants: ServingConstants,
) -> Latencies:  # fmt: skip
    """Latencies that a share of the requests does not exceed.

    Waits W of prompts have the tail of a queue with one server, P(W > t) = busy exp(-busy t / E[W]). Where answers
    decode beside them, a prompt also waits for the rest of an iteration with prompts, which its decoding lengthens.
    An answer takes longer by the deviation of the sequences that decode, or by the few prompts that it meets where
    these are long (`_met_s`). Waits for room are those of `RoomWaits`. Prompts of unlike lengths take their own seconds
    after the waits.
    tests/cost_models/serving/test_simulation.py compares them with the simulated instance.
    """
    if decode.methods.fills:
        return Latencies(*filling_latencies(share, service, decode, load, requests, constants))
    ttft_s = _ttft_s(share, service, prefill, decode, disagg, load, requests, constants)
    sequences = np.maximum(service.sequences, 1.0)
    spread = 1.0 + NormalDist().inv_cdf(share) * service.deviation / sequences
    # An instance has no more than there is room for, and of a closed loop no more than its requests.
    most = np.where(load.rate > 0, service.capacity, load.concurrency / decode.instances)
    held = np.minimum(spread, np.maximum(most / sequences, 1.0))
    # Rounds of a pipeline take longer by the prompts that come, not by the sequences that decode.
    beside_spread = np.where(np.isfinite(service.most_s), spread, held)
    spread = held
    decode_s = _decode_s(sequences * spread, service, decode, load, constants)
    decode_s = np.where(spread > 1.0, np.maximum(decode_s, service.decode_s), decode_s)
    step_s = service.tpot_s * decode.step_tokens
    beside_s = np.where(disagg, 0.0, np.maximum(step_s - service.decode_s, 0.0)) * np.maximum(beside_spread, 0.0)
    # Prompts beside more sequences may add less: what these take already is not taken twice.
    usual_s, beside_more_s = (_added_s(sequences * more, service, prefill, decode, load, constants)
                              for more in (1.0, spread))  # fmt: skip
    beside_s = np.minimum(beside_s * np.minimum(beside_more_s / np.maximum(usual_s, 1e-12), 1.0), service.most_s)
    beside_s = np.maximum(beside_s, np.where(disagg, 0.0, _met_s(share, service, prefill, decode, load, constants)))
    *_, after_s = by_phase(service.room.at_most(share), decode, disagg)
    tpot_s = (decode_s + beside_s) / decode.step_tokens + after_s / np.maximum(load.output - 1.0, 1.0)
    return Latencies(ttft_s, np.asarray(tpot_s))


def _met_s(
    share: float, service: Service, prefill: Pool, decode: Pool, load: Load, constants: ServingConstants
) -> Array:  # fmt: skip
    """[n] seconds by which an iteration of an answer of an open loop is longer, mean, where the answer meets as many
    prompts as a share of the answers does not exceed.

    Those that come while it decodes are a Poisson number. Those that its own prompt leaves behind are those of an
    M/G/1 queue at a departure, as many as at any time (P. J. Burke; L. Kleinrock, Queueing Systems I, 1975, 5.6), and
    here geometric as in M/M/1; where a chunk holds k prompts, they are taken with its own unless there are more. The
    sum has P(n) = rho P(n - 1) + (1 - rho) Poisson(n). No iteration is longer than one with a chunk.
    """
    steps, rate = np.maximum(load.output - 1.0, 1.0) / decode.step_tokens, load.rate / prefill.instances
    beside = decoding_batch(np.minimum(np.maximum(service.sequences, 1.0), service.capacity), decode, load)
    mixed = replace(beside, prompt_groups=service.prompt_groups)
    mixed_s, chunks = prompt_iterations(prefill, constants, mixed, load.prefilled)
    held = np.maximum(prefill.chunk_tokens / load.prefilled, 1.0)
    left = np.minimum(rate * mixed_s * chunks / prefill.pp, BUSIEST) ** held
    come = rate * steps * service.decode_s
    poisson = np.exp(-come)
    exactly = (1.0 - left) * poisson
    at_most, met = exactly, np.zeros_like(come)
    for number in range(1, _MET + 1):
        met = np.where(at_most < share, number, met)
        poisson = poisson * come / number
        exactly = left * exactly + (1.0 - left) * poisson
        at_most = at_most + exactly
    return np.minimum(met * service.prompt_s / steps, np.maximum(mixed_s - service.decode_s, 0.0))


def _ttft_s(
    share: float, service: Service, prefill: Pool, decode: Pool, disagg: Mask, load: Load, requests: RequestLengths,
    constants: ServingConstants,
) -> Array:  # fmt: skip
    """The seconds of a prompt of each stratum and the wait, which does not depend on its length. The caches of long
    prompts, which take most of the seconds, are sent longest: those of the share are sent as long as that of its
    longest prompt, so that both pools may be priced by themselves.
    """
    mean_first_s = by_phase(service.room.mean_s, decode, disagg)[1]
    before_s, first_s, _ = by_phase(service.room.at_most(share), decode, disagg)
    served_s = service.ttft_s - service.queue_s - mean_first_s + before_s + first_s
    waits = _waits(service, prefill, disagg, load)
    strata = requests.prompt_lengths.strata(_STRATA)
    if len(strata) == 1:
        return np.asarray(served_s + waits.at_most(share))
    long = requests.prompt_lengths.at(np.array([share]))
    served_s = served_s + load.transfer_s * (growth(prefill, decode, load.prompt, long) - 1.0)
    each_s = served_s + _beyond_mean_s(strata, service, prefill, decode, disagg, load, constants)
    low, high = each_s.min(axis=0), each_s.max(axis=0) + waits.at_most(share)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = waits.below(middle - each_s).mean(axis=0) >= share
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(high)


def _beyond_mean_s(
    strata: Array, service: Service, prefill: Pool, decode: Pool, disagg: Mask, load: Load, constants: ServingConstants
) -> Array:  # fmt: skip
    """[stratum, n] seconds that prompts of these lengths take in their own iterations beyond the mean."""
    beside = decoding_batch(np.where(disagg, 0.0, service.sequences), decode, load)
    seconds = list[Array]()
    for length in strata:
        prompt = np.full(load.prompt.shape, length)
        seen = replace(beside, prompt_context=prompt * (1.0 + load.prefix_hit) / 2)
        mixed_s, chunks = prompt_iterations(prefill, constants, seen, prompt * (1.0 - load.prefix_hit))
        seconds.append(prompt_seconds(mixed_s, chunks, prefill) + constants.prompt_token_s * prompt)
    return np.asarray(np.array(seconds) - np.mean(seconds, axis=0))


@dataclass(frozen=True)
class _Waits:
    """Waits, columns [n]: none with probability 1 - busy, else exponential, less `spared_s`."""

    busy: Array
    scale_s: Array  # mean of those that wait
    spared_s: Array  # of a wait, counted elsewhere

    def at_most(self, share: float) -> Array:
        """[n] seconds that a share of the waits does not exceed."""
        tail = np.log(np.maximum(self.busy / (1.0 - share), 1.0))
        return np.maximum(self.scale_s * tail - self.spared_s, 0.0)

    def below(self, seconds: Array) -> Array:
        """[n] share of the waits that are not longer."""
        waited = np.exp(-np.maximum(seconds + self.spared_s, 0.0) / np.maximum(self.scale_s, 1e-12))
        return np.where(seconds >= 0, 1.0 - self.busy * waited, 0.0)


def _waits(service: Service, prefill: Pool, disagg: Mask, load: Load) -> _Waits:
    """The waits of an open loop as above, of a closed one by its own mean, and by that of the rounds of a pipeline,
    whose busy share is then the one of a queue with this mean."""
    beside_s, shared_s = np.where(disagg, 0.0, service.decode_s), service.prompt_s * service.prompt_groups
    opened = np.minimum(service.prompt_load * (1.0 + beside_s / shared_s), BUSIEST)
    taken = np.minimum(opened * service.prompt_groups / prefill.attention_dp, BUSIEST)
    unevenness = service.interval_scv + service.prompt_scv
    opened_s = (shared_s * unevenness + beside_s) / 2.0 * queued(opened, taken, prefill)
    opened_s = opened_s * (1.0 + service.pipeline_s / np.maximum(service.queue_s - service.pipeline_s, 1e-12))
    rounds, half_s = ~disagg & (prefill.pp > 1), unevenness / 2.0 * service.longest_s
    closed = np.where(rounds, service.queue_s / np.maximum(service.queue_s + half_s, 1e-12), service.prompt_load)
    closed, is_open = np.maximum(closed, 1e-9), (load.rate > 0) & ~rounds
    return _Waits(busy=np.where(is_open, opened, closed), spared_s=np.where(is_open, beside_s, 0.0),
                  scale_s=np.where(is_open, opened_s, service.queue_s / closed))  # fmt: skip


def _decode_s(sequences: Array, service: Service, decode: Pool, load: Load, constants: ServingConstants) -> Array:
    """Seconds of an iteration without prompts."""
    sequences = np.clip(sequences, 0.0, service.capacity)
    return iteration_seconds(decode, constants, decoding_batch(sequences, decode, load))


def _added_s(
    sequences: Array, service: Service, prefill: Pool, decode: Pool, load: Load, constants: ServingConstants
) -> Array:  # fmt: skip
    """Seconds that a prompt adds to its iterations beside so many sequences."""
    beside = decoding_batch(np.clip(sequences, 0.0, service.capacity), decode, load)
    mixed = replace(beside, prompt_groups=service.prompt_groups)
    mixed_s, chunks = prompt_iterations(prefill, constants, mixed, load.prefilled)
    alone_s = iteration_seconds(decode, constants, beside)
    return np.asarray(np.maximum(mixed_s - alone_s, 0.0) * chunks + prefill.launched_s(load.prefilled))
