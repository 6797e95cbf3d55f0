"""States that live outside the GPUs and the host's memory: on drives, or on a node of the network that updates them.

Quantities are bytes per parameter that a rank updates (its share of all). The rates of such a device are in no
cluster file: they come with the technique that uses it, as its knobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Array

ADAM_BYTES = 28.0  # moved in memory per parameter by Adam on a CPU (FORMULAS 9.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """weights, optimizer: which states are away (the gradient is where the optimizer is).

    fetched: weights, for each pass over a micro-batch; returned: gradients, after it; updated: all that the optimizer's
    step reads and writes. link_bytes_per_s: of what is fetched and returned, per GPU: together, on the device that
    updates; or (duplex) each way, on links apart from it. over_pcie: that crosses PCIe too. update_bytes_per_s: of what
    is updated; adam_bytes_per_s: of the memory of whoever computes (None: the GPU's host). during_backward: a layer is
    updated while the layers before it are still differentiated. pinned_bytes: of buffers on the host, per GPU.
    """

    weights: bool
    optimizer: bool
    fetched: float
    returned: Array | float
    updated: float
    link_bytes_per_s: float
    update_bytes_per_s: float
    adam_bytes_per_s: float | None = None
    duplex: bool = False
    over_pcie: bool = False
    during_backward: bool = False
    pinned_bytes: float = 0.0
