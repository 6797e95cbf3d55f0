"""Percentiles of the latencies of an open loop, in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lgamma
from statistics import NormalDist

import numpy as np

from ..arrays import Array, Mask
from .constants import ServingConstants
from .filling import filling_latencies
from .instance_iterations import decoding_batch, prompt_iteration
from .iteration import iteration_seconds
from .lengths import RequestLengths
from .load import by_phase
from .phases import growth
from .pool import Pool
from .service import Load, Service
from .shared_iterations import POINTS, FirstTokenWaits
from .stages import prompt_seconds


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles of requests, columns [n], seconds."""

    ttft_s: Array
    tpot_s: Array


_STRATA = 16  # equal shares of the prompts whose latencies are priced
_MET = 16  # prompts that an answer meets; of more the deviation of the sequences tells
_HALVINGS = 10  # of the interval that holds a percentile, whose ends are then joined by a line


def latencies(
    share: float, service: Service, prefill: Pool, decode: Pool, disagg: Mask, load: Load, requests: RequestLengths,
    constants: ServingConstants,
) -> Latencies:  # fmt: skip
    """Latencies that a share of the requests does not exceed.

    Waits of prompts are those of `FirstTokenWaits`; of a pipeline in which answers decode beside them, waits W for its
    rounds have the tail of a queue with one server, P(W > t) = busy exp(-busy t / E[W]).
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
    decode_s = _decode_s(sequences * held, service, decode, load, constants)
    decode_s = np.where(held > 1.0, np.maximum(decode_s, service.decode_s), decode_s)
    beside_s = np.where(disagg, 0.0, np.maximum(service.tpot_s * decode.step_tokens - service.decode_s, 0.0))
    # Rounds of a pipeline take longer by the prompts that come, not by the sequences that decode.
    prompts_spread = np.where(np.isfinite(service.most_s), spread, held)
    beside_s = _beside_s(beside_s, sequences, prompts_spread, held, decode_s, service, prefill, decode, load, constants)
    beside_s = np.maximum(beside_s, np.where(disagg, 0.0, _met_s(share, service, prefill, decode, load, constants)))
    *_, after_s = by_phase(service.room.at_most(share), decode, disagg)
    tpot_s = (decode_s + beside_s) / decode.step_tokens + after_s / np.maximum(load.output - 1.0, 1.0)
    return Latencies(ttft_s, np.asarray(tpot_s))


def _beside_s(
    mean_s: Array, sequences: Array, prompts_spread: Array, spread: Array, decode_s: Array, service: Service,
    prefill: Pool, decode: Pool, load: Load, constants: ServingConstants,
) -> Array:  # fmt: skip
    """[n] seconds of prompts in an iteration of an answer beside `spread` times the sequences, which take decode_s.
    mean_s: beside `sequences`. More prompts come beside more sequences, but may add less: what these take already is
    not taken twice."""
    beside_s = mean_s * np.maximum(1.0 + (prompts_spread - 1.0) * service.prompts.next_share, 0.0)
    added_s = list[Array]()
    for more in (1.0, spread):
        mixed_s, alone_s = _iteration_s(sequences * more, service.prompts.number, service, prefill, decode, load,
                                        constants)  # fmt: skip
        added_s.append(np.maximum(mixed_s - np.where(prefill.mixes_prompts > 0, alone_s, 0.0), 0.0))
    beside_s = np.minimum(beside_s * np.minimum(added_s[1] / np.maximum(added_s[0], 1e-12), 1.0), service.most_s)
    longest_s = np.maximum(service.full_s, service.tpot_s * decode.step_tokens)
    most_s = np.where(load.rate > 0, longest_s - decode_s, np.inf)
    return np.asarray(np.minimum(beside_s, np.maximum(most_s, 0.0)))


def _met_s(
    share: float, service: Service, prefill: Pool, decode: Pool, load: Load, constants: ServingConstants
) -> Array:  # fmt: skip
    """[n] seconds by which an iteration of an answer of an open loop is longer, mean, where the answer meets as many
    prompts as a share of the answers does not exceed.

    Those that come while it decodes are a Poisson number, and more come while these are prefilled, rho for each: their
    number has the distribution of P. C. Consul and G. C. Jain (A generalization of the Poisson distribution, 1973),
    P(n) = x (x + n rho)^(n - 1) exp(-x - n rho) / n!. Those that its own prompt leaves behind are those of an
    M/G/1 queue at a departure, as many as at any time (P. J. Burke; L. Kleinrock, Queueing Systems I, 1975, 5.6), and
    here geometric as in M/M/1; where a chunk holds k prompts, they are taken with its own unless there are more. The
    sum has P(n) = busy P(n - 1) + (1 - busy) of that. No iteration is longer than one with a chunk.
    """
    steps, rate = np.maximum(load.output - 1.0, 1.0) / decode.step_tokens, load.rate / prefill.instances
    held = np.maximum(prefill.chunk_tokens / load.prefilled, 1.0)
    mixed_s, _ = _iteration_s(np.maximum(service.sequences, 1.0), held, service, prefill, decode, load, constants)
    left = service.prompts.busy**held
    come, each = np.maximum(rate * steps * service.decode_s, 1e-12), service.prompt_load
    exactly = (1.0 - left) * np.exp(-come)
    at_most, met = exactly, np.zeros_like(come)
    for number in range(1, _MET + 1):
        met = np.where(at_most < share, number, met)
        all_s = come + number * each
        progeny = np.exp(np.log(come) + (number - 1.0) * np.log(all_s) - all_s - lgamma(number + 1.0))
        exactly = left * exactly + (1.0 - left) * progeny
        at_most = at_most + exactly
    return np.minimum(met * service.prompt_s / steps, np.maximum(mixed_s - service.decode_s, 0.0))


def _ttft_s(
    share: float, service: Service, prefill: Pool, decode: Pool, disagg: Mask, load: Load, requests: RequestLengths,
    constants: ServingConstants,
) -> Array:  # fmt: skip
    """The seconds of a prompt of each length and the wait, which does not depend on its length. The caches of long
    prompts, which take most of the seconds, are sent longest: those of the share are sent as long as that of its
    longest prompt, so that both pools may be priced by themselves.
    """
    mean_before_s, mean_first_s, _ = by_phase(service.room.mean_s, decode, disagg)
    before_s, first_s, _ = by_phase(service.room.at_most(share), decode, disagg)
    waits = FirstTokenWaits.of(service.prompts, prefill.pp, service.pipeline_s)
    rounds = _RoundWaits.of(service)
    is_rounds = ~disagg & (prefill.pp > 1)
    waited_s = np.where(is_rounds, service.queue_s, waits.mean_s + mean_before_s)
    served_s = service.ttft_s - waited_s - mean_first_s + before_s + first_s
    lengths = requests.prompt_lengths
    if len(lengths.tokens) == 1:
        each_s = served_s[None] + np.zeros((POINTS, 1))
    else:
        long = lengths.at(np.array([share]))
        served_s = served_s + load.transfer_s * (growth(prefill, decode, load.prompt, long) - 1.0)
        beyond_s = _beyond_mean_s(lengths.strata(_STRATA), service, prefill, decode, disagg, load, constants)
        each_s = served_s + np.repeat(beyond_s, POINTS // _STRATA, axis=0)
    low, high = each_s.min(axis=0), each_s.max(axis=0)
    high = high + np.where(is_rounds, rounds.at_most(share), waits.at_most(share))
    low_share, high_share = np.zeros_like(low), np.ones_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = waits.below(middle - each_s)
        if is_rounds.any():
            below = np.where(is_rounds, rounds.below(middle - each_s).mean(axis=0), below)
        enough = below >= share
        low, low_share = np.where(enough, low, middle), np.where(enough, low_share, below)
        high, high_share = np.where(enough, middle, high), np.where(enough, below, high_share)
    part = np.clip((share - low_share) / np.maximum(high_share - low_share, 1e-12), 0.0, 1.0)
    return np.asarray(low + part * (high - low))


def _beyond_mean_s(
    strata: Array, service: Service, prefill: Pool, decode: Pool, disagg: Mask, load: Load, constants: ServingConstants
) -> Array:  # fmt: skip
    """[stratum, n] seconds that prompts of these lengths take in their own iterations beyond the mean."""
    beside = decoding_batch(np.where(disagg, 0.0, service.sequences), decode, load)
    one, seconds = np.ones_like(load.prompt), list[Array]()
    for length in strata:
        prompt = np.full(load.prompt.shape, length)
        seen = replace(beside, prompt_context=prompt * (1.0 + load.prefix_hit) / 2)
        prefilled = prompt * (1.0 - load.prefix_hit)
        mixed_s = prompt_iteration(prefill, constants, seen, prefilled, one)
        chunks = prefilled / np.minimum(prefilled, prefill.chunk_tokens)
        seconds.append(prompt_seconds(mixed_s, chunks, prefill) + constants.prompt_token_s * prompt)
    return np.asarray(np.array(seconds) - np.mean(seconds, axis=0))


@dataclass(frozen=True)
class _RoundWaits:
    """Waits for the rounds of a pipeline, columns [n]: none with probability 1 - busy, else exponential. The busy share
    is that of a queue with this mean."""

    busy: Array
    scale_s: Array  # mean of those that wait

    @classmethod
    def of(cls, service: Service) -> _RoundWaits:
        half_s = service.prompts.unevenness / 2.0 * service.longest_s
        busy = np.maximum(service.queue_s / np.maximum(service.queue_s + half_s, 1e-12), 1e-9)
        return cls(busy=busy, scale_s=service.queue_s / busy)

    def at_most(self, share: float) -> Array:
        """[n] seconds that a share of the waits does not exceed."""
        return np.asarray(self.scale_s * np.log(np.maximum(self.busy / (1.0 - share), 1.0)))

    def below(self, seconds: Array) -> Array:
        """[..., n] share of the waits that are not longer."""
        waited = np.exp(-np.maximum(seconds, 0.0) / np.maximum(self.scale_s, 1e-12))
        return np.where(seconds >= 0, 1.0 - self.busy * waited, 0.0)


def _decode_s(sequences: Array, service: Service, decode: Pool, load: Load, constants: ServingConstants) -> Array:
    """Seconds of an iteration without prompts."""
    sequences = np.clip(sequences, 0.0, service.capacity)
    return iteration_seconds(decode, constants, decoding_batch(sequences, decode, load))


def _iteration_s(
    sequences: Array, number: Array, service: Service, prefill: Pool, decode: Pool, load: Load,
    constants: ServingConstants,
) -> tuple[Array, Array]:  # fmt: skip
    """[n] seconds of an iteration with so many prompts beside so many sequences, where prompts do not stop these, and
    of one without prompts."""
    beside = decoding_batch(np.clip(sequences, 0.0, service.capacity), decode, load)
    mixed = replace(beside, sequences=beside.sequences * (prefill.mixes_prompts > 0))
    mixed_s = prompt_iteration(prefill, constants, mixed, load.prefilled, number)
    return mixed_s, iteration_seconds(decode, constants, beside)
