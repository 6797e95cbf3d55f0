"""Iterations of an instance: with prompts, without any, and their seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from ..arrays import Array, Mask
from .constants import ServingConstants
from .iteration import Batch, iteration_seconds
from .pool import Pool
from .room import whole_passes
from .service import Load

_COLUMNS = tuple(each.name for each in fields(Batch) if each.name != "answer")
_NEAR = 1e-3  # of the prompts of an iteration, of a derivative where no place is left for one more


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterations:
    """Iterations of an instance, columns [n], seconds."""

    number: Array  # prompts of one with any, mean
    chunks: Array  # iterations of a prompt
    decode_s: Array  # of one without prompts
    alone_s: Array  # the same where prompts are prefilled beside answers, else 0
    mixed_s: Array  # of one with prompts
    more_s: Array  # that one more of them adds
    full_s: Array  # of one with all places taken
    unlike_s: Array  # standard deviation of the seconds that a prompt adds to one stage
    stage_s: Array  # that a prompt adds to one stage, mean

    @property
    def prompt_scv(self) -> Array:
        """[n] squared coefficient of variation of the seconds that a prompt adds."""
        return np.asarray((self.unlike_s / np.maximum(self.stage_s, 1e-12)) ** 2)

    @classmethod
    def of(
        cls, prefill: Pool, twice: Pool, decode: Pool, load: Load, constants: ServingConstants, running: Array,
        mixes: Mask, number: Array, places: Array,
    ) -> Iterations:  # fmt: skip
        """Where so many sequences decode and, on instances that mix, `number` prompts of `places` are beside them.
        twice: the rows of `prefill` and again these, of which two numbers of prompts are priced at once."""
        chunks = load.prefilled / np.minimum(load.prefilled, prefill.chunk_tokens)
        decoding = decoding_batch(running, decode, load)
        decode_s = iteration_seconds(decode, constants, decoding)
        alone_s, beside = np.where(mixes, decode_s, 0.0), np.where(mixes, decoding.sequences, 0.0)
        mixed = replace(decoding, sequences=beside, prompt_context=load.prompt_context)
        more = np.minimum(number + 1.0, places)
        more = np.where(more > number * (1.0 + _NEAR), more, number * (1.0 - _NEAR))
        both_s = prompt_iteration(twice, constants, _twice(mixed), np.concatenate([load.prefilled] * 2),
                                  np.concatenate([number, more]))  # fmt: skip
        mixed_s, with_more_s = both_s[: len(number)], both_s[len(number) :]
        more_s = np.maximum((with_more_s - mixed_s) / (more - number), 0.0)
        unlike_s = _unlike_s(prefill, constants, mixed, load, mixed_s * chunks / prefill.pp, number)
        return cls(
            number=number, chunks=chunks, decode_s=decode_s, alone_s=alone_s, mixed_s=mixed_s, more_s=more_s,
            full_s=mixed_s + more_s * (places - number), unlike_s=unlike_s,
            stage_s=np.maximum(mixed_s - alone_s, 0.0) * chunks / (number * prefill.pp),
        )  # fmt: skip


def decoding_batch(running: Array, decode: Pool, load: Load) -> Batch:
    """An iteration in which so many sequences [n] of an instance decode and no prompt is prefilled; where the model
    fills in, a pass over as many as run in the mean."""
    if decode.methods.fills:
        return whole_passes(np.maximum(running / decode.pp, 1.0), load)
    return Batch(sequences=running / decode.pp, context=load.context, prompt_tokens=np.zeros(running.shape),
                 prompt_context=load.prompt_context, prompt_groups=np.ones(running.shape))  # fmt: skip


def _twice(batch: Batch) -> Batch:
    """Its columns and again these."""
    columns = {name: np.concatenate([getattr(batch, name)] * 2) for name in _COLUMNS}
    return Batch(**columns, answer=batch.answer)


def prompt_iteration(
    prefill: Pool, constants: ServingConstants, mixed: Batch, prompt: Array, number: Array
) -> Array:  # fmt: skip
    """[n] seconds of an iteration with so many prompts of so many tokens, or a chunk of each, beside the sequences of
    `mixed`."""
    tokens = number * np.minimum(prompt, prefill.chunk_tokens)
    groups = np.minimum(number, prefill.attention_dp)
    return iteration_seconds(prefill, constants, replace(mixed, prompt_tokens=tokens, prompt_groups=groups))


def _unlike_s(
    prefill: Pool, constants: ServingConstants, mixed: Batch, load: Load, mixed_s: Array, number: Array
) -> Array:  # fmt: skip
    """[n] standard deviation of the seconds that a prompt adds to its iterations: what one adds that is longer than the
    mean by the standard deviation of lengths. mixed_s: of the iterations of `number` prompts, in a stage."""
    variance = np.maximum(load.prompt_square - load.prompt**2, 0.0)
    if not (variance > 1e-9 * load.prompt_square).any():
        return np.zeros_like(mixed_s)
    times = 1.0 + np.sqrt(variance) / load.prompt
    longer, context = load.prefilled * times, load.prompt_context * times
    chunks = longer / np.minimum(longer, prefill.chunk_tokens)
    longer_s = prompt_iteration(prefill, constants, replace(mixed, prompt_context=context), longer, number)
    return np.asarray(np.maximum(longer_s * chunks / prefill.pp - mixed_s, 0.0) / number)
