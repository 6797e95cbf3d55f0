"""Shares of the multiprocessors of a GPU that kernels need, and techniques that give them out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import Knob, Knobs

if TYPE_CHECKING:
    from ..serving.pool import Pool

# Assumed: reads of the cache run at their full rate with so much of the multiprocessors. Papers on sharing a GPU draw
# such curves (NanoFlow, arXiv 2408.12757; Nexus, arXiv 2507.06608); no stored source has values.
READS_SHARE = 0.4
READS = Knob("reads", READS_SHARE, 0.05, 1, "share of the multiprocessors with which reads of the cache run at their "
             "full rate (assumed)", whole=False)  # fmt: skip
PROMPTS = Knob("prompts", 1 - READS_SHARE, 0, 0.95, "share of the multiprocessors for prompts, the others for answers; "
               "0: both in the same iterations", whole=False)  # fmt: skip


def split_phases(pool: Pool, knobs: Knobs) -> Pool:
    """Prompts and answers with multiprocessors of their own."""
    methods = replace(pool.methods, prompt_share=knobs["prompts"], reads_share=knobs["reads"])
    return replace(pool, methods=methods)
