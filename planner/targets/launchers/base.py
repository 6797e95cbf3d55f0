"""Jobs, launchers, and the script that starts one node of a job.

Every trainer has a `launch.sh` that starts the ranks of one node. NODE_RANK, MASTER_ADDR and MASTER_PORT hold the
number of the node and the rendezvous address. A launcher runs that script once on every node with these three set.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PORT = 29500


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a trainer."""

    # For schedulers: `llama-3.1-8b-megatron`.
    name: str
    # The layout id.
    title: str
    # The first lines of every file, without comment marks.
    header: tuple[str, ...]
    num_nodes: int
    gpus_per_node: int
    # Shell words that start the ranks of this node. They end before the user's own arguments.
    command: str
    # Name -> text of the files that the command reads, in addition to launch.sh.
    files: Mapping[str, str]
    # Variables that are set for the command. None: the variable must not be set.
    environment: Mapping[str, str | None] = field(default_factory=dict)
    # Variables that only the user knows -> their meaning.
    needs: Mapping[str, str] = field(default_factory=dict)
    # Variables that a user may set -> their default, as shell text inside double quotes.
    defaults: Mapping[str, str] = field(default_factory=dict)
    # Whether Python must find the files as modules.
    python_path: bool = False
    # Steps that the files leave to the user.
    notes: tuple[str, ...] = ()
    # The nodes in the order of the framework, () for any order.
    hosts: tuple[str, ...] = ()
    # Number of consecutive nodes that must share a rack; 1 for no constraint.
    nodes_per_rack: int = 1
    # The catalogue name of the GPU; "" for several kinds.
    gpu: str = ""
    # The GPU order of each node; None for the usual order.
    devices: tuple[tuple[int, ...], ...] | None = None
    # Example of arguments that a user may add.
    example: str = ""


@dataclass(frozen=True)
class Launcher:
    """A way to start launch.sh on every node."""

    name: str
    # One line for screens.
    summary: str
    # Name -> text of the files that run launch.sh on every node.
    files: Callable[[Job], dict[str, str]]
    # The command that starts the job.
    next_step: Callable[[Job], str]
    # File -> regular expressions of lines with nodes, tasks or GPUs; the group is the number.
    stated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def comment(lines: tuple[str, ...], mark: str = "#") -> str:
    return "".join(f"{mark} {line}".rstrip() + "\n" for line in lines)


def torchrun(job_nodes: int, gpus_per_node: int) -> str:
    """The torchrun command that starts the ranks of this node.

    Node ranks are fixed, because a c10d rendezvous would number the nodes in the order of arrival.
    """
    return (
        f"torchrun --nnodes {job_nodes} --nproc-per-node {gpus_per_node} \\\n"
        '  --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\\n'
    )


# docs.nvidia.com/deeplearning/nccl, environment variables.
_FABRIC = """\
# NCCL chooses network interfaces and RDMA adapters itself. If a node has others too (storage, management), set the
# interface for the rendezvous of the ranks and the prefix of the RDMA adapters of the fabric.
# export NCCL_SOCKET_IFNAME=eth0  # edit
# export NCCL_IB_HCA=mlx5  # edit
"""


def node_script(job: Job) -> str:
    """The text of launch.sh, which starts all ranks of one node."""
    example = f" {job.example}" if job.example else ""
    needs = "".join(f"{name}=... " for name in job.needs)
    if job.num_nodes > 1:
        where = f"MASTER_ADDR=<host of node 0> NODE_RANK=<0..{job.num_nodes - 1}>"
        usage = ("Starts the ranks of one node. On every node:", f"  {needs}{where} sh launch.sh{example}")
    else:
        usage = ("Starts all ranks:", f"  {needs}sh launch.sh{example}")
    parts = [
        "#!/bin/sh\n", comment((*job.header, *usage)), "set -euf\n",
        'here=$(cd "$(dirname "$0")" && pwd)\n',
        *(f': "${{{name}:?must be {what}}}"\n' for name, what in job.needs.items()),
        *(f': "${{{name}:={value}}}"\n' for name, value in job.defaults.items()),
        f'NODE_RANK=${{NODE_RANK:-0}} MASTER_ADDR=${{MASTER_ADDR:-127.0.0.1}} MASTER_PORT=${{MASTER_PORT:-{PORT}}}\n',
        *_environment(job), _FABRIC if job.num_nodes > 1 else "",
        'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"\n' if job.python_path else "",
        _devices(job), f'exec {job.command} "$@"\n',
    ]  # fmt: skip
    return "".join(parts)


def _environment(job: Job) -> list[str]:
    return [
        f"unset {name}\n" if value is None else f"export {name}={shlex.quote(value)}\n"
        for name, value in job.environment.items()
    ]


def _devices(job: Job) -> str:
    """Shell lines that set the order of the GPUs; empty for the usual order."""
    if job.devices is None:
        return ""
    orders = [",".join(map(str, order)) for order in job.devices]
    if len(set(orders)) == 1:
        return f"export CUDA_VISIBLE_DEVICES={orders[0]}\n"
    cases = "".join(f"  {node}) export CUDA_VISIBLE_DEVICES={order} ;;\n" for node, order in enumerate(orders))
    return f'case "$NODE_RANK" in\n{cases}esac\n'
