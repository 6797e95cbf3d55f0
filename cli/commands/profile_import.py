"""`meshwright profile import`: a cluster file out of what other tools print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import options, text
from ..console import FORMAT_VERSION, Terminal
from ..files import check_writable, write_file
from ..flag import flag
from .profile import today

if TYPE_CHECKING:
    from ...profiles.importers.base import Imported

Format = Annotated[
    str, typer.Argument(metavar="FORMAT", help="nccl-tests, nvidia-smi-topo, nccl-topo-xml, slurm, k8s-nodes, "
                        "mpigraph, hostfile; or auto.", show_default=False)
]  # fmt: skip
Source = Annotated[Path, typer.Argument(metavar="FILE", help="Output of the tool; - is stdin.", show_default=False)]
PerNode = Annotated[int | None, flag("--gpus-per-node", metavar="N", text="GPUs per node, if the file lacks them.")]
Count = Annotated[int | None, flag("--nodes", metavar="N", text="Number of nodes, if the file describes one [1].")]
Output = Annotated[Path | None, flag("-o", "--output", metavar="FILE", text="Write the cluster file here.")]


def command(
    context: typer.Context,
    format_: Format,
    source: Source,
    gpu: options.Gpu = None,
    gpus_per_node: PerNode = None,
    nodes: Count = None,
    output: Output = None,
    force: options.Force = False,
) -> None:
    """Make a cluster file out of the output of other tools.

    Reads hosts, GPUs, memory, NICs and speeds. Values that the output lacks are
    named, and can be given as options or filled in. Without -o the cluster file
    is printed.

    \b
    Examples:
      scontrol show nodes > nodes.txt
      meshwright profile import slurm nodes.txt -o cluster.yaml
      meshwright profile import nccl-tests all_reduce.log -o cluster.yaml
    """
    from ...profiles.cluster.links import matrix_text
    from ...profiles.importers.base import cluster_document, cluster_text

    terminal: Terminal = context.obj
    if output is not None:
        check_writable(output, force=force)
    name, cluster = _read(format_, source)
    matrix = output.with_suffix(".matrix.csv") if output else Path("cluster.matrix.csv")
    document = cluster_document(cluster, gpu=gpu, per_node=gpus_per_node, count=nodes, matrix=matrix.name)
    head = f"# Imported from {source.name} ({name}) on {today()}.\n" + "".join(f"# {note}\n" for note in cluster.notes)
    written = cluster_text(document, head)
    hosts = [host for group in cluster.groups for host in group.hosts]
    if output is not None:
        if cluster.matrix:
            write_file(matrix, matrix_text(hosts, cluster.matrix), force=True)
        write_file(output, written, force=force)
    _show(terminal, name, cluster, document, written, output)


def _read(format_: str, source: Path) -> tuple[str, Imported]:
    """The name of the format, and what the file says."""
    import sys

    from ...errors import InputError, UnknownNameError
    from ...profiles.importers.registry import IMPORTERS
    from ...profiles.io.reader import read_text

    if format_ != "auto" and format_ not in IMPORTERS:
        raise UnknownNameError("format", format_, (*IMPORTERS, "auto"))
    content = sys.stdin.read() if str(source) == "-" else read_text(source)
    shown = "stdin" if str(source) == "-" else str(source)
    if not content.strip():
        raise InputError(f"{shown}: the file is empty")
    fitting = [name for name, importer in IMPORTERS.items() if importer.recognises(content)]
    if format_ == "auto":
        if not fitting:
            tried = "\n".join(f"{name}: {importer.summary}" for name, importer in IMPORTERS.items())
            raise InputError(f"{shown} is of none of the formats that were tried\n{tried}",
                             hint="name the format: `profile import slurm FILE`")  # fmt: skip
        format_ = fitting[0]
    try:
        return format_, IMPORTERS[format_].read(shown, content)
    except InputError as error:
        if fitting and format_ not in fitting:
            hint = f"it looks like {fitting[0]}: `profile import {fitting[0]} {source}`"
            raise InputError(error.message, hint=hint) from None
        raise


def _show(
    terminal: Terminal, name: str, cluster: Imported, document: dict[str, Any], written: str, output: Path | None
) -> None:  # fmt: skip
    for note in cluster.notes:
        terminal.talk(text.wrapped(f"note: {note}"))
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "cluster-import", "format": name,
                             "cluster": document, "notes": list(cluster.notes)})  # fmt: skip
    elif output is None:
        terminal.write(written)
    else:
        groups = [f"{group['count']} x {group['gpus_per_node']} {group['gpu']}" for group in document["groups"]]
        terminal.show([", ".join(groups), "", f"Next: {_next_step(document, output)}"])


def _next_step(document: Mapping[str, object], output: Path) -> str:
    """The command that plans on the file, or the field that it lacks first: nodes that no catalogue knows have no
    network."""
    from ...errors import InputError
    from ...profiles.cluster.load import load_cluster

    try:
        load_cluster(dict(document))
    except InputError as error:
        return f"complete {output} ({error.message})"
    return f"meshwright plan --cluster {output} --model llama-3.1-8b"
