"""ZeRO-Infinity: weights, gradients and optimizer states of ZeRO-3 on the drives of the nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..layouts import OFFLOADS
from ..quantities.stores import Store
from .base import PLACE, Columns, Knob, Knobs, Need, Technique
from .zero_plus_plus import SHARDED_WEIGHTS

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger

# DeepSpeed's buffers for weights on their way: 5 of 1e8 elements (runtime/zero/offload_config.py).
BUFFER_ELEMENTS = 5 * 1e8
GB, TB = 1e9, 1e12

# As in a DGX-2 (data sheet: 16 GPUs, 8 drives of 3.84 TB); 3.2 GB/s per drive is assumed, PCIe 3 x4 less overheads.
DRIVES = (
    Knob("gb_per_s", 1.6, 1e-3, 1e6, "GB/s per GPU that its drives read and write together", whole=False),
    Knob("tb", 1.75, 1e-6, 1e6, "TB of drives per GPU", whole=False),
)
WHAT = (Knob("weights", 1, 0, 1, "1: weights are on drives too"),
        Knob("optimizer", 1, 0, 1, "1: gradients and optimizer states are on drives"))  # fmt: skip


def _on_host(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.isin(x["offload"], (OFFLOADS.index("none"), OFFLOADS.index("act")))


STATES_FREE = Need(("offload",), _on_host, "optimizer states that are not offloaded to the host")


def drives_hold(name: str) -> Need:
    """All copies of the states that are away fit on the drives."""

    def allows(x: Columns, problem: Problem) -> NDArray[np.bool_]:
        knobs, states = dict(dict(problem.workload.techniques)[name]), problem.state_bytes
        weight_bytes = (1 + problem.workload.has_second_weights) * states.weight
        state_bytes = knobs["weights"] * weight_bytes + knobs["optimizer"] * (states.gradient + states.optimizer)
        layers = [problem.parameters[kind] for kind in problem.pattern]
        ends = problem.parameters[problem.num_kinds : problem.num_kinds + 2]  # embedding and head
        parameters = sum(p.trained_sharded + p.trained_replicated + p.trained_experts for p in (*layers, *ends))
        copies = np.where(x["zero"] == 3, x["dp"] // x["shard"], 1)
        return np.asarray(copies * parameters * state_bytes / problem.num_gpus <= knobs["tb"] * TB)

    return Need(("dp", "zero", "shard"), allows, "drives (`tb` per GPU) that hold the states that are away")


def on_drives(ledger: Ledger, knobs: Knobs, *, during_backward: bool) -> Ledger:
    """The ledger with the states that the knobs name on drives.

    Gradients are written after every micro-batch and read back by the next one's sum and by the optimizer, unless the
    update follows at once (during_backward: Fuyou).
    """
    weights, optimizer, states = bool(knobs["weights"]), bool(knobs["optimizer"]), ledger.problem.state_bytes
    if not weights and not optimizer:
        return ledger
    returned = 0.0 if during_backward else states.gradient
    store = Store(
        weights=weights, optimizer=optimizer,
        returned=returned * (2 - 1 / ledger.m) if optimizer else 0.0,
        updated=2 * states.optimizer + returned + states.weight, over_pcie=True, during_backward=during_backward,
        link_bytes_per_s=knobs["gb_per_s"] * GB, update_bytes_per_s=knobs["gb_per_s"] * GB,
        pinned_bytes=BUFFER_ELEMENTS * states.weight,
    )  # fmt: skip
    return replace(ledger, store=store)


AWAY = {"three-level": "three-level keeps weights in the memory of GPUs"}  # what states outside it exclude

TECHNIQUE = Technique(
    name="zero-infinity",
    group="memory",
    title="ZeRO-Infinity: weights, gradients and optimizer states on the drives of the nodes",
    paper="Rajbhandari et al. 2021, ZeRO-Infinity, arXiv 2104.07857",
    bibtex="""@inproceedings{rajbhandari2021zeroinfinity,
  title = {{ZeRO-Infinity}: Breaking the GPU Memory Wall for Extreme Scale Deep Learning},
  author = {Rajbhandari, Samyam and others},
  booktitle = {SC21},
  year = {2021}
}""",
    knobs=(*WHAT, *DRIVES),
    neutral={"weights": 0, "optimizer": 0},
    needs=(*SHARDED_WEIGHTS, STATES_FREE, drives_hold("zero-infinity")),
    rewrite=lambda ledger, knobs: on_drives(ledger, knobs, during_backward=False),
    caveat="drives wear out with what is written, and their rate is a knob: measure yours",
    chooses=(PLACE,), zero=3, excludes=AWAY, order=3, keeps_weights=False,
)  # fmt: skip
