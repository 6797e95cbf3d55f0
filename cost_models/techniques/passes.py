"""Techniques of models that fill in masked tokens over several passes, and the needs of those that they cannot have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import Knob, Knobs, PoolNeed

if TYPE_CHECKING:
    from ..serving.pool import Pool


def _decodes(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.full(pool.tp.shape, not pool.methods.fills)


def _denoises(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.full(pool.tp.shape, pool.methods.denoises)


def _unmasks(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.full(pool.tp.shape, pool.methods.fills and not pool.methods.denoises)


DENOISES = PoolNeed(_denoises, "a diffusion transformer (`flux.1-dev`, `dit-xl-2-256`)")
FILLS = PoolNeed(_unmasks, "a language model that fills in masked tokens (`llada-8b`, `dream-7b`)")
DECODES = PoolNeed(_decodes, "a decoder, which gives one token after another")
BLOCK = Knob("block", 0, 0, 65536, "tokens of an answer, over which alone a pass runs while all others are cached; 0: "
             "no caches")  # fmt: skip
UNEQUAL = ("tokens that depend on one another lose quality where one pass fills them in together (ParallelBench, arXiv "
           "2510.04767), by task and by tokens of a pass")  # fmt: skip


def tokens_of_a_pass(default: float, text: str) -> Knob:
    """The mean tokens that a pass gives."""
    return Knob("tokens", default, 1, 65536, f"that a pass gives, mean: {text}; 1: one after another", whole=False)


def fill_together(pool: Pool, knobs: Knobs) -> Pool:
    """`tokens` of an answer in a pass, over a `block` of it where the others are cached."""
    methods = replace(pool.methods, block_tokens=knobs.get("block", 0.0))
    return replace(pool, step_tokens=np.full_like(pool.step_tokens, knobs["tokens"]), methods=methods)
