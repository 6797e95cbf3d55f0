"""A run that goes on after a failure on several nodes. This module does not import torch.

torchrun restarts the ranks of its own node. On several nodes the launchers meet again instead, start torchrun anew, and
the ranks go on from the last checkpoint: node 0 counts the nodes that came back, and the ranks keep the order of the
nodes, which the plan relies on. A rendezvous of torchrun (c10d) orders nodes by host name and cannot change the plan.
On one node torchrun does it, and the launcher where torchrun itself was killed.

Where a node is lost, node 0 may plan for the nodes that remain. It sends the plan to the others, which go on with it.
Node 0 itself cannot be lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import MeshwrightError
from ..planner.document.plan import Plan
from ..planner.document.reading import load_plan, read_plan
from . import launcher, rendezvous
from .checkpoint import restore_copies
from .failures import RanksFailed, RunFailed, TorchrunKilled
from .job import Job
from .nodes import Nodes, nodes_for
from .preparation import prepare
from .settings import Settings

REJOIN_S = 60.0  # wait for nodes after a failure

# Gets the plan in use and the numbers of the nodes that remain, ascending. Returns the plan to go on with and the nodes
# that it runs on, or raises MeshwrightError.
Replan = Callable[[Plan, list[int]], tuple[Plan, tuple[int, ...]]]


@dataclass(frozen=True)
class Recovery:
    """How a run on several nodes goes on."""

    rejoin_s: float = REJOIN_S  # wait for nodes after a failure
    replan: Replan | None = None  # for fewer nodes; None: all nodes have to come back


def run(
    settings: Settings, nodes: Nodes, recovery: Recovery, on_event: launcher.OnEvent, on_line: launcher.OnLine,
    on_wait: launcher.OnLine, on_job: Callable[[Job], None],
) -> None:  # fmt: skip
    """As `launcher.run`, over as many failures as `nodes.max_restarts` and, with `recovery.replan`, lost nodes.

    on_job: gets the job of another plan, before its first event. Returns where this node has no part in that plan.
    """
    with _copying(settings, nodes) as settings:
        _lives(settings, nodes, recovery, on_event, on_line, on_wait, on_job)


@contextmanager
def _copying(settings: Settings, nodes: Nodes) -> Iterator[Settings]:
    """Settings with a folder in memory for the copies of this node, which is removed at the end."""
    if not settings.copy_every or settings.checkpoint is None:
        yield settings
        return
    folder = restore_copies.copies_folder(settings.checkpoint, nodes.node_rank)
    try:
        yield replace(settings, copies=str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lives(
    settings: Settings, nodes: Nodes, recovery: Recovery, on_event: launcher.OnEvent, on_line: launcher.OnLine,
    on_wait: launcher.OnLine, on_job: Callable[[Job], None],
) -> None:  # fmt: skip
    meets = True
    while True:
        try:
            launcher.run(settings, nodes, on_event, on_line, on_wait, meets=meets)
            return
        except RanksFailed as error:
            if nodes.nnodes == 1 and nodes.max_restarts and isinstance(error, TorchrunKilled):
                on_wait(f"{error.message}\nstarting it again")
                settings = replace(settings, restarts=settings.restarts + 1)
                nodes = replace(nodes, max_restarts=nodes.max_restarts - 1)
                continue
            ends = recovery.replan is None and not nodes.max_restarts
            if nodes.nnodes == 1 or (ends and settings.copies is None):
                raise
            on_wait(f"{error.message}\nwaiting for the other nodes, {recovery.rejoin_s:.0f} s at most")
            orders = _orders(settings, nodes, recovery, error, on_wait)
            launcher.follow(orders, settings, nodes, on_wait, error.details)
        meets = False
        settings = replace(settings, restarts=int(orders["restarts"]))
        if "plan" not in orders:
            nodes = replace(nodes, max_restarts=nodes.max_restarts - 1)
            continue
        if nodes.node_rank not in orders["nodes"]:
            on_wait(f"node {nodes.node_rank} has no part in the plan for {len(orders['nodes'])} nodes: it ends")
            return
        settings, nodes, job = _under(orders, settings, nodes)
        if settings.copy_every and nodes.nnodes == 1:
            on_wait("one node remains: no further copies in memory, which would be lost with it")
            settings = replace(settings, copy_every=0)
        on_job(job)


def _orders(
    settings: Settings, nodes: Nodes, recovery: Recovery, error: RanksFailed, on_wait: launcher.OnLine
) -> dict[str, Any]:
    """The orders for the next start of all nodes, as node 0 decides it with the nodes that are there."""
    def decide(held_by: Mapping[int, rendezvous.Held]) -> dict[str, Any]:
        copies = restore_copies.orders(settings.checkpoint, settings.copies, held_by, on_wait)
        try:
            return {**copies, "restarts": settings.restarts + 1, **going_on(list(held_by))}
        except MeshwrightError as problem:  # as orders: the copies are written to disk before the run ends
            return {**copies, "end": [problem.message, problem.hint]}

    def going_on(present: list[int]) -> dict[str, Any]:
        if len(present) == nodes.nnodes:
            if not nodes.max_restarts:
                raise error
            return {}
        if recovery.replan is None:
            lost = ", ".join(str(node) for node in range(nodes.nnodes) if node not in present)
            raise RunFailed(f"{error.message}\nlost: node {lost} of {nodes.nnodes}, for {recovery.rejoin_s:.0f} s",
                            hint="`--elastic` goes on without it; `--rejoin-timeout` waits longer")  # fmt: skip
        plan, used = recovery.replan(load_plan(settings.plan), present)
        return {"plan": plan.to_json(), "nodes": list(used)}

    address = nodes.master_addr, nodes.master_port or 0
    return rendezvous.meet(nodes.node_rank, nodes.nnodes, address, settings.must_be_equal(), recovery.rejoin_s,
                           on_wait, decide, restore_copies.held(settings.copies))  # fmt: skip


def _under(orders: Mapping[str, Any], settings: Settings, nodes: Nodes) -> tuple[Settings, Nodes, Job]:
    """The run of this node under the plan of `orders`, which is kept beside the checkpoints."""
    used: list[int] = orders["nodes"]
    plan, file = read_plan(orders["plan"], "the plan of node 0"), plan_file(settings, len(used))
    partial = file.with_name(f".{file.name}-{nodes.node_rank}")  # nodes may share the folder
    partial.write_text(orders["plan"], encoding="utf-8")
    os.replace(partial, file)
    settings = replace(settings, plan=str(file), choice=1)
    job, _ = prepare(settings)
    alone = len(used) == 1
    return settings, nodes_for(
        plan, job, scaled=False, nnodes=len(used), nproc_per_node=None, node_rank=used.index(nodes.node_rank),
        master_addr=nodes.master_addr, master_port=None if alone else nodes.master_port,
        max_restarts=nodes.max_restarts,
    ), job  # fmt: skip


def plan_file(settings: Settings, num_nodes: int) -> Path:
    """The file of the plan for that many nodes."""
    return Path(settings.checkpoint or ".") / f"plan-{num_nodes}-node{'s' * (num_nodes > 1)}.json"
