"""CPU offload: weights of ZeRO-3 in the memory of the hosts, with gradients and optimizer states or without."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..quantities.stores import Store
from .base import PLACE, Knob, Knobs, Technique
from .zero_infinity import AWAY, STATES_FREE
from .zero_plus_plus import GATHERED_WEIGHTS

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    """A rank copies its share of the weights to the GPU before it is gathered, in each pass, and its share of the
    gradients to the host after they are reduced, in each micro-batch (torch 2.13, FSDPParamGroup with CPUOffloadPolicy:
    `all_gather_inputs` to the device, `foreach_reduce` to the host). Adam runs on the host. Where weights alone are
    there, Adam runs on the GPU and its new weights go to the host (DeepSpeed edaa7221, runtime/zero/stage3.py,
    _reassign_or_swap_out_partitioned_parameters)."""
    if knobs["on"] == 0:
        return ledger
    optimizer = bool(knobs["optimizer"])
    store = Store(
        weights=True, optimizer=optimizer, returned=ledger.problem.state_bytes.gradient if optimizer else 0.0,
        updated=0.0, duplex=True, link_bytes_per_s=np.inf, update_bytes_per_s=np.inf, over_pcie=True, on_host=True,
    )  # fmt: skip
    return replace(ledger, store=store)


TECHNIQUE = Technique(
    name="cpu-offload",
    group="memory",
    title="CPU offload: weights, gradients and optimizer states in the memory of the hosts",
    paper="Rajbhandari et al. 2021, ZeRO-Infinity, arXiv 2104.07857; Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277",
    bibtex="""@article{zhao2023fsdp,
  title = {{PyTorch FSDP}: Experiences on Scaling Fully Sharded Data Parallel},
  author = {Zhao, Yanli and others},
  journal = {Proceedings of the VLDB Endowment},
  volume = {16},
  number = {12},
  year = {2023}
}""",
    knobs=(Knob("on", 1, 0, 1, "0: states stay on the GPUs"),
           Knob("optimizer", 1, 0, 1, "0: gradients and optimizer states stay on the GPUs")),
    neutral={"on": 0},
    needs=(GATHERED_WEIGHTS, STATES_FREE),
    rewrite=_rewrite,
    caveat="Adam of torch on a CPU may be slower than the memory that its price counts",
    chooses=(PLACE,), zero=3, excludes=AWAY, order=3, keeps_weights=False,
)  # fmt: skip
