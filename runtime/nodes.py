"""The nodes and ranks of a run, and the torchrun command of a node. No torch here."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ..errors import InputError
from ..planner.document.lengths_plan import LengthsPlan
from ..planner.document.plan import Plan
from ..planner.document.rl_plan import RlPlan
from .job import Job
from .settings import Settings

LAST_PORT = 65535  # 16 bits in TCP


@dataclass(frozen=True)
class Nodes:
    """The distribution of ranks. torchrun runs once per node."""

    nnodes: int = 1  # nodes
    nproc_per_node: int = 1  # ranks of a node
    node_rank: int = 0  # this node, from 0
    master_addr: str = "127.0.0.1"  # host of node 0
    master_port: int | None = None  # on node 0; None: any free one, on one node
    max_restarts: int = 0  # restarts of all ranks after a failure: by torchrun on one node, else by the launchers


def nodes_for(
    plan: Plan | LengthsPlan | RlPlan, job: Job, *, scaled: bool, nnodes: int | None, nproc_per_node: int | None,
    node_rank: int, master_addr: str | None, master_port: int | None, max_restarts: int = 0, dry: bool = False,
) -> Nodes:  # fmt: skip
    """Nodes and ranks per node, by default those of the plan's cluster. Raises InputError if they do not fit."""
    _check_counts(nnodes, nproc_per_node, master_port)
    groups = plan.resolved.get("cluster", {}).get("groups", [])
    planned = 1 if scaled else sum(int(group["num_nodes"]) for group in groups) or 1
    if nnodes is None:
        nnodes = planned if nproc_per_node is None else max(job.world_size // nproc_per_node, 1)
    if nproc_per_node is None:
        nproc_per_node = max(job.world_size // nnodes, 1)
    if nnodes * nproc_per_node != job.world_size:
        raise InputError(
            f"{nnodes} x {nproc_per_node} ranks, but layout {job.layout} runs on {job.world_size}",
            hint=f"`--nnodes {planned} --nproc-per-node {job.world_size // planned}`"
                 + ("" if scaled else ", or rehearse it here with `--scale-down`"),
        )  # fmt: skip
    if not 0 <= node_rank < nnodes:
        raise InputError(f"--node-rank {node_rank} is not one of {nnodes} nodes", hint="nodes are numbered from 0")
    if nnodes > 1 and master_addr is None and dry:
        master_addr = "HOST"
    if nnodes > 1 and master_addr is None:
        raise InputError(
            f"this layout runs on {nnodes} nodes: the address of node 0 is missing",
            hint="`--master-addr HOST --node-rank R` on every node, or rehearse it here with `--scale-down`",
        )
    return Nodes(nnodes, nproc_per_node, node_rank, master_addr or "127.0.0.1",
                 master_port or (29500 if nnodes > 1 else None), max_restarts)  # fmt: skip


def command(settings: Settings, nodes: Nodes) -> list[str]:
    """The torchrun command of this node."""
    words = ["torchrun", "--nnodes", str(nodes.nnodes), "--nproc-per-node", str(nodes.nproc_per_node)]
    if nodes.nnodes > 1:
        words += ["--node-rank", str(nodes.node_rank)]
    words += ["--master-addr", nodes.master_addr]
    if nodes.master_port is not None:
        words += ["--master-port", str(nodes.master_port)]
    if nodes.max_restarts and nodes.nnodes == 1:
        words += ["--max-restarts", str(nodes.max_restarts)]
    return [*words, "-m", "meshwright.runtime.worker", *settings.words()]


def shell_line(settings: Settings, nodes: Nodes) -> str:
    """The command as shell text."""
    return shlex.join(command(settings, nodes))


def _check_counts(nnodes: int | None, nproc_per_node: int | None, master_port: int | None) -> None:
    """Raises InputError for impossible numbers of nodes, ranks and ports."""
    for name, value, hint in (("--nnodes", nnodes, "leave it out for the nodes of the plan"),
                              ("--nproc-per-node", nproc_per_node, "leave it out for the GPUs of the plan's nodes")):
        if value is not None and value < 1:
            raise InputError(f"{name} {value}: must be 1 or more", hint=hint)
    if master_port is not None and not 1 <= master_port <= LAST_PORT:
        raise InputError(f"--master-port {master_port}: ports are numbered from 1 to {LAST_PORT}",
                         hint="`--master-port 29500`")  # fmt: skip
