"""The price of nodes that have none: what rented nodes with the same GPU cost."""

from __future__ import annotations

from statistics import median

import pytest
from meshwright.profiles.cluster.document import cluster_to_dict
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.io import registry


def rent(cluster: str) -> dict[str, object] | None:
    found: dict[str, object] | None = cluster_to_dict(load_cluster(cluster))["groups"][0].get("rent")
    return found


def test_it_is_the_median_per_gpu_of_the_catalogue() -> None:
    nodes = [registry.load_node(name) for name in registry.node_names()]
    prices = [node.price_usd_per_node_hour / node.gpus_per_node for node in nodes
              if node.price_usd_per_node_hour is not None and node.gpu == "h100-sxm-80gb"]  # fmt: skip
    assert len(prices) > 1
    assert rent("dgx-h100:2") == rent("8xh100-sxm-80gb") == {
        "usd_per_gpu_hour": pytest.approx(median(prices)),
        "source": f"assumed: the median of {len(prices)} nodes of the catalogue with h100-sxm-80gb",
    }


@pytest.mark.parametrize("cluster", ["aws-p5.48xlarge:2", "8xrtx-4090"])
def test_none_where_there_is_a_price_or_no_rented_node(cluster: str) -> None:
    assert rent(cluster) is None
