"""A warning on the basis of a plan: a code for programs and a text for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Code = Literal[
    "cluster",  # a value of the cluster's description is assumed, doubtful, unconfirmed or not used
    "uniform-plan",  # a plan that treats all groups of nodes alike loses speed or memory; one by islands does not
    "model",  # a part of the model's description is left out, or its numbers disagree
    "estimate",  # times are scaled from another device instead of measured
    "target",  # the target cannot run what is planned
    "technique",  # who trains by a technique, and what no price of it shows
    "untrained",  # the target cannot train the model: the plan is no more than priced
]


@dataclass(frozen=True, slots=True)
class Notice:
    """One warning. Two with equal code and text are the same warning."""

    code: Code  # what the warning is about
    text: str  # for screens
