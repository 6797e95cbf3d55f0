"""The part of `plan.json` on the use of the groups of a heterogeneous cluster."""

from __future__ import annotations

from typing import Literal

from .base import DocumentPart

UNEVEN_SHARES = "it gives every replica equally many micro-batches"
Manner = Literal["across", "replicas", "together"]


class IslandUse(DocumentPart):
    """One island and what it does. island: its index in the cluster (`resolved.cluster.islands`), group: of its nodes.

    nodes, stages: [first, last]; layers: of the model, on its stages; replicas: whole ones of a replica's layout on it
    (0: it has stages of them); micro_batches: of a replica, in a step; layer_s: forward, backward and recomputation of
    a mean layer and micro-batch; busy_s: of a micro-batch on its slowest stage.
    """

    island: int
    group: int
    name: str
    gpu: str
    num_gpus: int
    nodes: tuple[int, int]
    stages: tuple[int, int]
    layers: int
    replicas: int
    micro_batches: int
    layer_s: float
    busy_s: float
    device_bytes: float
    memory_bytes: float


class Crossing(DocumentPart):
    """Traffic between two islands (indices into `islands`) in a step, one way, and the seconds of one message or of
    the sum of gradients, of which a GPU finds bw_bytes_per_s."""

    ends: tuple[int, int]
    what: Literal["messages", "gradients"]
    step_bytes: float
    seconds: float
    bw_bytes_per_s: float


class IslandAssignment(DocumentPart):
    """manner: `across`, one pipeline over all islands, in their order here; `replicas`, whole replicas on each;
    `together`, all of it on one. unused: islands that the plan leaves out, and why.

    even_*: the same layout with layers and micro-batches in equal parts, on the same islands.
    """

    manner: Manner
    islands: tuple[IslandUse, ...]
    crossings: tuple[Crossing, ...] = ()
    unused: tuple[str, ...] = ()
    even_step_s: float | None = None
    even_fits: bool = True

    @property
    def num_gpus(self) -> int:
        return sum(use.num_gpus for use in self.islands)

    @property
    def shares(self) -> tuple[int, ...] | None:
        """Micro-batches of a replica of each island, where they differ."""
        shares = tuple(use.micro_batches for use in self.islands)
        return shares if self.manner == "replicas" and len(set(shares)) > 1 else None


class Strategy(DocumentPart):
    """The best of one way to use the islands. manner `even`: all GPUs alike, layers and micro-batches equal."""

    manner: Literal["across", "replicas", "together", "even"]
    islands: tuple[str, ...]
    layout_id: str
    step_s: float
    note: str = ""
