"""CXL memory: cards have what GPUs copy, DRAM what the optimizer on the CPU reads and writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..layouts import OFFLOADS
from ..quantities.stores import FarMemory
from .base import PLACE, Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger

GB = 1e9


def _offloads(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["offload"] != OFFLOADS.index("none")) | (x["offload_layers"] > 0) | (x["offload_modules"] > 0))


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    if not knobs["optimizer"] and not knobs["activations"]:
        return ledger
    return replace(ledger, far=FarMemory(
        optimizer=knobs["optimizer"], activations=knobs["activations"], bytes_per_s=knobs["gb_per_s"] * GB,
        capacity_bytes=knobs["gb"] * GB,
    ))  # fmt: skip


TECHNIQUE = Technique(
    name="cxl",
    group="memory",
    title="CXL memory: activations on cards behind the CPU, states of the optimizer in DRAM",
    paper="Liaw and Chen 2025, Analysis and Optimized CXL-Attached Memory Allocation for Long-Context LLM Fine-Tuning, "
          "arXiv 2507.03305",
    bibtex="""@article{liaw2025cxl,
  title = {Analysis and Optimized {CXL}-Attached Memory Allocation for Long-Context {LLM} Fine-Tuning},
  author = {Liaw, Yong-Cheng and Chen, Shuo-Han},
  journal = {arXiv preprint arXiv:2507.03305},
  year = {2025}
}""",
    knobs=(
        Knob("activations", 1, 0, 1, "share of the activations on the host that is on cards", whole=False),
        Knob("optimizer", 0, 0, 1, "share of states and gradients on the host that is on cards", whole=False),
        # One card for each GPU: Micron CZ120, 256 GB and up to 36 GB/s at two reads a write (Micron, 7 August 2023).
        Knob("gb_per_s", 36, 1e-3, 1e6, "GB/s per GPU of its cards together", whole=False),
        Knob("gb", 256, 1e-6, 1e9, "GB per GPU of its cards together; the rest stays in DRAM", whole=False),
    ),
    neutral={"activations": 0, "optimizer": 0},
    needs=(Need(("offload", "offload_layers", "offload_modules"), _offloads, "something offloaded to the host"),),
    rewrite=_rewrite,
    caveat="Adam waits for the bandwidth of the cards alone: their latency is in no price",
    chooses=(PLACE,), only_costs=True,
)  # fmt: skip
