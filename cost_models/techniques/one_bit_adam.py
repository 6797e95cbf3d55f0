"""1-bit Adam: after a warm-up the variance is frozen and replicas send the sign of their momentum."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import EXCHANGE, Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger

SIGN_BYTES = 1 / 8
ERROR_BYTES = 4.0  # fp32, per parameter: what a worker's signs left out; and, over the replicas, a server's part of it
# Compression moves per parameter, in fp32: momentum read, error read and written; what comes back written.
COMPRESSION_BYTES = 16.0


def _allows(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["zero"] == 0) & (x["dp"] > 1))


PLAIN_REPLICAS = Need(("dp", "zero"), _allows, "replicas without ZeRO: every rank compresses the whole momentum")


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    warmup = knobs["warmup"]
    if warmup == 1:
        return ledger
    error_bytes = ERROR_BYTES * (1 + 1 / ledger.dense_groups.replicate)
    phases = []
    for traffic in ledger.traffic:
        plain = replace(traffic, share=traffic.share * warmup, on_gpu=error_bytes)
        signs = replace(plain, share=traffic.share * (1 - warmup), replicated=SIGN_BYTES, moved=COMPRESSION_BYTES)
        phases += [plain, signs] if warmup else [signs]
    return replace(ledger, traffic=tuple(phases))


TECHNIQUE = Technique(
    name="1-bit-adam",
    group="less communication",
    title="1-bit Adam: signs of the momentum instead of gradients, after a warm-up",
    paper="Tang et al. 2021, 1-bit Adam, arXiv 2102.02888",
    bibtex="""@inproceedings{tang2021onebit,
  title = {1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed},
  author = {Tang, Hanlin and others},
  booktitle = {International Conference on Machine Learning},
  year = {2021}
}""",
    # The paper freezes the variance after 15 to 25 % of the steps.
    knobs=(Knob("warmup", 0.15, 0, 1, "share of all steps before the variance is frozen", whole=False),),
    neutral={"warmup": 1},
    needs=(PLAIN_REPLICAS,),
    rewrite=_rewrite,
    caveat="convergence rests on a variance that is stable after the warm-up; gradients are not clipped after it",
    chooses=(EXCHANGE,), only_traffic=True,
    zero=0,
    order=1,
)
