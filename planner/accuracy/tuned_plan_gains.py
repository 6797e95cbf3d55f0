"""Reasons why the best layout is faster than a tuned plan: named factors of its step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...cost_models.layouts import Layout, parse
from ...cost_models.quantities.stages import Partition
from ..evaluation.staged import Staged
from ..request.resolve import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """Seconds of the tuned plan over seconds with one thing more as the best layout has it. Their product is the whole
    ratio. In this order: what comes later is measured beside what came before."""

    # Switches of the software, the dispatcher of tokens among them, that the recipe leaves off or has otherwise.
    software: float
    # Tokens travel beside another micro-batch.
    ep_overlap: float
    # CUDA graphs.
    cuda_graphs: float
    # All else: degrees, schedule, micro-batch, sharding, recomputation, offload.
    layout: float

    @property
    def largest(self) -> str:
        """The name of the largest."""
        factors = {name: getattr(self, name) for name in self.__slots__}
        return max(factors, key=lambda name: factors[name])


def gains(
    written: Resolved, chosen: Resolved, layout: Layout, partition: Partition | None, best: tuple[float, str]
) -> Gains:
    """written, chosen: the request with the switches of the recipe, and as a plan has them; layout, partition: of the
    tuned plan; best: seconds and id of the best layout found."""
    best_s, name = best
    ours = parse(name.partition("-x")[0])
    overlapped = replace(layout, ep_overlap=max(layout.ep_overlap, ours.ep_overlap)) if layout.ep > 1 else layout
    graphed = replace(overlapped, cuda_graphs=ours.cuda_graphs)
    steps = [(written, layout), (chosen, layout), (chosen, overlapped), (chosen, graphed)]
    seconds = [Staged.of(resolved, row, partition).closed_s for resolved, row in steps]
    ratios = [before / after for before, after in zip(seconds, [*seconds[1:], best_s], strict=True)]
    return Gains(software=ratios[0], ep_overlap=ratios[1], cuda_graphs=ratios[2], layout=ratios[3])
