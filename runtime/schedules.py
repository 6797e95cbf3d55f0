"""Who does what when in a pipeline: lists of forward and backward passes per stage. No torch here.

1F1B: PipeDream-Flush (arXiv 2104.04473, 2.2.1); interleaved: the same paper, 2.2.2, in the order of Megatron-LM's
forward_backward_pipelining_with_interleaving; GPipe: arXiv 1811.06965.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Action(NamedTuple):
    """A forward (`F`) or backward (`B`) pass of a chunk of this stage (0..vpp-1) for one micro-batch."""

    kind: Literal["F", "B"]
    chunk: int
    micro_batch: int


def actions(schedule: str, stage: int, pp: int, vpp: int, num_micro_batches: int) -> list[Action]:
    """The passes of `stage` in order: every chunk does F and B once per micro-batch."""
    if schedule == "gpipe":
        every = range(num_micro_batches)
        return [Action("F", 0, i) for i in every] + [Action("B", 0, i) for i in every]
    if schedule == "interleaved" and vpp > 1 and pp > 1:
        return _interleaved(stage, pp, vpp, num_micro_batches)
    warm_up = min(pp - stage - 1, num_micro_batches)
    order = [(0, i) for i in range(num_micro_batches)]
    return _one_forward_one_backward(order, order, warm_up)


def _interleaved(stage: int, pp: int, vpp: int, num_micro_batches: int) -> list[Action]:
    """Rounds of pp micro-batches through each chunk in turn; backward the chunks come in reverse."""
    forward, backward = [], []
    for first in range(0, num_micro_batches, pp):
        several = range(first, min(first + pp, num_micro_batches))
        forward += [(chunk, i) for chunk in range(vpp) for i in several]
        backward += [(chunk, i) for chunk in reversed(range(vpp)) for i in several]
    warm_up = min(2 * (pp - stage - 1) + (vpp - 1) * pp, len(forward))
    return _one_forward_one_backward(forward, backward, warm_up)


def _one_forward_one_backward(
    forward: list[tuple[int, int]], backward: list[tuple[int, int]], warm_up: int
) -> list[Action]:
    order = [Action("F", *each) for each in forward[:warm_up]]
    for index in range(len(forward) - warm_up):
        order += [Action("F", *forward[warm_up + index]), Action("B", *backward[index])]
    return order + [Action("B", *each) for each in backward[len(forward) - warm_up :]]
