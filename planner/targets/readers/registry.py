"""All readers of formats that no target writes: one line each, in the order of screens."""

from __future__ import annotations

from . import (
    areal,
    axolotl,
    hf_trainer,
    llama_factory,
    maxtext,
    megatron_swift,
    nanotron,
    nemo,
    nemo_rl,
    openrlhf,
    slime,
    swift,
    verl,
)  # fmt: skip

READERS = (
    *(module.READER.format for module in (
        hf_trainer, axolotl, llama_factory, swift, megatron_swift, nemo, nanotron, maxtext, verl, openrlhf, areal)),
    nemo_rl.FORMAT, slime.FORMAT,
)  # fmt: skip
