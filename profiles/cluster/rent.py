"""The rent of a GPU in clouds: the assumed price of nodes that have none of their own, such as bought ones."""

from __future__ import annotations

from functools import cache
from statistics import median

from ...cost_models.specs.cluster import NodeGroup, Rent
from ...errors import InputError
from ..io import registry


def rent_of(group: NodeGroup) -> Rent | None:
    """The rent of a group's GPUs. None where the node has a price, or the catalogue has no rented node with its GPU."""
    if group.price_usd_per_node_hour is not None or group.gpu.measured:
        return None
    prices = _prices(registry.search_path()).get(group.gpu.name, [])
    if not prices:
        return None
    nodes = "1 node" if len(prices) == 1 else f"the median of {len(prices)} nodes"
    source = f"assumed: {nodes} of the catalogue with {group.gpu.name}"
    return Rent(usd_per_gpu_hour=float(f"{median(prices):.9g}"), source=source)


@cache
def _prices(search_path: object) -> dict[str, list[float]]:
    """GPU -> dollars per hour of one, of every node with a price. search_path: of the catalogues."""
    prices: dict[str, list[float]] = {}
    for name in registry.node_names():
        try:
            node = registry.load_node(name)
        except InputError:  # a user's own entry, which this plan does not name
            continue
        if node.price_usd_per_node_hour is not None:
            of_gpu = prices.setdefault(registry.gpu_name(node.gpu), [])
            of_gpu.append(node.price_usd_per_node_hour / node.gpus_per_node)
    return prices
