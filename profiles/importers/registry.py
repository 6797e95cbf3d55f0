"""The formats, by the names that `profile import` takes."""

from __future__ import annotations

from . import hostfile, k8s_nodes, mpigraph, nccl_tests, nccl_topo, nvidia_smi_topo, slurm
from .base import Importer

IMPORTERS: dict[str, Importer] = {
    "nccl-tests": nccl_tests.IMPORTER,
    "nvidia-smi-topo": nvidia_smi_topo.IMPORTER,
    "nccl-topo-xml": nccl_topo.IMPORTER,
    "slurm": slurm.IMPORTER,
    "k8s-nodes": k8s_nodes.IMPORTER,
    "mpigraph": mpigraph.IMPORTER,
    "hostfile": hostfile.IMPORTER,  # last: a line of words could be many things
}
