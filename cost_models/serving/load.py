"""Latencies and throughput under a load: the iterations of pools joined to a steady state."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from ..arrays import Array, Mask
from .constants import ServingConstants
from .filling import filling_state
from .image_placement import front_s
from .iteration import Batch, iteration_seconds
from .pool import Pool
from .room import decoders_queue, whole_passes
from .service import BUSIEST, FULLEST, PROBE, ROUNDS, Load, Service
from .stages import Rounds, pipeline_s, prompt_seconds

# Iterations from the arrival of a prompt until it is in one: the rest of two, half each; in pipelines, stages of them.
_WAITS = 1.0


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
    full_s = iteration_seconds(decode, constants, decoding_batch(capacity, decode, load))
    wanted = _decoding_at(arriving, steps, replace(state, decode_s=full_s), disagg)
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
        prompt_groups=state.groups, prompt_scv=state.prompt_scv, interval_scv=system.interval_scv,
        stable=stable,
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
    gain = np.minimum(gain + np.where(disagg, 0.0, state.prompt_load), 0.9)
    return np.asarray(np.sqrt(sequences) / (1.0 - gain))


def _decoding_at(rate: Array, steps: Array, state: _State, disagg: Mask) -> Array:
    """Sequences b that decode on an instance at a rate of arrivals, out of b = rate (steps decode_s + (b-1) prompt_s):
    prompts that come meanwhile lengthen the answer, and so bring more of them."""
    beside_s, share = np.where(disagg, 0.0, state.prompt_s), np.where(disagg, 0.0, state.prompt_load)
    return np.asarray(rate * np.maximum(steps * state.decode_s - beside_s, 0.0) / (1.0 - share))


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
    prompt_scv: Array
    groups: Array  # that have a prompt in the same iteration
    meanwhile: Array  # prompts that come to a stage in the seconds of one
    rate: Array  # of prompts, per second of an instance
    begin_s: Array  # from the room for a request until it decodes


@dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """Pools under a load, with what no round of the fixed point changes, columns [n]."""

    prefill: Pool
    decode: Pool
    disagg: Mask
    load: Load
    constants: ServingConstants
    is_open: Mask
    steps: Array  # iterations of an answer
    interval_scv: Array
    ahead: Array  # of the prompts that come together with one, those before it
    behind: Array  # and those after it
    alone: Array  # share of the prompts that come by themselves
    first: Array  # iterations of the pool that decodes, until a prompt is in one
    come_s: Array  # to the scheduler, and of the cache to another pool

    @classmethod
    def of(
        cls, prefill: Pool, decode: Pool, disagg: Mask, load: Load, constants: ServingConstants, held: Array
    ) -> _System:  # fmt: skip
        """held: sequences that an instance has room for, of a closed loop no more than its requests."""
        together = _together(held, prefill.mixes_prompts, load, constants)
        half = together * np.maximum(held - 1.0, 0.0) / 2.0
        return cls(
            prefill=prefill, decode=decode, disagg=disagg, load=load, constants=constants, is_open=load.rate > 0,
            steps=np.maximum(load.output - 1.0, 1.0) / decode.step_tokens, interval_scv=_interval_scv(load, prefill),
            ahead=half * decode.instances / prefill.instances, behind=half, alone=1.0 - together,
            first=np.where(disagg, decode.decodes_first > 0, 1.0 / decode.pp),
            come_s=front_s(prefill, constants, load.prompt) + load.transfer_s,
        )  # fmt: skip

    def settled(self, held: Array, capacity: Array) -> tuple[Array, _State]:
        """The sequences that decode on an instance, and the state in which they do."""
        arriving = self.load.rate / self.decode.instances
        running, state = 0.7 * held, _State(*(np.zeros_like(held) for _ in range(len(fields(_State)))))
        for _ in range(ROUNDS):
            state = self.at(running, state)
            decoding = self.steps * state.step_s
            closed = held * decoding / (state.ttft_s + decoding)
            opened = np.minimum(_decoding_at(arriving, self.steps, state, self.disagg), capacity)
            running = 0.5 * running + 0.5 * np.where(self.is_open, opened, closed)
        return running, state

    def at(self, running: Array, before: _State) -> _State:
        """Latencies while so many sequences decode on an instance. before: in the round before."""
        prefill, decode, load, disagg, constants = self.prefill, self.decode, self.load, self.disagg, self.constants
        steps, is_open = self.steps, self.is_open
        decoding = decoding_batch(running, decode, load)
        decode_s = iteration_seconds(decode, constants, decoding)
        groups = _together_in(before.meanwhile, prefill)
        alone_s, beside = np.where(disagg, 0.0, decode_s), np.where(disagg, 0.0, decoding.sequences)
        mixed = replace(decoding, sequences=beside, prompt_context=load.prompt_context, prompt_groups=groups)
        mixed_s, chunks = prompt_iterations(prefill, constants, mixed, load.prefilled)
        stage_s, prompt_scv = _stage_s(prefill, constants, mixed, load, mixed_s, alone_s, decoding.sequences / steps)
        rounds = Rounds.of(stage_s, before.rate, mixed_s, alone_s, chunks, prefill, disagg, load)
        added_s, shared_s = rounds.added_s, stage_s * groups  # of prompts of so many groups at a time
        others = np.maximum(running - 1.0, 0.0)
        # Prompts that come while one decodes: half of those that came with it, and of the others as many as decode.
        step_s = decode_s + np.where(disagg, 0.0, (self.behind + self.alone * others) * added_s / steps)
        if decode.methods.swaps:
            step_s = step_s + decode.swap_s(load.context) / steps
        rate = np.where(is_open, load.rate, running * decode.instances / (steps * step_s)) / prefill.instances
        # Where all that come meanwhile are taken at once, prompts take no more of the time than they add to an
        # iteration.
        whole_s = shared_s + alone_s * chunks / prefill.pp
        prompt_load = np.minimum(rate * added_s, np.maximum(shared_s / whole_s, BUSIEST))
        taken = np.minimum(rate * np.maximum(shared_s / prefill.attention_dp, rounds.full_s), BUSIEST)
        unevenness = np.where(is_open, self.interval_scv, 1.0) + prompt_scv
        queue_s = unevenness / 2.0 * shared_s * prompt_load * queued(prompt_load, taken, prefill)
        later_s, own_s = np.zeros_like(queue_s), prompt_seconds(mixed_s, chunks, prefill)
        if prefill.staged:
            queue_s = np.where(rounds.together, rounds.queue_s(rate, prompt_load, alone_s, unevenness), queue_s)
            later_s = np.where(disagg & is_open, pipeline_s(prefill, load, added_s, taken, prompt_scv), 0.0)
        queue_s = np.where(is_open, queue_s, np.minimum(queue_s, others / 2.0 * added_s)) + self.ahead * added_s
        first_s = _WAITS * decode_s * self.first
        return _State(
            self.come_s + first_s + own_s + queue_s + later_s, step_s, prompt_load, taken, queue_s + later_s, later_s,
            first_s, decode_s, added_s, rounds.longest_s, rounds.most_s, prompt_scv, groups, rate * whole_s, rate,
            np.where(disagg, decode_s, own_s),
        )  # fmt: skip


def _stage_s(
    prefill: Pool, constants: ServingConstants, mixed: Batch, load: Load, mixed_s: Array, alone_s: Array, number: Array
) -> tuple[Array, Array]:  # fmt: skip
    """[n] seconds that a prompt adds to one stage, and their squared coefficient of variation. mixed_s, alone_s: of an
    iteration with a prompt and without. number: prompts of an iteration, mean."""
    chunks = load.prefilled / np.minimum(load.prefilled, prefill.chunk_tokens)
    stage_s = _added_s(prefill, mixed, load.prefilled, mixed_s * chunks, alone_s * chunks)
    prompt_scv = _prompt_scv(prefill, constants, mixed, load, alone_s, stage_s)
    if prefill.methods.nano_batches > 1:
        stage_s = _shared_s(prefill, constants, mixed, load, alone_s, stage_s, number)
    return stage_s, prompt_scv


def _together_in(meanwhile: Array, prefill: Pool) -> Array:
    """Groups with a prompt in an iteration that has any. meanwhile: prompts that come during one.

    Engines do not gather prompts of several groups for an iteration (vLLM 0.32, its page on data parallel deployment:
    each rank schedules its own; TensorRT-LLM 1.2, AttentionDpConfig: `enable_balance` is off). So the first iteration
    after one without prompts has one, and each further one those that came during the one before it: a Poisson number
    n of them, and none with probability exp(-n) that ends the row, so that it has n + exp(-n) in the mean.
    """
    return np.minimum(meanwhile + np.exp(-meanwhile), prefill.attention_dp)


def queued(busy: Array, taken: Array, prefill: Pool) -> Array:
    """[n] the mean wait of a prompt over the half of an iteration with prompts that it meets with probability `busy`.

    taken: prompts that come, over as many as all groups of an instance can take. Behind the rest of the iteration a
    prompt waits for those that the groups cannot take at once, as in a queue with as many servers (H. Sakasegawa, An
    approximation formula L = alpha rho^beta / (1 - rho), 1977). With one group it is that of Pollaczek and Khinchine.
    """
    groups = prefill.attention_dp
    beyond = taken ** np.sqrt(2.0 * (groups + 1.0)) / (groups * (1.0 - taken))
    return np.asarray(1.0 + beyond / np.maximum(busy, 1e-12))


def decoding_batch(running: Array, decode: Pool, load: Load) -> Batch:
    """An iteration in which so many sequences [n] of an instance decode and no prompt is prefilled; where the model
    fills in, a pass over as many as run in the mean."""
    if decode.methods.fills:
        return whole_passes(np.maximum(running / decode.pp, 1.0), load)
    return Batch(sequences=running / decode.pp, context=load.context, prompt_tokens=np.zeros(running.shape),
                 prompt_context=load.prompt_context, prompt_groups=np.ones(running.shape))  # fmt: skip


def prompt_iterations(
    prefill: Pool, constants: ServingConstants, mixed: Batch, prompt: Array
) -> tuple[Array, Array]:  # fmt: skip
    """[n] seconds of an iteration with prompts of so many tokens beside the sequences of `mixed`, and how many of them
    such a prompt takes."""
    chunk = np.minimum(prompt, prefill.chunk_tokens)
    batch = replace(mixed, prompt_tokens=chunk * mixed.prompt_groups)
    return iteration_seconds(prefill, constants, batch), np.asarray(prompt / chunk)


def _added_s(prefill: Pool, mixed: Batch, prompt: Array, mixed_s: Array, alone_s: Array) -> Array:
    """mixed_s, alone_s: of all iterations of a prompt, with it and without."""
    added_s = np.maximum(mixed_s - alone_s, 0.0) + prefill.launched_s(prompt)
    return np.asarray(added_s / (mixed.prompt_groups * prefill.pp))


def _shared_s(
    prefill: Pool, constants: ServingConstants, mixed: Batch, load: Load, alone_s: Array, added_s: Array, number: Array
) -> Array:  # fmt: skip
    """Seconds that each of so many prompts of an iteration adds: reads of the cache hide all of them together once, not
    each. added_s: of one alone."""
    number = np.maximum(number, 1.0)
    prompts = load.prefilled * number
    mixed_s, chunks = prompt_iterations(prefill, constants, mixed, prompts)
    shared_s = _added_s(prefill, mixed, prompts, mixed_s * chunks, alone_s * chunks) / number
    return np.maximum(added_s, shared_s)


def _prompt_scv(
    prefill: Pool, constants: ServingConstants, mixed: Batch, load: Load, alone_s: Array, added_s: Array
) -> Array:  # fmt: skip
    """Squared coefficient of variation of the seconds that prompts add: from those of a prompt that is longer than the
    mean by the standard deviation of lengths."""
    variance = np.maximum(load.prompt_square - load.prompt**2, 0.0)
    if not (variance > 1e-9 * load.prompt_square).any():
        return np.zeros_like(added_s)
    times = 1.0 + np.sqrt(variance) / load.prompt
    longer, context = load.prefilled * times, load.prompt_context * times
    mixed_s, chunks = prompt_iterations(prefill, constants, replace(mixed, prompt_context=context), longer)
    more_s = _added_s(prefill, mixed, longer, mixed_s * chunks, alone_s * chunks)
    return np.asarray((more_s / added_s - 1.0) ** 2)


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
