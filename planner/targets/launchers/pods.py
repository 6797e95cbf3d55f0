"""Marked places that pods of Kubernetes share."""

from __future__ import annotations

from .base import Job

IMAGE = "registry.example.com/training:latest"
GPUS_OF_POD = r"^ *nvidia\.com/gpu: (\S+)"


def adapters(job: Job, indent: int) -> str:
    """A place for the RDMA adapters among the limits of a container. Their name and number depend on the cluster.

    Without them NCCL falls back to TCP (docs.nvidia.com/aicr, fabric-attached-training).
    """
    return _marked(job, indent, "the network adapters as your device plugin names them, or NCCL uses TCP between nodes",
                   "rdma/hca_shared_devices_a: 1")  # fmt: skip


def locked_memory(job: Job, indent: int) -> str:
    """A place for the right to lock the memory that adapters register, beside `image` of a container.

    Mellanox/k8s-rdma-shared-dev-plugin 2a8045c9, example/test-hca-pod.yaml.
    """
    return _marked(job, indent, "with the adapters, which register memory that stays in place",
                   "securityContext:", "  capabilities:", "    add: [IPC_LOCK]")  # fmt: skip


def _marked(job: Job, indent: int, text: str, *lines: str) -> str:
    """Lines behind comment marks, for jobs on several nodes."""
    marked = (f"# edit: {text}", *(f"# {line}" for line in lines))
    return "".join(f"{' ' * indent}{line}\n" for line in marked) if job.num_nodes > 1 else ""
