"""What ranks that share or repeat parameters send each other once per step, and keep for it: bytes per parameter.

Gradients are scattered and weights gathered within the group that shares them; the groups that repeat them sum theirs.
Techniques (techniques/) change this and nothing else of a step's data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Array
from .memory import StateBytes


@dataclass(frozen=True)
class StateTraffic:
    """Of a share of all steps. Bytes per parameter; arrays are over the layouts [n].

    scattered, gathered: a gradient and a weight on their way within a shard group; replicated: what the copies of a
    parameter send. period: steps between two exchanges of the copies; above 1 they go in `fragments`, each of which
    may take `delay` steps before anything waits for it. kept, kept_on_host: beside the optimizer's states; moved: in
    GPU memory by the update, beside the optimizer's own.
    """

    scattered: float
    gathered: float
    replicated: float
    share: float = 1.0
    period: float = 1.0
    fragments: float = 1.0
    delay: float = 0.0
    kept: Array | float = 0.0
    kept_on_host: float = 0.0
    moved: float = 0.0

    @classmethod
    def of(cls, states: StateBytes) -> StateTraffic:
        """Of plain training: all of it, every step."""
        return cls(scattered=states.gradient, gathered=states.weight, replicated=states.gradient)
