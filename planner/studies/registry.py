"""Every study, by name. A new one is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Callable

from . import (
    compare,
    conversion,
    faults,
    generations,
    gossip,
    network_cost,
    reliability,
    scaling,
    sensitivity,
    step_law,
    sweep,
)
from .base import Question, Result

STUDIES: dict[str, Callable[[Question], Result]] = {
    "compare": compare.run,  # one change, before and after: `--set` alone
    "sweep": sweep.run,  # one or two numbers over a range: `--vary`
    "sensitivity": sensitivity.run,
    "strong-scaling": scaling.strong,
    "weak-scaling": scaling.weak,
    "generations": generations.run,
    "reliability": reliability.run,
    "faults": faults.run,
    "network-cost": network_cost.run,
    "step-law": step_law.run,
    "gossip": gossip.run,
    "conversion": conversion.run,
}
