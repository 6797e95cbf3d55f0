"""DistZO2: training without gradients, of weights that wait in host memory; each layer comes once for both passes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..quantities.stores import Store
from ..quantities.zeroth_order import PERTURBED_TENSORS, UPDATE_BUFFERS, UPDATED_TENSORS, ZerothOrder
from .base import EXCHANGE, PLACE, SHARERS, Columns, Knob, Knobs, Need, Technique
from .directions import ALL_WEIGHTS, NO_GRADIENTS, without_gradients

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger

SLOPE_BYTES = 4.0  # fp32
# One that computes and one that comes, into the blocks of the one that has gone (liangyuwang/zo2 097d5686,
# inner_zo_forward: task_offload of layer i - 2 is before task_upload of layer i).
LAYERS_HERE = 2


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    """All ranks perturb along one direction. Under ZeRO-3 each copies a share of a layer over PCIe, and all gather it.
    Weights that wait on the host are updated when they come next."""
    if knobs["on"] == 0:
        return ledger
    offload, m = bool(knobs["offload"]), ledger.m
    store = Store(
        weights=True, optimizer=False, returned=0.0, updated=0.0, duplex=True, link_bytes_per_s=np.inf,
        update_bytes_per_s=np.inf, over_pcie=True, on_host=True, layers_here=LAYERS_HERE,
    ) if offload else None  # fmt: skip
    step = ZerothOrder(
        in_passes=PERTURBED_TENSORS + UPDATED_TENSORS / m if offload else PERTURBED_TENSORS / m,
        after=np.full_like(m, 0.0 if offload else UPDATED_TENSORS),
        sent_bytes=SLOPE_BYTES * ledger.layouts["dp"], buffers=UPDATE_BUFFERS, at_once=2 if offload else 1,
    )  # fmt: skip
    return replace(ledger, zeroth_order=step, store=store, exchanges=replace(ledger.exchanges, backward=()))


def _gathered_or_whole(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.isin(x["zero"], (0, 3))


TECHNIQUE = Technique(
    name="distzo2",
    group="memory",
    title="DistZO2: no gradients; layers come from host memory for two forward passes, over the PCIe links of all GPUs",
    paper="Wang et al. 2025, ZO2: Scalable Zeroth-Order Fine-Tuning for Extremely Large Language Models with Limited "
          "GPU Memory, arXiv 2503.12668; Wang et al. 2025, DistZO2, arXiv 2507.03211",
    bibtex="""@article{wang2025distzo2,
  title = {{DistZO2}: High-Throughput and Memory-Efficient Zeroth-Order Fine-tuning {LLMs} with Distributed Parallel
           Computing},
  author = {Wang, Liangyu and Xie, Huanyi and Wang, Di},
  journal = {arXiv preprint arXiv:2507.03211},
  year = {2025}
}""",
    knobs=(Knob("on", 1, 0, 1, "0: gradients are made"),
           Knob("offload", 1, 0, 1, "1: weights of layers wait in host memory; 0: they stay on the GPUs")),
    neutral={"on": 0},
    needs=(ALL_WEIGHTS, Need(("zero",), _gathered_or_whole, "ZeRO-3, by which GPUs share the copies, or none")),
    on_stack=without_gradients,
    rewrite=_rewrite,
    caveat="a step learns far less than one with gradients, and fine-tuning alone was shown; the arithmetic of the "
           "generator of noise is not counted",
    chooses=(EXCHANGE, SHARERS, PLACE), excludes=NO_GRADIENTS, order=3, keeps_weights=False, only_costs=True,
)  # fmt: skip
