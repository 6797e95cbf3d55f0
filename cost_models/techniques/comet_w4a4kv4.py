"""COMET: weights, most activations and the cache in 4-bit integers, outliers in 8."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..quantities.element_bytes import INT4_BYTES
from .base import WEIGHTS, Knob, Knobs, PoolNeed, Serves, Technique

if TYPE_CHECKING:
    from ..serving.pool import Pool

_BYTES = 0.5  # of a 4-bit integer of the cache
# The abstract: its kernels take 2.88 times less than cuBLAS in 16 bits, where the rates of the tensor cores, 4 times as
# high with a fifth of the blocks at half of it, would give 3.33.
_OF_RATE = 2.88 / (4 / 1.2)


def _multiplies_int4(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray(pool.int4_flops_per_s > 0)


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    """Products of blocks with outliers run at half the rate of the others, as on the tensor cores."""
    wide = knobs["wide"]
    if wide < 0:
        return pool
    none, rate = np.zeros_like(pool.tp), _OF_RATE * pool.int4_flops_per_s / (1.0 + wide)
    return replace(pool, weight_bytes=none + INT4_BYTES, expert_bytes=none + INT4_BYTES, kv_bytes=none + _BYTES,
                   kv_read_bytes=none + _BYTES, flops_per_s=rate, dense_flops_per_s=rate)  # fmt: skip


TECHNIQUE = Technique(
    name="comet-w4a4kv4",
    group="serving: memory",
    title="COMET: weights, activations and the cache in 4-bit integers, outliers in 8 bits",
    paper="Liu et al. 2024, COMET: Towards Practical W4A4KV4 LLMs Serving, arXiv 2410.12168",
    bibtex="""@article{liu2024comet,
  title = {COMET: Towards Practical W4A4KV4 LLMs Serving},
  author = {Liu, Lian and Cheng, Long and Ren, Haimeng and others},
  journal = {arXiv preprint arXiv:2410.12168},
  year = {2024}
}""",
    knobs=(Knob("wide", 0.2, -1, 1, "share of the blocks of activations in 8 bits (16 to 25 % in the paper); -1: "
                "nothing is in 4 bits", whole=False),),
    neutral={"wide": -1},
    trains=False,
    serves=Serves(on_pool=_on_pool, needs=(PoolNeed(_multiplies_int4, "GPUs that multiply 4-bit integers: NVIDIA's "
                                                    "Turing, Ampere and Ada"),)),
    caveat="its kernels are closed; the answers of a model in 4 bits differ from those in 16",
    chooses=(WEIGHTS,),
)  # fmt: skip
