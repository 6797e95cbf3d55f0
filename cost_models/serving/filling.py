"""Models that fill in their answers: a request is in every pass from the one after it comes to its last."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from ..arrays import Array
from .constants import ServingConstants
from .iteration import iteration_seconds
from .lengths import RequestLengths
from .pool import Pool
from .room import PassSeconds, room_queue, whole_passes
from .service import FULLEST, ROUNDS, Load, Service
from .shared_iterations import SharedIterations

_HALVINGS = 40  # of the sequences of an open loop: to 1e-12 of those that there is room for


def filling_state(decode: Pool, load: Load, constants: ServingConstants) -> Service:
    """The fixed point of b = X T(b), with T the seconds of the passes of an answer while b others run, and of
    b = N T / (front + wait + T) in a closed loop.

    Prompts are part of the passes and take no iterations. A request waits for room (`room_queue` in an open loop), and
    for the end of the pass that it comes in. Its answer, or the first block of it, is whole at once: TTFT is the
    seconds until then, TPOT those of all passes over the tokens. Both are those of requests that take passes.
    """
    taken = 1.0 - decode.methods.skipped
    load = load.thinned(taken)
    given = decode.given_tokens(load.output)
    steps, opened = load.output / given, load.rate > 0
    capacity, number, held = load.sequences_on(decode)
    passes = PassSeconds.of(capacity, decode, load, constants)
    front_s = decode.host_s + constants.prompt_token_s * load.prompt
    closed, beside, rest_s = _closed(number, held, front_s, steps, decode, passes)
    queue = room_queue(passes, steps, decode, load)
    met = np.where(opened, _met(_opened(steps, decode, load, passes), steps, decode, load, passes), beside)
    come = load.rate / decode.instances * steps  # passes that come to an instance per second
    pass_s = iteration_seconds(decode, constants, whole_passes(met, load))
    # Where there is little room a request meets fewer: no more than of those that share it without waiting for passes.
    most_s = queue.running * decode.pp / np.maximum(come, 1e-100)
    pass_s = np.where(opened, np.minimum(pass_s, most_s), pass_s)
    running = np.where(opened, come * pass_s, closed)
    rate = np.where(opened, load.rate, running * decode.instances / (steps * pass_s))
    busy = -np.expm1(-running / decode.pp)  # sequences of a pass are those of a Poisson process
    wait_s = np.where(opened, busy * pass_s / 2.0, rest_s)
    cycle_s = np.where(np.isfinite(load.concurrency), load.concurrency / rate, 0.0)
    queue_s = np.where(opened, queue.waits.mean_s, np.maximum(cycle_s - front_s - wait_s - steps * pass_s, 0.0))
    first_s = decode.first_passes(load.output) * pass_s
    none, tokens = np.zeros_like(pass_s), rate * load.output / taken
    return Service(
        ttft_s=front_s + queue_s + wait_s + first_s, tpot_s=pass_s / given, output_tokens_per_s=tokens,
        output_tokens_per_s_per_gpu=tokens / decode.gpus, sequences=running, deviation=np.sqrt(running),
        capacity=capacity, prompt_load=none, load_factor=np.where(opened, queue.load_factor, 0.0), queue_s=queue_s,
        room=queue.waits, pipeline_s=none,
        first_token_s=wait_s + first_s, decode_s=pass_s, prompt_s=none, longest_s=none, most_s=none,
        prompts=SharedIterations.single(none), full_s=pass_s,
        stable=np.where(opened, queue.load_factor < FULLEST, number <= capacity),
    )  # fmt: skip


def _closed(
    number: Array, held: Array, front_s: Array, steps: Array, decode: Pool, passes: PassSeconds
) -> tuple[Array, Array, Array]:  # fmt: skip
    """[n] each, of a closed loop of `number` clients: sequences that run, at most as many as there is room for; those
    of a pass of a lane as a request meets it, itself and the others as they run in the mean; and seconds that a request
    waits for the end of a pass. It comes front_s after the end of one. Others are in the next pass then, or in a later
    one, of which half is left in the mean."""
    met, others = np.maximum(held / decode.pp, 1.0), np.maximum(number / decode.pp - 1.0, 0.0)
    share, rest_s = np.minimum(held / number, 1.0), np.zeros_like(held)
    for _ in range(ROUNDS):
        pass_s = passes.at(met[None])[0]
        rest_s = (1.0 - (1.0 - share) ** others) * np.maximum(pass_s - front_s, pass_s / 2.0)
        passes_s = steps * pass_s
        share = np.minimum(passes_s / (front_s + rest_s + passes_s), held / number)
        met = 0.5 * met + 0.5 * np.minimum(1.0 + others * share, np.maximum(held / decode.pp, 1.0))
    return number * share, met, rest_s


def _opened(steps: Array, decode: Pool, load: Load, passes: PassSeconds) -> Array:
    """[n] sequences that run on a lane of an open loop; as many as there is room for where more come than leave."""
    low, high = np.zeros_like(steps), passes.room
    come = load.rate / decode.instances / decode.pp * steps
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = come * passes.at(_met(middle, steps, decode, load, passes)[None])[0] > middle
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.asarray(high)


def _met(lane: Array, steps: Array, decode: Pool, load: Load, passes: PassSeconds) -> Array:
    """[n] sequences of a pass as a request of an open loop meets it, itself among them, while `lane` run in the mean.

    Arrivals of a Poisson process find the mean number. Others in their last pass leave before its first one; as many
    come with it, if it waits for the end of a pass. A number that follows n_k = sum over the last s passes of what came
    in each, a Poisson number that is proportional to its seconds, has the variance n / ((1 - g) (1 + g / s)), where g
    is what another sequence adds to itself. A request meets so many more than the mean as that is times the mean: 1 /
    (1 + g / s), which its own passes lengthen by 1 / (1 - g). One that finds an idle lane is alone in its first pass.
    """
    added, idle = _added(lane, steps, decode, load, passes) / steps, np.exp(-lane)
    itself = 1.0 - (1.0 - idle) * added / (1.0 + added)
    return np.minimum(itself + lane * (1.0 - idle / steps), passes.room)


def _added(lane: Array, steps: Array, decode: Pool, load: Load, passes: PassSeconds) -> Array:
    """[n] sequences that another one of a lane adds to itself, since passes over more take longer: 0 to 0.99."""
    come = load.rate / decode.instances / decode.pp * steps
    return np.minimum(come * passes.more_s(lane), 0.99)


def filling_latencies(
    share: float, service: Service, decode: Pool, load: Load, requests: RequestLengths, constants: ServingConstants
) -> tuple[Array, Array]:  # fmt: skip
    """[n] TTFT and TPOT that a share of the requests does not exceed.

    A wait for room has the tail of RoomQueue; those that wait find all of it taken, and have the slowest passes. The
    variance of the sequences of a pass is that of `_met`: of a Poisson process where passes take as long for more of
    them, and as of processor sharing where they take as many times as long and are many. The wait for the end of a pass
    is even over it, for those that find their lane busy. Long answers and slow passes are taken to come together. Of
    the other clients of a closed loop those that run are a binomial number.
    """
    load, given, opened = load.thinned(1.0 - decode.methods.skipped), decode.given_tokens(load.output), load.rate > 0
    steps, lane = load.output / given, service.sequences / decode.pp
    passes = PassSeconds.of(service.capacity, decode, load, constants)
    added = _added(lane, steps, decode, load, passes)
    variance = lane / ((1.0 - added) * (1.0 + added / steps))
    number = np.maximum(lane + NormalDist().inv_cdf(share) * np.sqrt(variance), 0.0)
    looped = _met_in_loop(share, lane, load.concurrency / decode.instances / decode.pp, passes)
    met = np.where(opened, _met(number, steps, decode, load, passes), looped)
    slow_s = iteration_seconds(decode, constants, whole_passes(met, load))
    longest = np.full_like(slow_s, requests.output_lengths.at(np.array([share]))[0])
    busy = -np.expm1(-lane)  # of those that find a lane idle none waits for the end of a pass
    rest_s = np.maximum(share - (1.0 - busy), 0.0) / np.maximum(busy, 1e-9) * slow_s
    mean_rest_s = service.first_token_s - decode.first_passes(load.output) * service.decode_s
    looped_s = np.minimum(2.0 * share * mean_rest_s, slow_s)
    waited_s = np.where(opened, service.room.at_most(share) - service.queue_s + rest_s, looped_s)
    ttft_s = service.ttft_s - service.first_token_s + waited_s + decode.first_passes(longest) * slow_s
    return np.asarray(ttft_s), np.asarray(slow_s / given)


def _met_in_loop(share: float, lane: Array, clients: Array, passes: PassSeconds) -> Array:
    """[n] sequences of a pass of a closed loop that a share of the requests does not exceed. lane: those that run in
    the mean; clients: of a lane."""
    clients = np.clip(clients, 1.0, 1e6)
    runs = np.minimum(lane / clients, 1.0)
    others = (clients - 1.0) * runs
    number = 1.0 + others + NormalDist().inv_cdf(share) * np.sqrt(others * (1.0 - runs))
    return np.asarray(np.clip(number, 1.0, np.minimum(clients, passes.room)))
