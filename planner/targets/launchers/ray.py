"""Ray Train: one worker per node, which starts the ranks of its node.

Source: docs.ray.io, TorchTrainer, ScalingConfig (placement_strategy), TorchConfig. The workers form a gloo group, which
gives each of them the address of the first. ray-project/kuberay 08792cae, ray-operator/config/samples/
ray-cluster.complete.yaml: workerGroupSpecs, template.
"""

from __future__ import annotations

import json

from ....errors import UnsupportedError
from .base import PORT, Job, Launcher, comment, node_script
from .pods import GPUS_OF_POD, IMAGE, adapters, locked_memory

_DRIVER = '''\
{header}
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ray import train
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

NUM_NODES = {nodes}
GPUS_PER_NODE = {gpus}
NEEDS = {needs}
MAY_HAVE = {may_have}
FILES = {files}


def node(config):
    """Starts the ranks of one node: launch.sh with its files and variables."""
    folder = Path(tempfile.mkdtemp())
    for name, text in config["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = dict(os.environ, **config["given"])
    environment["NODE_RANK"] = str(train.get_context().get_world_rank())
    environment["MASTER_PORT"] = "{port}"  # MASTER_ADDR is set by Ray, whose own port is in use
    subprocess.run(["sh", str(folder / "launch.sh"), *config["arguments"]], env=environment, check=True)


if __name__ == "__main__":
    missing = [name for name in NEEDS if name not in os.environ]
    if missing:
        sys.exit("\\n".join(f"{{name}} must be {{NEEDS[name]}}" for name in missing))
    here = Path(__file__).resolve().parent
    config = {{
        "files": {{name: (here / name).read_text(encoding="utf-8") for name in FILES}},
        "given": {{name: os.environ[name] for name in [*NEEDS, *MAY_HAVE] if name in os.environ}},
        "arguments": sys.argv[1:],
    }}
    TorchTrainer(
        node,
        train_loop_config=config,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=NUM_NODES,
            resources_per_worker={{"GPU": GPUS_PER_NODE}},
            use_gpu=True,
            placement_strategy="STRICT_SPREAD",
        ),
    ).fit()
'''
_POD = """\
{header}spec:
  containers:
    - name: ray-worker
      image: {image}  # edit
      resources:
        limits:
          nvidia.com/gpu: {gpus}
{adapters}{locked}      volumeMounts:
        - name: shm
          mountPath: /dev/shm
        - name: data
          mountPath: /data
  volumes:
    - name: shm
      emptyDir:
        medium: Memory
    - name: data
      persistentVolumeClaim:
        claimName: training-data  # edit: the claim that holds data and checkpoints
"""


def files(job: Job) -> dict[str, str]:
    if job.hosts:
        raise UnsupportedError(
            "placement.hosts: Ray places its workers itself", hint="`--launcher slurm` and `hostfile` keep their order"
        )
    usage = f"On the head node: python launch_ray.py {job.example}".rstrip()
    names = sorted({*job.files, "launch.sh"})
    driver = _DRIVER.format(
        header=comment((*job.header, usage)), nodes=job.num_nodes, gpus=job.gpus_per_node,
        needs=json.dumps(dict(job.needs)), may_have=json.dumps(list(job.defaults)), files=json.dumps(names), port=PORT,
    )  # fmt: skip
    return {"launch_ray.py": driver, "launch.sh": node_script(job), "ray_worker.yaml": _worker(job)}


def _worker(job: Job) -> str:
    """The pod of a worker, with shared memory, network adapters, data and checkpoints."""
    usage = (f"For Ray on Kubernetes: `template` of a worker group with {job.num_nodes} replicas (RayCluster,",
             "workerGroupSpecs). In Docker the same are --shm-size, --device=/dev/infiniband, --cap-add=IPC_LOCK,",
             "--ulimit=memlock=-1 and --volume.")  # fmt: skip
    return _POD.format(header=comment((*job.header, *usage)), image=IMAGE, gpus=job.gpus_per_node,
                       adapters=adapters(job, 10), locked=locked_memory(job, 6))  # fmt: skip


def next_step(job: Job) -> str:
    needs = "".join(f"{name}=... " for name in job.needs)
    return f"{needs}python launch_ray.py" + (f" {job.example}" if job.example else "")


LAUNCHER = Launcher("ray", "launch_ray.py: Ray Train, one worker per node", files, next_step, {
    "launch_ray.py": (r"^NUM_NODES = (\S+)", r"^GPUS_PER_NODE = (\S+)"),
    "ray_worker.yaml": (GPUS_OF_POD,)})  # fmt: skip
