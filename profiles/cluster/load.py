"""Clusters by any reference: shorthand, a GPU and a count, a file, or the description itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...cost_models.specs.cluster import ClusterSpec
from ...errors import InputError
from ..io.document import Document
from ..io.reader import read_document
from .build import of_gpus, of_shorthand
from .cluster_file import read_cluster

_FILE_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


def load_cluster(
    reference: str | Path | Mapping[str, Any] | Document | None = None,
    *,
    gpu: str | None = None,
    num_gpus: int | None = None,
    exclude: Sequence[str] = (),
) -> ClusterSpec:
    """The cluster that `reference` names or describes.

    reference: shorthand, the path of a file, or the description itself. gpu: instead of a reference, or in place of
    the GPUs of the nodes it names. num_gpus: how many; must agree with a reference that has a number too. exclude:
    names or numbers of nodes that are left out.
    Raises UnknownNameError, or InputError with all problems of a file.
    """
    if num_gpus is not None and num_gpus < 1:
        raise InputError(f"{num_gpus} GPUs: there must be at least 1")
    if exclude and num_gpus is not None:
        raise InputError("exclude: nodes are left out of a cluster of so many nodes, and a number of GPUs is given",
                         hint="`--cluster dgx-h100:32` in place of `--gpus 256`")  # fmt: skip
    if reference is None:
        if gpu is None or num_gpus is None:
            raise InputError("no cluster", hint="`--cluster dgx-h100:2`, or `--gpu h100-sxm-80gb --gpus 8`")
        return of_gpus(gpu, num_gpus)
    if exclude and isinstance(reference, str) and not _is_file(reference):
        reference = {"name": reference.strip(), "groups": reference.strip()}
    if isinstance(reference, Mapping):
        reference = Document("", dict(reference), prefix=("cluster",))
    if isinstance(reference, Document) or _is_file(reference):
        document = reference if isinstance(reference, Document) else _read(reference)
        return _counted(read_cluster(document, gpu, exclude), num_gpus)
    return _counted(of_shorthand(str(reference).strip(), gpu, num_gpus), num_gpus)


def _counted(cluster: ClusterSpec, num_gpus: int | None) -> ClusterSpec:
    if num_gpus is not None and cluster.num_gpus != num_gpus:
        counted = " + ".join(f"{g.num_nodes} x {g.gpus_per_node}" for g in cluster.groups)
        raise InputError(
            f"{cluster.name} has {counted} = {cluster.num_gpus} GPUs, but {num_gpus} are asked for",
            hint="leave one of the two out",
        )
    return cluster


def _is_file(reference: str | Path) -> bool:
    text = str(reference)
    return (isinstance(reference, Path) or text == "-" or text.lower().endswith(_FILE_SUFFIXES)
            or "/" in text or "\\" in text)  # fmt: skip


def _read(reference: str | Path) -> Document:
    return replace(read_document(reference), prefix=("cluster",))
