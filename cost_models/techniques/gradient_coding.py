"""Gradient coding: replicas compute each other's micro-batches, so that a step need not wait for the slowest.

A replica is slow in a step with probability p, and then takes f times as long. To do without any r of n replicas, each
computes r + 1 shares of the batch (Tandon et al. 2017). The sequential code (Krishnan et al. 2023, M-SGC with bursts of
one step) repeats only what was missed, within a window of W steps: (r + 1) W / (1 + (W - 1) (r + 1)) shares, less than
2, and the sum of a step is whole W - 1 steps later.
"""

from __future__ import annotations

from dataclasses import replace
from math import comb
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import EXCHANGE, Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..arrays import Array
    from ..problem import Problem
    from ..quantities.ledger import Ledger


def shares(tolerated: float, window: float) -> float:
    """Of the batch, that a replica computes over those that it computes without a code."""
    return (tolerated + 1) * window / (1 + (window - 1) * (tolerated + 1))


def more_are_slow(replicas: int, tolerated: int, slow: float) -> float:
    """Probability that more than `tolerated` of the replicas are slow in a step."""
    few = sum(comb(replicas, k) * slow**k * (1 - slow) ** (replicas - k) for k in range(min(tolerated, replicas) + 1))
    return max(1.0 - few, 0.0)


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    tolerated, slow = int(knobs["tolerated"]), knobs["slow"]
    if not tolerated and not slow:
        return ledger
    replicas, row = np.unique(ledger.layouts["dp"], return_inverse=True)
    copies = np.asarray(ledger.dense_groups.replicate, dtype=np.float64)
    # Those in time, k of n, scatter the sum among themselves, (k - 1) / k of it, and send their k-th part to n - 1:
    # more than the 2 (n - 1) / n of an all-reduce of all, since only they send.
    sending = np.maximum(copies - tolerated, 1.0)
    more = (sending + copies - 2) / sending * copies / np.maximum(2 * copies - 2, 1.0)
    more = np.where(copies > tolerated, more, 1.0)
    traffic = tuple(replace(phase, replicated=phase.replicated * more) for phase in ledger.traffic)
    late: Array = np.array([more_are_slow(int(n), tolerated, slow) for n in replicas])[row]
    return replace(ledger, traffic=traffic, repeats=ledger.repeats * shares(tolerated, knobs["window"]),
                   waits=ledger.waits + (knobs["factor"] - 1) * late)  # fmt: skip


def _enough(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    knobs = dict(dict(problem.workload.techniques)["gradient-coding"])
    return np.asarray(x["dp"] > np.maximum(knobs["tolerated"], 1))


TECHNIQUE = Technique(
    name="gradient-coding",
    group="faults",
    title="Gradient coding: replicas compute each other's micro-batches and do without the slowest",
    paper="Tandon et al. 2017, Gradient Coding, arXiv 1612.03301; Krishnan et al. 2023, Sequential Gradient Coding For "
          "Straggler Mitigation, arXiv 2211.13802",
    bibtex="""@inproceedings{krishnan2023sequential,
  title = {Sequential Gradient Coding For Straggler Mitigation},
  author = {Krishnan, M. Nikhil and Ebrahimi, M. Reza and Khisti, Ashish},
  booktitle = {International Conference on Learning Representations},
  year = {2023}
}""",
    knobs=(
        Knob("tolerated", 1, 0, 1024, "slow replicas that a step does without"),
        Knob("window", 2, 1, 64, "steps within which missed work is repeated; 1: all work is repeated in every step"),
        Knob("slow", 0.0, 0, 1, "probability that a replica is slow in a step", whole=False),
        Knob("factor", 3, 1, 1000, "seconds of a slow replica over those of others", whole=False),
    ),
    neutral={"tolerated": 0, "slow": 0},
    needs=(Need(("dp",), _enough, "more replicas than it does without"),),
    rewrite=_rewrite,
    # Krishnan et al. 2023, the bursty straggler model: such a step waits for all.
    caveat="who is slow is drawn anew in every step: a node that stays slow is left out instead; a window delays sums, "
           "and waits that it adds are not counted: for a replica that is slow twice within it, and where more than "
           "`tolerated` are slow in one of its steps or another; "
           "compare with `tolerated=0` and the same `slow`",
    chooses=(EXCHANGE,), only_costs=True,
)  # fmt: skip
