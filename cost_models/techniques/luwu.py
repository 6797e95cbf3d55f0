"""LuWu: a node in the network keeps and updates all states; switches multicast weights and sum gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..quantities.exchanges import Exchanges, Hop
from ..quantities.stores import Store
from .base import EXCHANGE, PLACE, SHARERS, Columns, Knob, Knobs, Need, Technique
from .zero_infinity import GB, STATES_FREE
from .zero_plus_plus import SHARDED_WEIGHTS

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger


def _one_copy(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["zero"] == 0) | (x["shard"] == x["dp"]))


def _ports(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    knobs = dict(dict(problem.workload.techniques)["luwu"])
    return np.full(len(x["dp"]), problem.num_gpus / problem.gpus_per_node < knobs["ports"])


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    if knobs["on"] == 0:
        return ledger
    states, gpus = ledger.problem.state_bytes, ledger.problem.num_gpus
    # Every worker pulls all weights that it computes with for each pass, and pushes all gradients; the node sends and
    # receives each byte once, however many workers there are, since the switch copies and sums.
    pull, push = Hop("p2p", "store"), Hop("p2p", "store")
    drives = knobs["drives_gb_per_s"]
    store = Store(
        weights=True, optimizer=True, returned=states.gradient, duplex=True,
        link_bytes_per_s=knobs["network_gb_per_s"] * GB / gpus,
        updated=2 * states.optimizer if drives else 0.0, update_bytes_per_s=(drives or 1.0) * GB / gpus,
        adam_bytes_per_s=knobs["memory_gb_per_s"] * GB / gpus, during_backward=True,
    )  # fmt: skip
    plan = Exchanges(forward=(pull,), backward=(pull,), gradients=(push,), by_nic=True)
    alone = tuple(replace(traffic, replicated=0.0) for traffic in ledger.traffic)
    return replace(ledger, exchanges=plan, store=store, traffic=alone)


TECHNIQUE = Technique(
    name="luwu",
    group="memory",
    title="LuWu: a node in the network keeps and updates all states, switches multicast and sum",
    paper="Sun et al. 2024, LuWu: An End-to-End In-Network Out-of-Core Optimizer, arXiv 2409.00918",
    bibtex="""@article{luwu2024,
  title = {{LuWu}: An End-to-End In-Network Out-of-Core Optimizer for 100B-Scale Model-in-Network Data-Parallel Training
    on Distributed GPUs},
  journal = {arXiv preprint arXiv:2409.00918},
  year = {2024}
}""",
    knobs=(
        Knob("on", 1, 0, 1, "0: states stay on the GPUs"),
        Knob("network_gb_per_s", 12.5, 1e-3, 1e6, "GB/s of the node's links, each way (100 Gb/s)", whole=False),
        Knob("memory_gb_per_s", 400, 1e-3, 1e6, "GB/s of the node's memory, in which Adam works (assumed: two sockets)",
             whole=False),
        # The least is that of the links and the memory: near 0 no number holds the seconds.
        Knob("drives_gb_per_s", 0, 0, 1e6, "GB/s of drives that hold the optimizer's states; 0: memory holds them",
             whole=False, least_above_0=1e-3),
        Knob("ports", 64, 1, 4096, "of the switch, one of them for the node", whole=True),
    ),
    neutral={"on": 0},
    needs=(*SHARDED_WEIGHTS, Need(("zero", "dp", "shard"), _one_copy, "one copy of all states: shard groups of all dp"),
           Need(("dp",), _ports, "a port of the switch for every worker, and one for the node"), STATES_FREE),
    rewrite=_rewrite,
    caveat="it needs switches and network cards that run its programs; nobody sells them",
    chooses=(EXCHANGE, SHARERS, PLACE), zero=3, order=3, keeps_weights=False,
)  # fmt: skip
