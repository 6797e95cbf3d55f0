"""Models that fill in their answers: a request is in every pass from the one after it comes to its last."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np

from ..arrays import Array
from .iteration import Batch, ServingConstants, iteration_seconds
from .lengths import RequestLengths
from .pool import Pool
from .service import PROBE, ROUNDS, Load, Service

_HALVINGS = 40  # of the sequences of an open loop: to 1e-12 of those that there is room for


def filling_state(decode: Pool, load: Load, constants: ServingConstants) -> Service:
    """The fixed point of b = X T(b), with T the seconds of the passes of an answer while b others run, and of
    b = N T / (front + T) in a closed loop.

    Prompts are part of the passes and take no iterations. A request of an open loop waits for the end of the pass that
    it comes in, one of a closed loop comes at the end of one. Its answer, or the first block of it, is whole at once:
    TTFT is the seconds until then, TPOT those of all passes over the tokens. The queue of an open loop for room is left
    out: near the largest load TTFT is longer than this.
    """
    decode = replace(decode, step_tokens=np.minimum(decode.step_tokens, load.output))
    steps, opened = load.output / decode.step_tokens, load.rate > 0
    capacity, number, held = load.sequences_on(decode)
    front_s = decode.host_s + constants.prompt_token_s * load.prompt
    closed = _closed(held, front_s, steps, decode, load, constants)
    running = np.where(opened, _opened(capacity, steps, decode, load, constants), closed)
    pass_s = iteration_seconds(decode, constants, passes_batch(running, decode, load))
    rate = np.where(opened, load.rate, running * decode.instances / (steps * pass_s))
    busy = -np.expm1(-running / decode.pp)  # sequences of a pass are those of a Poisson process
    wait_s = np.where(opened, busy * pass_s / 2.0, 0.0)
    queue_s = load.waiting(number, held) * decode.instances / rate
    first_s = decode.first_passes(load.output) * pass_s
    none, tokens = np.zeros_like(pass_s), rate * load.output
    return Service(
        ttft_s=front_s + queue_s + wait_s + first_s, tpot_s=pass_s / decode.step_tokens, output_tokens_per_s=tokens,
        output_tokens_per_s_per_gpu=tokens / decode.gpus, sequences=running, capacity=capacity, prompt_load=none,
        queue_s=queue_s, pipeline_s=none, first_token_s=wait_s + first_s, decode_s=pass_s, prompt_s=none,
        prompt_scv=none, interval_scv=none + 1.0,
        stable=np.where(opened, running < 0.999 * capacity, number <= capacity),
    )  # fmt: skip


def _closed(
    held: Array, front_s: Array, steps: Array, decode: Pool, load: Load, constants: ServingConstants
) -> Array:  # fmt: skip
    """[n] sequences of a closed loop that run; the others are on their way to the scheduler."""
    running = held
    for _ in range(ROUNDS):
        passes_s = steps * iteration_seconds(decode, constants, passes_batch(running, decode, load))
        running = 0.5 * running + 0.5 * held * passes_s / (front_s + passes_s)
    return running


def _opened(capacity: Array, steps: Array, decode: Pool, load: Load, constants: ServingConstants) -> Array:
    """[n] sequences that run on an instance of an open loop; `capacity` where more come than leave."""
    low, high = np.zeros_like(capacity), capacity
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        passes_s = steps * iteration_seconds(decode, constants, passes_batch(middle, decode, load))
        more = load.rate / decode.instances * passes_s > middle
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.asarray(high)


def passes_batch(running: Array, decode: Pool, load: Load) -> Batch:
    """A pass as a request meets it, over whole sequences while `running` [n] of an instance are filled in: in an open
    loop beside these, since arrivals of a Poisson process find the mean number; in a closed loop as one of them. Others
    in their last pass leave before its first one; as many come with it, if it waits for the end of a pass."""
    lane = running / decode.pp
    last = np.minimum(decode.step_tokens / load.output, 1.0)  # share of the passes of an answer
    sequences = np.where(load.rate > 0, 1.0 + lane * (1.0 - last * np.exp(-lane)), np.maximum(lane, 1.0))
    return Batch(sequences=sequences, context=load.running_prompt + load.running_output,
                 prompt_tokens=np.zeros_like(running), prompt_context=load.prompt_context,
                 prompt_groups=np.ones_like(running))  # fmt: skip


def filling_latencies(
    share: float, service: Service, decode: Pool, load: Load, requests: RequestLengths, constants: ServingConstants
) -> tuple[Array, Array]:  # fmt: skip
    """TTFT and TPOT that a share of the requests does not exceed.

    The variance of the sequences of a pass is their mean b over 1 - d(log T)/d(log b): that of a Poisson process where
    passes take as long for more of them, and b (1 + b), as of processor sharing, where they take as many times as long.
    The wait for the end of a pass is even over it. Long answers and slow passes are taken to come together.
    """
    pass_s, more_s = (iteration_seconds(decode, constants, passes_batch(service.sequences * more, decode, load))
                      for more in (1.0, 1.0 + PROBE))  # fmt: skip
    growth = np.minimum(np.maximum(more_s / pass_s - 1.0, 0.0) / PROBE, 0.99)
    beyond = NormalDist().inv_cdf(share) * np.sqrt(service.sequences * decode.pp / (1.0 - growth))
    number = np.where(load.rate > 0, np.clip(service.sequences + beyond, 0.0, service.capacity), service.sequences)
    slow_s = iteration_seconds(decode, constants, passes_batch(number, decode, load))
    tpot_s = slow_s / np.minimum(decode.step_tokens, load.output)
    longest = np.full_like(tpot_s, requests.output_lengths.at(np.array([share]))[0])
    waited_s = np.where(load.rate > 0, share * slow_s, 0.0)
    ttft_s = service.ttft_s - service.first_token_s + waited_s + decode.first_passes(longest) * slow_s
    return np.asarray(ttft_s), np.asarray(tpot_s)
