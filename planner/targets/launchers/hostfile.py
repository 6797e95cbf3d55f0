"""A hostfile in the form that Open MPI and DeepSpeed share, and mpirun with one process per node.

docs.open-mpi.org (mpirun, --map-by ppr); deepspeed/launcher/runner.py (`host slots=8`).
"""

from __future__ import annotations

from .base import Job, Launcher, comment

_SCRIPT = """\
#!/bin/sh
{header}set -eu
cd "$(dirname "$0")"
{needs}MASTER_ADDR=$(sed '/^#/d' hostfile | head -n 1 | cut -d ' ' -f 1)
export MASTER_ADDR MASTER_PORT="${{MASTER_PORT:-29500}}"
exec mpirun --hostfile hostfile --map-by ppr:1:node --bind-to none -np {nodes} \\
  -x MASTER_ADDR -x MASTER_PORT -x PATH{exported} \\
  sh -c 'export NODE_RANK="$OMPI_COMM_WORLD_RANK"; exec sh launch.sh "$@"' sh "$@"
"""


def files(job: Job) -> dict[str, str]:
    example = f" {job.example}" if job.example else ""
    usage = (f"In this folder, which every node sees: sh launch-mpi.sh{example}",)
    hosts = job.hosts or tuple(f"node-{index}" for index in range(job.num_nodes))
    known = () if job.hosts else ("Write your own hosts here, nodes of the network next to one another.",)
    listed = "".join(f"{host} slots={job.gpus_per_node}\n" for host in hosts)
    script = _SCRIPT.format(
        header=comment((*job.header, *usage)), nodes=job.num_nodes,
        needs="".join(f': "${{{name}:?must be {what}}}"\n' for name, what in job.needs.items()),
        exported="".join((*(f" -x {name}" for name in job.needs),
                          *(f" ${{{name}:+-x {name}}}" for name in job.defaults))),
    )  # fmt: skip
    return {"hostfile": comment(known) + listed, "launch-mpi.sh": script}


def next_step(job: Job) -> str:
    needs = "".join(f"{name}=... " for name in job.needs)
    edit = "" if job.hosts else "edit hostfile, then "
    return f"{edit}{needs}sh launch-mpi.sh" + (f" {job.example}" if job.example else "")


LAUNCHER = Launcher("hostfile", "hostfile and launch-mpi.sh: mpirun, one process per node", files, next_step, {
    "hostfile": (r"^[^#\n]*slots=(\d+)",), "launch-mpi.sh": (r"ppr:(\d+):node", r"-np (\d+)")})  # fmt: skip
