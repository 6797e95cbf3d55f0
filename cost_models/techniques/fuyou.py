"""Fuyou: states on drives as in ZeRO-Infinity, and updates of layers during the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import PLACE, Columns, Knob, Need, Technique
from .zero_infinity import AWAY, STATES_FREE, WHAT, drives_hold, on_drives
from .zero_plus_plus import trains_all

if TYPE_CHECKING:
    from ..problem import Problem


def _one_micro_batch(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray(x["dp"] * x["micro_batch"] == problem.workload.global_batch)


def _sharded_or_alone(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["pp"] == 1) & ((x["zero"] == 3) | (x["dp"] * x["cp"] == 1)))


TECHNIQUE = Technique(
    name="fuyou",
    group="memory",
    title="Fuyou: states on drives, updated layer by layer while the backward pass goes on",
    paper="Liao et al. 2024, Adding NVMe SSDs to Enable and Accelerate 100B Model Fine-tuning on a Single GPU, "
          "arXiv 2403.06504",
    bibtex="""@article{liao2024fuyou,
  title = {Adding NVMe SSDs to Enable and Accelerate 100B Model Fine-tuning on a Single GPU},
  author = {Liao, Changyue and others},
  journal = {arXiv preprint arXiv:2403.06504},
  year = {2024}
}""",
    # The paper's machine: 12 drives; 3 GB/s each, read and written, is assumed.
    knobs=(*WHAT, Knob("gb_per_s", 36, 1e-3, 1e6, "GB/s per GPU that its drives read and write together",
                       whole=False), Knob("tb", 46, 1e-6, 1e6, "TB of drives per GPU", whole=False)),
    neutral={"weights": 0, "optimizer": 0},
    needs=(Need(("pp", "dp", "cp", "zero"), _sharded_or_alone, "no pipeline, and ZeRO-3 or a single GPU's states"),
           Need(("zero",), trains_all, "training of all weights"),
           Need(("dp", "micro_batch"), _one_micro_batch, "one micro-batch per step: a gradient is used at once"),
           STATES_FREE, drives_hold("fuyou")),
    rewrite=lambda ledger, knobs: on_drives(ledger, knobs, during_backward=bool(knobs["optimizer"])),
    caveat="drives wear out with what is written, and their rate is a knob; activations go to the host, not to drives",
    chooses=(PLACE,), zero=3, excludes=AWAY, order=3, keeps_weights=False,
)  # fmt: skip
