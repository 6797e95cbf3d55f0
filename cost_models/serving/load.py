"""Latencies and throughput under a load: the iterations of pools joined to a steady state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array, Mask
from .constants import ServingConstants
from .filling import filling_state
from .image_placement import front_s
from .instance_iterations import Iterations, decoding_batch
from .iteration import iteration_seconds
from .pool import Pool
from .room import decoders_queue
from .service import FULLEST, PROBE, ROUNDS, Load, Service
from .shared_iterations import BUSIEST, SharedIterations
from .stages import Rounds, pipeline_s, prompt_seconds

_FULL_ROUNDS = 4  # of the fixed point where all room is taken, from the one with as many sequences as decode
_KEPT = 0.25  # of the prompts of an iteration, from the round before; it damps the rounds
_WAITS = 0.5  # of an iteration without prompts, from the arrival of a prompt to its end; in pipelines of a stage


def steady_state(prefill: Pool, decode: Pool, disagg: Mask, load: Load, constants: ServingConstants) -> Service:
    """The fixed point of b = X (o-1) TPOT(b), with X = N / (TTFT + (o-1) TPOT) in a closed loop and X = rate in an open
    one; b sequences of an instance decode, at most as many as its cache holds.

    disagg: prefill and decode run in pools of their own; elsewhere both are one pool, and decoding waits for prompts.
    """
    if decode.methods.fills:
        return filling_state(decode, load, constants)
    capacity, number, held = load.sequences_on(decode)
    is_open = load.rate > 0
    held = np.where(is_open, capacity, held)
    system = _System.of(prefill, decode, disagg, load, constants, held)
    steps, arriving = system.steps, load.rate / decode.instances
    running, state = system.settled(held, capacity)
    rate = np.where(is_open, load.rate, running * decode.instances / (steps * state.step_s))
    deviation = _deviation(running, state, decode, disagg, load, constants)
    full = state
    for _ in range(_FULL_ROUNDS):
        full = system.at(capacity, full)
    wanted = arriving * steps * full.step_s
    begun = arriving * state.begin_s  # prompts that have room already
    room = decoders_queue((wanted + begun) / capacity, running + begun, deviation, capacity, decode, load)
    opened = (state.prompts_taken < BUSIEST) & (room.load_factor < FULLEST) & (running < FULLEST * capacity)
    stable = np.where(is_open, opened, number <= capacity)
    waits_s = load.waiting(number, held) * decode.instances / rate
    before_s, first_s, after_s = by_phase(room.waits.mean_s, decode, disagg)
    tokens = rate * load.output
    gpus = decode.gpus + np.where(disagg, prefill.gpus, 0.0)
    return Service(
        ttft_s=state.ttft_s + waits_s + before_s + first_s, output_tokens_per_s=tokens,
        tpot_s=state.step_s / decode.step_tokens + after_s / np.maximum(load.output - 1.0, 1.0),
        output_tokens_per_s_per_gpu=tokens / gpus, sequences=running, deviation=deviation, capacity=capacity,
        prompt_load=state.prompt_load, load_factor=np.zeros_like(running), queue_s=state.queue_s + waits_s + before_s,
        room=room.waits, pipeline_s=state.pipeline_s, first_token_s=state.first_token_s + first_s,
        decode_s=state.decode_s, prompt_s=state.prompt_s, longest_s=state.longest_s, most_s=state.most_s,
        prompts=state.shared, full_s=full.step_s, stable=stable,
    )  # fmt: skip


def by_phase(seconds: Array, decode: Pool, disagg: Mask) -> tuple[Array, Array, Array]:
    """[n] each, waits for room before the prompt; disaggregated before the first token where the instances that decode
    make it, else after it."""
    first, second = disagg & (decode.decodes_first > 0), disagg & (decode.decodes_first == 0)
    return np.where(disagg, 0.0, seconds), np.where(first, seconds, 0.0), np.where(second, seconds, 0.0)


def _deviation(
    running: Array, state: _State, decode: Pool, disagg: Mask, load: Load, constants: ServingConstants
) -> Array:  # fmt: skip
    """[n] standard deviation of the sequences that decode on an instance: that of a Poisson number, but that more of
    them take longer, and so become more: over 1 - d(rate answer_s)/d(sequences)."""
    sequences = np.maximum(running, 1.0)
    first_s, probed_s = (iteration_seconds(decode, constants, decoding_batch(sequences * more, decode, load))
                         for more in (1.0, 1.0 + PROBE))  # fmt: skip
    gain = np.maximum(probed_s - first_s, 0.0) / (PROBE * state.step_s)
    gain = np.minimum(gain + np.where(disagg, 0.0, state.prompt_load * state.shared.next_share), 0.9)
    return np.asarray(np.sqrt(sequences) / (1.0 - gain))


def _opened_s(decode_s: Array, steps: Array, state: _State, disagg: Mask) -> Array:
    """[n] seconds of an iteration of an answer of an open loop, the prompts beside it included.

    An answer takes T = steps decode_s + V + rho T: the seconds of its iterations without prompts, of the prompts that
    its own leaves behind in the queue, and of those that come meanwhile. It ends where none are left, unless its last
    iteration has prompts, too, and then leaves as many as it met.
    """
    load, left_s = (np.where(disagg, 0.0, it) for it in (state.prompt_load, state.behind_s))
    return np.asarray((decode_s + left_s / steps) / (1.0 - load))


@dataclass(frozen=True, slots=True)
class _State:
    ttft_s: Array
    step_s: Array  # of an iteration that decodes, prompts beside it included
    prompt_load: Array
    prompts_taken: Array  # prompts that come, over as many as all groups of an instance can take
    queue_s: Array
    pipeline_s: Array
    first_token_s: Array
    decode_s: Array
    prompt_s: Array
    longest_s: Array
    most_s: Array
    shared: SharedIterations
    begin_s: Array  # from the room for a request until it decodes
    behind_s: Array  # of the prompts that came with or before an answer and are prefilled beside it

    @classmethod
    def first(cls, held: Array) -> _State:
        """Before the first round: one prompt in an iteration."""
        none = np.zeros_like(held)
        one = SharedIterations.single(none)
        return cls(none, none, none, none, none, none, none, none, none, none, none, one, none, none)


@dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """Pools under a load, with what no round of the fixed point changes, columns [n]."""

    prefill: Pool
    twice: Pool  # the rows of `prefill` and again these
    decode: Pool
    disagg: Mask
    load: Load
    constants: ServingConstants
    is_open: Mask
    mixes: Mask  # an engine that does not mix stops decoding for prompts: all of their seconds lengthen answers
    steps: Array  # iterations of an answer
    places: Array  # prompts of an iteration at most
    interval_scv: Array
    others: Array  # of the requests in a closed loop, all but one
    with_it: Array  # prompts that come together with one
    behind: Array  # half of them, in the instances that decode
    alone: Array  # share of the prompts that come by themselves
    come_s: Array  # to the scheduler, and of the cache to another pool

    @classmethod
    def of(
        cls, prefill: Pool, decode: Pool, disagg: Mask, load: Load, constants: ServingConstants, held: Array
    ) -> _System:  # fmt: skip
        """held: sequences that an instance has room for, of a closed loop no more than its requests."""
        together, others = _together(held, prefill.mixes_prompts, load, constants), np.maximum(held - 1.0, 0.0)
        is_open = load.rate > 0
        return cls(
            prefill=prefill, twice=prefill.rows(np.tile(np.arange(len(held)), 2), np.tile(prefill.instances, 2)),
            decode=decode, disagg=disagg, load=load, constants=constants, is_open=is_open,
            mixes=~disagg & (prefill.mixes_prompts > 0), steps=np.maximum(load.output - 1.0, 1.0) / decode.step_tokens,
            places=prefill.attention_dp * np.maximum(prefill.chunk_tokens / load.prefilled, 1.0),
            interval_scv=np.where(is_open, _interval_scv(load, prefill), 1.0), others=others / np.maximum(held, 1.0),
            with_it=together * others * decode.instances / prefill.instances, behind=together * others / 2.0,
            alone=1.0 - together, come_s=front_s(prefill, constants, load.prompt) + load.transfer_s,
        )  # fmt: skip

    def settled(self, held: Array, capacity: Array) -> tuple[Array, _State]:
        """The sequences that decode on an instance, and the state in which they do."""
        arriving = self.load.rate / self.decode.instances
        running, state = 0.7 * held, _State.first(held)
        for _ in range(ROUNDS):
            state = self.at(running, state)
            decoding = self.steps * state.step_s
            closed = held * decoding / (state.ttft_s + decoding)
            opened = np.minimum(arriving * decoding, capacity)
            running = 0.5 * running + 0.5 * np.where(self.is_open, opened, closed)
        return running, state

    def at(self, running: Array, before: _State) -> _State:
        """Latencies while so many sequences decode on an instance. before: in the round before."""
        prefill, decode, load, disagg, is_open = self.prefill, self.decode, self.load, self.disagg, self.is_open
        number = _KEPT * before.shared.number + (1.0 - _KEPT) * before.shared.next_number()
        took = Iterations.of(prefill, self.twice, decode, load, self.constants, running, self.mixes, number,
                             self.places)  # fmt: skip
        decode_s, others = took.decode_s, np.maximum(running - 1.0, 0.0)
        rounds = Rounds.of(took.stage_s, before.shared.rate, took.mixed_s, took.alone_s, took.full_s, took.chunks,
                           took.number, prefill, disagg, load)  # fmt: skip
        step_s = self._step_s(took, before, rounds.added_s, others)
        rate = np.where(is_open, load.rate, running * decode.instances / (self.steps * step_s)) / prefill.instances
        shared = self._shared(took, rate)
        prompt_load = np.minimum(rate * rounds.added_s, BUSIEST)
        taken = np.maximum(shared.taken, np.minimum(rate * rounds.full_s, BUSIEST))
        queue_s = np.maximum(shared.rest_s - shared.idle_s / 2.0, 0.0) + shared.further_s
        later_s, own_s = np.zeros_like(queue_s), prompt_seconds(took.mixed_s, took.chunks, prefill)
        if prefill.staged:
            queue_s = np.where(rounds.together, rounds.queue_s(rate, took.mixed_s, shared.unevenness), queue_s)
            in_stages_s = pipeline_s(prefill, load, rounds.added_s, taken, took.prompt_scv, shared)
            later_s = np.where(disagg & is_open, in_stages_s, 0.0)
        ahead_s = np.maximum(self.with_it - (self.places - 1.0), 0.0) / 2.0 * rounds.added_s
        queue_s = np.where(is_open, queue_s, np.minimum(queue_s, others / 2.0 * rounds.added_s) + ahead_s)
        own_s = own_s + np.where(rounds.together, 0.0, shared.longer_s * prefill.pp)
        first_s = np.where(disagg, decode_s * (decode.decodes_first > 0), _WAITS * decode_s / decode.pp)
        iterations = shared.busy / took.mixed_s, (1.0 - shared.busy) / decode_s  # per second, with prompts and without
        with_prompts = iterations[0] / (iterations[0] + iterations[1])
        return _State(
            self.come_s + first_s + own_s + queue_s + later_s, step_s, prompt_load, taken, queue_s + later_s, later_s,
            first_s, decode_s, rounds.added_s, rounds.longest_s, rounds.most_s, shared,
            np.where(disagg, decode_s, own_s), prompt_load * (own_s + shared.further_s) * (1.0 - with_prompts),
        )  # fmt: skip

    def _step_s(self, took: Iterations, before: _State, added_s: Array, others: Array) -> Array:
        """[n] seconds of an iteration of an answer, the prompts beside it included. others: sequences that decode."""
        # Prompts that come while one decodes: half of those that came with it, and of the others as many as decode.
        beside_s = np.where(self.disagg, 0.0, (self.behind + self.alone * others) * added_s / self.steps)
        opened_s = _opened_s(took.decode_s, self.steps, before, self.disagg)
        step_s = np.where(self.is_open, opened_s, took.decode_s + beside_s)
        # No mean iteration takes longer than one with prompts.
        most_s = np.maximum(took.mixed_s, took.decode_s)
        step_s = np.where(self.mixes & (self.prefill.pp == 1), np.minimum(step_s, most_s), step_s)
        if self.decode.methods.swaps:
            step_s = step_s + self.decode.swap_s(self.load.context) / self.steps
        return step_s

    def _shared(self, took: Iterations, rate: Array) -> SharedIterations:
        """Iterations with prompts of an instance that gets so many per second."""
        of_a_stage = took.chunks / self.prefill.pp
        # Bursts of a mean size B at random times have times between arrivals with a scv of 2 B - 1: where their sizes
        # have a geometric distribution. A prompt is in a larger one than the mean: 2 (B - 1) others come with it.
        bursts = np.maximum((self.interval_scv + 1.0) / 2.0, 1.0)
        with_it = np.where(self.is_open, 2.0 * (bursts - 1.0), np.minimum(self.with_it, self.places - 1.0))
        return SharedIterations(
            number=took.number, places=self.places, rate=np.where(self.is_open, rate, rate * self.others),
            burst=np.where(self.is_open, bursts, 1.0 + with_it), with_it=with_it,
            behind=np.where(self.is_open, (1.0 - 1.0 / bursts) ** self.places, 0.0),
            idle_s=np.where(self.disagg, 0.0, took.decode_s / self.decode.pp), seconds=took.mixed_s * of_a_stage,
            more_s=took.more_s * of_a_stage, unlike_s=took.unlike_s,
            unevenness=self.interval_scv + took.prompt_scv,
        )  # fmt: skip


def _interval_scv(load: Load, prefill: Pool) -> Array:
    """Squared coefficient of variation of the times between arrivals at an instance, which gets requests at random."""
    return np.asarray(1.0 + (load.arrival_scv - 1.0) / prefill.instances)


def _together(number: Array, mixes: Array, load: Load, constants: ServingConstants) -> Array:
    """Share of the requests that come together with one: none in an open loop; as the load has it, where that is known.
    Else lengths are all equal: requests that end together begin together again, in groups that grow as the root of the
    number; all of them where an engine prefills before it goes on decoding."""
    others = np.maximum(number - 1.0, 1.0)
    groups = np.where(mixes, np.minimum(2.0 * constants.burst / np.sqrt(others), 1.0), 1.0)
    closed = np.where(np.isnan(load.burst_share), groups, np.nan_to_num(load.burst_share))
    return np.where(load.rate > 0, 0.0, closed)
