"""Percentiles of the latencies of an open loop, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ..arrays import Array, Mask
from .iteration import Batch, ServingConstants, iteration_seconds
from .load import Load, Service
from .pool import Pool


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles of requests, columns [n], seconds."""

    ttft_s: Array
    tpot_s: Array


_BUSIEST = 0.99  # share of time of iterations that take prompts
_PROBE = 0.1  # share of the sequences, of the difference that gives a derivative


def latencies(
    share: float, service: Service, decode: Pool, apart: Mask, load: Load, constants: ServingConstants
) -> Latencies:  # fmt: skip
    """Latencies that a share of the requests does not exceed.

    Waits W of prompts have the tail of a queue with one server, P(W > t) = busy exp(-busy t / E[W]). Where answers
    decode beside them, a prompt also waits for the rest of an iteration with prompts, which its decoding lengthens.
    The number of sequences that decode is one of a Poisson process, but that more of them take longer, and so become
    more: its deviation is that over 1 - d(rate answer_s)/d(sequences). tests/cost_models/serving/test_simulation.py
    compares both with the simulated instance.
    """
    ttft_s = service.ttft_s - service.queue_s + _wait_s(share, service, apart, load)
    sequences = np.maximum(service.sequences, 1.0)
    first_s, probed_s = (_decode_s(sequences * more, service, decode, load, constants) for more in (1.0, 1.0 + _PROBE))
    gain = np.maximum(probed_s - first_s, 0.0) / (_PROBE * service.tpot_s)
    gain = np.minimum(gain + np.where(apart, 0.0, service.prompt_load), 0.9)
    spread = 1.0 + NormalDist().inv_cdf(share) / np.sqrt(sequences) / (1.0 - gain)
    decode_s = _decode_s(sequences * spread, service, decode, load, constants)
    decode_s = np.where(spread > 1.0, np.maximum(decode_s, service.decode_s), decode_s)
    beside_s = np.where(apart, 0.0, np.maximum(service.tpot_s - service.decode_s, 0.0)) * np.maximum(spread, 0.0)
    return Latencies(np.asarray(ttft_s), np.asarray(decode_s + beside_s))


def _wait_s(share: float, service: Service, apart: Mask, load: Load) -> Array:
    """Of an open loop as above; of a closed one by its own mean."""
    beside_s = np.where(apart, 0.0, service.decode_s)
    opened = np.minimum(service.prompt_load * (1.0 + beside_s / service.prompt_s), _BUSIEST)
    opened_s = (service.prompt_s + beside_s) / (2.0 * (1.0 - opened)) * _tail(opened, share) - beside_s
    busy = np.maximum(service.prompt_load, 1e-9)
    closed_s = service.queue_s / busy * _tail(busy, share)
    return np.where(load.rate > 0, np.maximum(opened_s, 0.0), closed_s)


def _tail(busy: Array, share: float) -> Array:
    return np.log(np.maximum(busy / (1.0 - share), 1.0))


def _decode_s(sequences: Array, service: Service, decode: Pool, load: Load, constants: ServingConstants) -> Array:
    """Of an iteration without prompts."""
    sequences = np.clip(sequences, 0.0, service.capacity)
    batch = Batch(sequences=sequences / decode.pp, context=load.prompt + load.output / 2,
                  prompt_tokens=np.zeros_like(sequences), prompt_context=load.prompt / 2,
                  prompt_groups=np.ones_like(sequences))  # fmt: skip
    return iteration_seconds(decode, constants, batch)
