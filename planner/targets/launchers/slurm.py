"""Slurm: one task per node, in the order of the plan's hosts where it has one.

sbatch and srun: slurm.schedmd.com/sbatch.html and srun.html (--distribution=arbitrary reads SLURM_HOSTFILE; --segment
is for block topologies, as Megatron-Bridge has it for racks: scripts/performance/utils/executors.py). NVIDIA/pyxis
046f4149, README: --container-image, --container-mounts, --container-workdir of srun.
"""

from __future__ import annotations

import shlex

from .base import Job, Launcher, comment
from .pods import IMAGE

_SCRIPT = """\
#!/bin/sh
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={gpus}
#SBATCH --exclusive
{directives}{header}set -euf
cd "${{SLURM_SUBMIT_DIR:-.}}"
{needs}{meet}
# edit: ranks in a container (pyxis), with the image and the folders that it sees, data and checkpoints among them.
container=""
# container="--container-image={image} --container-mounts=$PWD:$PWD,/data:/data --container-workdir=$PWD"
export MASTER_ADDR MASTER_PORT="${{MASTER_PORT:-29500}}"
# The number of a node is known only on the node itself: the inner shell expands it.
node='export NODE_RANK="$SLURM_PROCID"; exec sh launch.sh "$@"'
exec srun --kill-on-bad-exit=1{arbitrary} $container sh -c "$node" sh "$@"
"""


def files(job: Job) -> dict[str, str]:
    example = f" {job.example}" if job.example else ""
    usage = (f"In this folder: sbatch launch.sbatch{example}",)
    meet = 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    out = {}
    if job.hosts:
        out["hosts"] = "".join(f"{host}\n" for host in job.hosts)
        meet = f'export SLURM_HOSTFILE="$PWD/hosts"\nMASTER_ADDR={shlex.quote(job.hosts[0])}'
    out["launch.sbatch"] = _SCRIPT.format(
        name=shlex.quote(job.name), nodes=job.num_nodes, gpus=job.gpus_per_node, header=comment((*job.header, *usage)),
        directives=_where(job),
        needs="".join(f': "${{{name}:?must be {what}}}"\n' for name, what in job.needs.items()), meet=meet,
        image=IMAGE, arbitrary=" --distribution=arbitrary" if job.hosts else "",
    )  # fmt: skip
    return out


def _where(job: Job) -> str:
    """Directives for the hosts by name, or else for segments of nodes in one rack, whose link a plan relies on."""
    if job.hosts:
        return f"#SBATCH --nodelist={','.join(job.hosts)}\n"
    racks = job.nodes_per_rack > 1 and job.num_nodes % job.nodes_per_rack == 0
    return f"#SBATCH --segment={job.nodes_per_rack}\n" if racks else ""


def next_step(job: Job) -> str:
    needs = "".join(f"{name}=... " for name in job.needs)
    return f"{needs}sbatch launch.sbatch" + (f" {job.example}" if job.example else "")


LAUNCHER = Launcher("slurm", "launch.sbatch: srun, one task per node", files, next_step, {"launch.sbatch": (
    r"^#SBATCH --nodes=(\S+)", r"^#SBATCH --ntasks-per-node=(\S+)", r"^#SBATCH --gpus-per-node=(\S+)")})  # fmt: skip
