"""Kubernetes: a Kubeflow TrainJob, or a JobSet where Kubeflow is not installed; launch.sh comes in a ConfigMap.

kubeflow/trainer 8c0f5059, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml and pkg/constants/constants.go (the
runtime `torch-distributed` sets PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT); jobset.x-k8s.io v1alpha2.
pkg/apis/trainer/v1alpha1/trainjob_types.go: ContainerPatch has volumeMounts and securityContext.
"""

from __future__ import annotations

import re
from textwrap import indent

from ....errors import UnsupportedError
from .base import Job, Launcher, comment, node_script
from .pods import GPUS_OF_POD, IMAGE, adapters, locked_memory

# The end of a pod: mounts of its container, and its volumes.
_STORAGE = """\
    volumeMounts:
      - name: plan
        mountPath: /plan
      - name: shm
        mountPath: /dev/shm
      - name: data
        mountPath: /data
volumes:
  - name: plan
    configMap:
      name: {name}
  - name: shm
    emptyDir:
      medium: Memory
  - name: data
    persistentVolumeClaim:
      claimName: training-data  # edit: the claim that holds data and checkpoints
"""
_TRAINJOB = """\
{header}apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {name}
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: {image}  # edit
    numNodes: {nodes}
    numProcPerNode: {gpus}
    resourcesPerNode:
      limits:
        nvidia.com/gpu: {gpus}
{rdma_trainjob}    command:
      - sh
      - -c
      - |
        export NODE_RANK="$PET_NODE_RANK" MASTER_ADDR="$PET_MASTER_ADDR" MASTER_PORT="$PET_MASTER_PORT"
        exec sh /plan/launch.sh "$@"
      - sh
    args: []  # edit: {example}
{environment}  runtimePatches:
    - manager: meshwright.dev/plan
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
                        containers:
                          - name: node
{lock_trainjob}{storage_trainjob}"""
_JOBSET = """\
{header}apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
spec:
  network:
    enableDNSHostnames: true
  replicatedJobs:
    - name: node
      replicas: 1
      template:
        spec:
          parallelism: {nodes}
          completions: {nodes}
          completionMode: Indexed
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
              containers:
                - name: node
                  image: {image}  # edit
                  command:
                    - sh
                    - -c
                    - |
                      export NODE_RANK="$JOB_COMPLETION_INDEX" MASTER_ADDR={name}-node-0-0.{name}
                      exec sh /plan/launch.sh "$@"
                    - sh
                  args: []  # edit: {example}
{environment}                  resources:
                    limits:
                      nvidia.com/gpu: {gpus}
{rdma_jobset}{lock_jobset}{storage_jobset}"""


def _config_map(job: Job, name: str) -> str:
    texts = {**job.files, "launch.sh": node_script(job)}
    blocks = []
    for key, text in sorted(texts.items()):
        lines = "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())
        blocks.append(f"  {key}: |\n{lines}")
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n{''.join(blocks)}"


def _environment(job: Job, indent: int) -> str:
    if not job.needs:
        return ""
    pad = " " * indent
    rows = "".join(f'{pad}  - name: {name}\n{pad}    value: ""  # edit: {what}\n' for name, what in job.needs.items())
    return f"{pad}env:\n{rows}"


def files(job: Job) -> dict[str, str]:
    if job.hosts:
        raise UnsupportedError(
            "placement.hosts: Kubernetes places pods itself", hint="`--launcher slurm` and `hostfile` keep their order"
        )
    name = re.sub(r"[^a-z0-9-]+", "-", job.name.lower())[:50].strip("-") or "plan"
    storage = _STORAGE.format(name=name)
    values = {"name": name, "nodes": job.num_nodes, "gpus": job.gpus_per_node, "image": IMAGE,
              "example": job.example or "more arguments", "rdma_trainjob": adapters(job, 8),
              "rdma_jobset": adapters(job, 22), "lock_trainjob": locked_memory(job, 28),
              "lock_jobset": locked_memory(job, 18), "storage_trainjob": indent(storage, " " * 24),
              "storage_jobset": indent(storage, " " * 14)}  # fmt: skip
    header = comment((*job.header, "Edit what is marked, then: kubectl apply -f configmap.yaml -f {file}"))
    return {
        "configmap.yaml": _config_map(job, name),
        "trainjob.yaml": _TRAINJOB.format(header=header.replace("{file}", "trainjob.yaml"),
                                          environment=_environment(job, 4), **values),
        "jobset.yaml": _JOBSET.format(header=header.replace("{file}", "jobset.yaml"),
                                      environment=_environment(job, 18), **values),
    }  # fmt: skip


def next_step(job: Job) -> str:
    return "edit trainjob.yaml (or jobset.yaml), then kubectl apply -f configmap.yaml -f trainjob.yaml"


LAUNCHER = Launcher("kubernetes", "trainjob.yaml (Kubeflow) or jobset.yaml, and a ConfigMap", files, next_step, {
    "trainjob.yaml": (r"^ *numNodes: (\S+)", r"^ *numProcPerNode: (\S+)", GPUS_OF_POD),
    "jobset.yaml": (r"^ *parallelism: (\S+)", r"^ *completions: (\S+)", GPUS_OF_POD)})  # fmt: skip
