"""Data outside the GPUs: on drives, on a network node that updates them, in host memory or in memory behind its CPU.

Quantities are bytes per parameter that a rank updates (its share of all). Cluster files have no rates of drives and of
such nodes. The technique that uses a device has its rates as knobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arrays import Array

ADAM_BYTES = 28.0  # moved in memory per parameter by Adam on a CPU (FORMULAS 9.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """States of the model away from the GPU: on a drive, in the memory of the host or of another node."""

    weights: bool  # whether weights are away: each pass over a micro-batch fetches a rank's share of all of them
    optimizer: bool  # whether optimizer states are away, and with them gradients
    returned: Array | float  # [n] bytes per parameter of gradients, after each micro-batch
    updated: float  # bytes per parameter that the optimizer reads and writes
    link_bytes_per_s: float  # per GPU, for all that is fetched and returned; with `duplex` for each of the two
    update_bytes_per_s: float  # per GPU, for all that is updated
    # memory bandwidth of the machine that runs the optimizer, None: the host of the GPU
    adam_bytes_per_s: float | None = None
    duplex: bool = False  # fetching and returning have links of their own
    over_pcie: bool = False  # its traffic crosses PCIe too
    during_backward: bool = False  # a layer is updated while the layers before it are still differentiated
    on_host: bool = False  # host memory holds the states that are away
    # Layers whose weights are on the GPU at once, beside the ends of the model for good; 0: those that are gathered.
    layers_here: int = 0
    pinned_bytes: float = 0.0  # of buffers in host memory, per GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class FarMemory:
    """Memory of the host behind a link of its own (CXL cards), which has a part of its data."""

    optimizer: float  # share of the states and gradients of an optimizer on the host
    activations: float  # share of the activations on the host
    bytes_per_s: float  # per GPU
    capacity_bytes: float  # per GPU; the rest stays in DRAM

    def adam_s_per_byte(self, dram_bytes_per_s: float) -> float:
        """A byte that Adam moves: CPUs wait for both memories in turn."""
        return (1 - self.optimizer) / dram_bytes_per_s + self.optimizer / self.bytes_per_s

    def copy_s_per_byte(self, pcie_bytes_per_s: float) -> float:
        """A byte of activations on its way to or from the GPU, whose copies the slower of the two links paces."""
        far = 1 / min(pcie_bytes_per_s, self.bytes_per_s)
        return (1 - self.activations) / pcie_bytes_per_s + self.activations * far
