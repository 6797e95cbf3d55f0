"""Just One Byte: each machine tries a direction of its own and sends the slope that it found; all update along all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..quantities.zeroth_order import PERTURBED_TENSORS, ZerothOrder
from .base import EXCHANGE, PLACE, SHARERS, Columns, Knob, Knobs, Need, Technique
from .directions import ALL_WEIGHTS, NO_GRADIENTS, without_gradients

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger


# Tensors of one direction (ezelikman/justonebyte 19ba089, add_perturbation without use_eps): noise written (1), scaled
# (2), added to the weight (3), whose sum is a tensor of its own beside the noise and the scaled one.
_UPDATED_TENSORS, _UPDATE_BUFFERS = 6.0, 3.0


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    """The seed of a direction is (machine, sample): every micro-batch of every replica has one, which all others make
    again from its seed."""
    if knobs["on"] == 0:
        return ledger
    directions = ledger.layouts["dp"] * ledger.m
    step = ZerothOrder(
        in_passes=np.full_like(directions, PERTURBED_TENSORS), after=_UPDATED_TENSORS * directions,
        sent_bytes=knobs["slope_bytes"] * directions, buffers=_UPDATE_BUFFERS,
    )  # fmt: skip
    return replace(ledger, zeroth_order=step)


def _replicas(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["zero"] == 0) & (x["dp"] > 1) & (x["ep"] * x["etp"] <= x["tp"]))


TECHNIQUE = Technique(
    name="just-one-byte",
    group="less communication",
    title="Just One Byte: no gradients; machines send a byte each, the slope of the loss along a random direction",
    paper="Zelikman et al. 2023, Just One Byte (per gradient): A Note on Low-Bandwidth Decentralized Language Model "
          "Finetuning Using Shared Randomness, arXiv 2306.10015",
    bibtex="""@article{zelikman2023just,
  title = {Just One Byte (per gradient): A Note on Low-Bandwidth Decentralized Language Model Finetuning Using Shared
           Randomness},
  author = {Zelikman, Eric and Huang, Qian and Liang, Percy and Haber, Nick and Goodman, Noah D.},
  journal = {arXiv preprint arXiv:2306.10015},
  year = {2023}
}""",
    knobs=(Knob("on", 1, 0, 1, "0: gradients are made and summed"),
           Knob("slope_bytes", 1, 1, 8, "bytes of a slope that is sent")),
    neutral={"on": 0},
    needs=(ALL_WEIGHTS, Need(("tp", "dp", "ep", "etp", "zero"), _replicas,
                             "replicas of the whole model: several, without ZeRO, and ep within tp")),
    on_stack=without_gradients,
    rewrite=_rewrite,
    caveat="a step learns far less than one with gradients, and fine-tuning alone was shown; the arithmetic of the "
           "generator of noise is not counted",
    chooses=(EXCHANGE, SHARERS, PLACE), zero=0, excludes=NO_GRADIENTS, only_costs=True,
)  # fmt: skip
