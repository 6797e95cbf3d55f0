"""By hand, or by whatever already runs commands on your nodes: launch.sh on each."""

from __future__ import annotations

from .base import Job, Launcher


def next_step(job: Job) -> str:
    needs = "".join(f"{name}=... " for name in job.needs)
    example = f" {job.example}" if job.example else ""
    if job.num_nodes == 1:
        return f"{needs}sh launch.sh{example}"
    first = job.hosts[0] if job.hosts else "<host of node 0>"
    return f"on every node: {needs}MASTER_ADDR={first} NODE_RANK=<0..{job.num_nodes - 1}> sh launch.sh{example}"


LAUNCHER = Launcher("torchrun", "launch.sh, to be run on every node", lambda job: {}, next_step)
