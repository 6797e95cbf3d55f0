"""The parts of a network with and without a spine: the published savings, at any prices."""

from __future__ import annotations

import pytest
from meshwright.planner.studies.network_cost import NetworkCost, fat_tree, rail_only

import meshwright as mw
from meshwright.errors import InputError

GPUS = 32_768


def test_trees_by_hand() -> None:
    assert (fat_tree(64, 64).tiers, fat_tree(64, 64).switches) == (1, 1)
    assert (fat_tree(2048, 64).tiers, fat_tree(2048, 64).switches) == (2, 96)
    assert (fat_tree(65_536, 64).tiers, fat_tree(65_536, 64).switches) == (3, 5120)
    assert rail_only(128, 64, 8).switches == 2  # rails of 16 ports, four of which share a switch


@pytest.mark.parametrize(("radix", "cost", "power"), [(64, 0.38, 0.37), (128, 0.77, 0.75)])
def test_the_published_savings(radix: int, cost: float, power: float) -> None:
    """Cost falls by 38 to 77 %, power by 37 to 75 % (arXiv 2307.12169, abstract): 32,768 GPUs in domains of 256. Of
    whatever prices, both are between the shares of switches and of transceivers that are saved."""
    tree, rails = fat_tree(GPUS, radix), rail_only(GPUS, radix, 256)
    saved = sorted((1 - rails.switches / tree.switches, 1 - rails.transceivers / tree.transceivers))

    assert saved[0] < power < cost < saved[1]
    assert saved[1] - saved[0] < 0.14
    assert fat_tree(GPUS, radix) == rail_only(GPUS, radix, 1)  # one rail is the tree itself


def test_of_a_plan() -> None:
    plan = mw.evaluate(None, "tp8-dp32-mbs1-z1-rfull", model="llama-3.1-70b", cluster="dgx-h100:32", global_batch=64)
    prices = {"switch_price": "20000", "transceiver_price": "1000", "switch_power": "1 kW", "transceiver_power": "15 W"}
    result = mw.what_if(plan, study="network-cost", assume=prices)
    assert isinstance(result, NetworkCost)
    tree, rails = result.networks

    assert (result.ports, result.domain) == (256, 8)
    assert (tree.tiers, rails.tiers) == (2, 1)
    assert (tree.switches, tree.transceivers) == (12, 1024)
    assert (rails.switches, rails.transceivers) == (4, 512)
    assert tree.usd == 12 * 20_000 + 1024 * 1000
    assert rails.watts == 4 * 1000 + 512 * 15
    for assume, message in (
        ({"switch_price": "20000"}, "transceiver_price is not given"),
        ({"transceiver_power": "15 W"}, "switch_power is not given"),
        ({"switch_ports": "3"}, "a whole number of 4 or more"),
        ({"switch_ports": "4.5"}, "a whole number"),
        ({"switch_power": "15", "transceiver_power": "15 W"}, "has no unit"),
        ({"switch_price": "-1", "transceiver_price": "1"}, "is negative"),
    ):
        with pytest.raises(InputError, match=message):
            mw.what_if(plan, study="network-cost", assume=assume)


def test_one_domain_has_no_network() -> None:
    plan = mw.evaluate(None, "tp8-dp1-mbs1-z1-rfull", model="llama-3.1-8b", cluster="dgx-h100:1", global_batch=8)
    with pytest.raises(InputError, match="no network between nodes"):
        mw.what_if(plan, study="network-cost")
