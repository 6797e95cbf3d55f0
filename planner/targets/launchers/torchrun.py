"""launch.sh on each node, started by hand or by an existing tool that runs commands on nodes."""

from __future__ import annotations

from .base import Job, Launcher


def files(job: Job) -> dict[str, str]:
    """Lists the hosts in the order of NODE_RANK, if the plan has an order."""
    return {"hosts": "".join(f"{host}\n" for host in job.hosts)} if job.hosts and job.num_nodes > 1 else {}


def next_step(job: Job) -> str:
    needs = "".join(f"{name}=... " for name in job.needs)
    example = f" {job.example}" if job.example else ""
    if job.num_nodes == 1:
        return f"{needs}sh launch.sh{example}"
    first = job.hosts[0] if job.hosts else "<host of node 0>"
    which = "its line in hosts, from 0" if job.hosts else f"0..{job.num_nodes - 1}"
    return f"on every node: {needs}MASTER_ADDR={first} NODE_RANK=<{which}> sh launch.sh{example}"


LAUNCHER = Launcher("torchrun", "launch.sh, to be run on every node", files, next_step)
