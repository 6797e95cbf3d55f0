"""SkyPilot: a task that rents the nodes and runs launch.sh on each.

docs.skypilot.co: YAML specification, distributed jobs. SkyPilot 0.14, skylet/constants.py: SKYPILOT_NODE_RANK and
SKYPILOT_NODE_IPS (one address a line, the head first) are set in `run` on every node.
"""

from __future__ import annotations

import json
import re

from ....errors import UnsupportedError
from .base import Job, Launcher, comment

_TASK = """\
{header}name: {name}
num_nodes: {nodes}
workdir: .
resources:
  accelerators: {accelerators}  # edit: `sky show-gpus` lists how your clouds name it
  # infra: kubernetes
  # edit: the fastest network that the cloud has; NCCL uses TCP between nodes without it
  # network_tier: best
# file_mounts:  # edit: data and checkpoints
#   /data: s3://your-bucket/data
{environment}setup: |
  # edit: what your image lacks of the framework
run: |
  export NODE_RANK="$SKYPILOT_NODE_RANK" MASTER_ADDR="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"
  sh launch.sh{example}
"""
# A100s of 40 and 80 GB have two names (catalogs of clouds).
_NAMES = {"a100-sxm-80gb": "A100-80GB", "a100-pcie-80gb": "A100-80GB"}


def _accelerators(job: Job) -> str:
    name = _NAMES.get(job.gpu, job.gpu.partition("-")[0].upper())
    return f"{name or 'GPU'}:{job.gpus_per_node}"


def files(job: Job) -> dict[str, str]:
    if job.hosts:
        raise UnsupportedError(
            "placement.hosts: SkyPilot rents nodes itself", hint="`--launcher slurm` and `hostfile` keep their order"
        )
    needed = "".join(f"  {name}: \"\"  # edit: {what}\n" for name, what in job.needs.items())
    usage = ("Edit what is marked, then in this folder: sky launch sky.yaml",)
    # Words between < and > are places for the user, not redirections.
    example = re.sub(r"<[^>]*>", lambda place: json.dumps(place[0]), job.example)
    task = _TASK.format(
        header=comment((*job.header, *usage)), name=json.dumps(re.sub(r"[^a-z0-9-]+", "-", job.name.lower())),
        nodes=job.num_nodes, accelerators=_accelerators(job), environment=f"envs:\n{needed}" if needed else "",
        example=f" {example}  # edit" if example else "",
    )  # fmt: skip
    return {"sky.yaml": task}


def next_step(job: Job) -> str:
    return "edit sky.yaml, then sky launch sky.yaml"


LAUNCHER = Launcher("skypilot", "sky.yaml: SkyPilot rents the nodes and runs launch.sh on each", files, next_step, {
    "sky.yaml": (r"^num_nodes: (\S+)", r"^ *accelerators: [^\s:]+:(\S+)")})  # fmt: skip
