"""Connections over a wide-area network: sites joined by many flows (PCCL, arXiv 2505.14065)."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner.studies.systems.base import priced, shown_s

import meshwright as mw
from meshwright.errors import InputError

SITES = 8


def cluster(**wan: Any) -> dict[str, Any]:
    """Sites of one GPU."""
    group = {"name": "box", "gpu": "h100-sxm-80gb", "gpus_per_node": 1, "count": SITES, "nics": 1,
             "nic_bandwidth": "400 Gb/s", "network": "ethernet"}  # fmt: skip
    sites = [{"name": f"site-{k}", "nodes": 1} for k in range(SITES)]
    return {"groups": [group], "sites": sites, "wan": {"bandwidth": "100 Gb/s", "latency": "1 us", **wan}}


def outer_step_s(**wan: Any) -> float:
    """Seconds of an exchange of DiLoCo in 8 bits, once in 100 steps and in one piece, which a step waits for."""
    knobs = {"period": 100.0, "bits": 8.0, "fragments": 1.0, "delay": 0.0}
    found = priced(f"dp{SITES}-mbs1-z0-rnone", {"diloco": knobs}, model="llama-3.2-1b", cluster=cluster(**wan),
                   seq_len=1024, global_batch=SITES, stack="deepspeed", stages="even")  # fmt: skip
    return 100 * shown_s(found, "dp comm, exposed")


def test_sixteen_connections_of_a_billion_parameters() -> None:
    """2 x 1 GB over 5.6 GB/s are 0.36 s in the limit of many ranks: 45 Gb/s in Europe, as its collectives reach. By our
    constants those over Ethernet reach 76 % of a line, beside 0.1 s in 100 steps whatever its rate."""
    parameters, rate = 1.2358e9, 16 * 2.8e9 / 8
    expected_s = 2 * (SITES - 1) / SITES * parameters / rate
    sixteen, one = (outer_step_s(flows=flows, flow_bandwidth="2.8 Gb/s") for flows in (16, 1))

    assert 2 * 1e9 / rate == pytest.approx(0.36, abs=0.005)
    assert (one - sixteen) / 15 / expected_s == pytest.approx(1 / 0.76, rel=0.02)
    assert 1 < sixteen / expected_s < 1.6


def test_flows_end_at_the_link() -> None:
    assert outer_step_s(flows=1000, flow_bandwidth="2.8 Gb/s") == outer_step_s()


@pytest.mark.parametrize(
    ("wan", "message"),
    [({"flows": 16}, "flow_bandwidth"), ({"flow_bandwidth": "2.8 Gb/s"}, "flows"),
     ({"flows": 0, "flow_bandwidth": "2.8 Gb/s"}, "at least 1"), ({"flows": 2, "flow_bandwidth": "0 Gb/s"}, "flow"),
     ({"flow": 16}, "unknown key")],
)  # fmt: skip
def test_bad_flows(wan: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mw.plan(None, model="llama-3.2-1b", cluster=cluster(**wan), global_batch=8)
