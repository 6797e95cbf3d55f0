"""Gradient coding: replicas compute each other's micro-batches, so that a step need not wait for the slowest.

A replica is slow in a step with probability p, and then takes f times as long. To do without any r of n replicas, each
computes r + 1 shares of the batch (Tandon et al. 2017). The sequential code (Krishnan et al. 2023, M-SGC with bursts of
one step) repeats only what was missed, within a window of W steps: (r + 1) W / (1 + (W - 1) (r + 1)) shares, less than
2, and the sum of a step is whole W - 1 steps later.

The authors' master does not know who is slow before it has waited 1 + mu times as long as the fastest replica took
(mamaj/Sequential-Gradient-Coding-2, `perform_round` of 2_find_runtimes/multiplexed_sgc.py). A step with slow replicas
that it does without therefore takes min(1 + mu, f).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import lgamma
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import EXCHANGE, Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..arrays import Array
    from ..problem import Problem
    from ..quantities.ledger import Ledger


_ROUNDS, _CLOSE = 1000, 1e-12  # until no probability changes


def shares(tolerated: float, window: float) -> float:
    """The shares of the batch that a replica computes, over the one share without a code."""
    return (tolerated + 1) * window / (1 + (window - 1) * (tolerated + 1))


@cache
def waiting_share(replicas: int, tolerated: int, window: int, slow: float) -> float:
    """Share of the steps that wait for all replicas, where each is slow in a step with probability `slow`.

    Such a step has more than `tolerated` replicas that were slow within the window, or one that was slow before in it
    (Krishnan et al. 2023, section 2: bursts of one step). No replica was slow in a step that waited. The share is that
    of many steps. Steps of a window count as independent, which is exact for windows of 1 and 2.
    """
    if not 0 < slow < 1:
        return float(slow > 0 and replicas > tolerated)
    most = min(tolerated, replicas)
    before, now = np.meshgrid(np.arange(most + 1), np.arange(most + 1), indexing="ij")
    log_factorial = np.array([lgamma(number + 1.0) for number in range(replicas + 1)])
    others = np.maximum(replicas - before - now, 0)
    choices = log_factorial[replicas - before] - log_factorial[now] - log_factorial[others]
    chance = np.exp(choices + now * np.log(slow) + (replicas - now) * np.log1p(-slow))
    chance[before + now > most] = 0.0  # [slow before in the window, slow now] of a step that does not wait
    none = np.eye(most + 1)[0]
    marks = none  # [slow in a step]
    for _ in range(_ROUNDS):
        seen = none
        for _ in range(window - 1):
            seen = np.convolve(seen, marks)[: most + 1]
        last, marks = marks, (seen / seen.sum()) @ chance
        share = max(1.0 - float(marks.sum()), 0.0)
        marks = marks + share * none
        if np.abs(marks - last).max() < _CLOSE:
            break
    return share


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
    window = int(knobs["window"])
    late: Array = np.array([waiting_share(int(n), tolerated, window, slow) for n in replicas])[row]
    without = -np.expm1(ledger.layouts["dp"] * np.log1p(-slow)) - late if slow < 1 else 1 - late
    longer = knobs["factor"] - 1
    return replace(ledger, traffic=traffic, repeats=ledger.repeats * shares(tolerated, window),
                   waits=ledger.waits + longer * late + min(knobs["patience"], longer) * without)  # fmt: skip


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
        Knob("patience", 0.0, 0, 1000, "how much longer than the fastest replica takes a step waits before it does "
             "without the slow ones, over those seconds (the paper's mu)", whole=False),
    ),
    neutral={"tolerated": 0, "slow": 0},
    needs=(Need(("dp",), _enough, "more replicas than it does without"),),
    rewrite=_rewrite,
    # Krishnan et al. 2023, the bursty straggler model: such a step waits for all.
    caveat="who is slow is drawn anew in every step: a node that stays slow is left out instead; a window delays sums; "
           "compare with `tolerated=0` and the same `slow`",
    chooses=(EXCHANGE,), only_costs=True,
)  # fmt: skip
