"""Traffic per step of ranks that shard or replicate parameters, and its buffers: bytes per parameter.

Gradients are scattered within a shard group; replica groups sum theirs. Techniques (techniques/) change only this part
of a step's data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Array
from .exchanges import Op
from .state_placement import StatePlacement


@dataclass(frozen=True)
class StateTraffic:
    """Traffic of the states in a share of all steps."""

    scattered: Array  # [n] bytes per parameter of a gradient on its way within a shard group
    replicated: Array | float  # [n] bytes per parameter that a copy sends the others
    # How copies exchange them: all_reduce the sum of all; all_gather each gets those of all; p2p of one other copy.
    among_copies: Op = "all_reduce"
    share: float = 1.0  # of all steps
    period: float = 1.0  # steps between two exchanges of the copies
    fragments: float = 1.0  # parts in which they are exchanged where the period is above 1
    delay: float = 0.0  # steps that a fragment may take before anything waits for it
    on_gpu: Array | float = 0.0  # [n] bytes per parameter held beside the optimizer's states
    on_host: float = 0.0  # bytes per parameter held in host memory
    moved: float = 0.0  # bytes per parameter that the update moves in GPU memory, beside the optimizer's own

    @property
    def is_late(self) -> bool:
        """Whether copies exchange beside whole steps, not after the last backward pass of each."""
        return self.period > 1 or self.delay > 0

    @classmethod
    def of(cls, states: StatePlacement) -> StateTraffic:
        """Traffic of plain training: all of it, every step."""
        gradient = states.whole_gradient_bytes
        return cls(scattered=gradient, replicated=gradient)
