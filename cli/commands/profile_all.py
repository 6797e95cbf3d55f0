"""`meshwright profile all`: links, kernels, memory and storage of this machine, and a cluster file that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import options
from ..console import Terminal
from ..files import check_writable, write_file
from ..flag import flag
from ..profiling.kernels import TARGET
from . import profile, profile_links, profile_storage
from .profile import Device, Quick, Resume

Output = Annotated[
    Path, flag("-o", "--output", metavar="FILE", text="The cluster file; the profiles that it names lie beside it.")
]
_NAMED = "profiles:"
DryRun = Annotated[bool, flag("--dry-run", text="Show what would be measured.")]


def command(
    context: typer.Context,
    output: Output,
    source: options.RequestOrPlan = None,
    layout: options.LayoutId = None,
    model: options.Model = None,
    gpu: options.Gpu = None,
    gpus: options.Gpus = None,
    seq_len: options.SeqLen = None,
    global_batch: options.GlobalBatch = None,
    dtype: options.Dtype = None,
    folder: profile_storage.Folder = None,
    ranks: profile_links.NumRanks = None,
    device: Device = "auto",
    quick: Quick = False,
    resume: Resume = False,
    dry_run: DryRun = False,
    force: options.Force = False,
) -> None:
    """Measure this machine completely, into one cluster file.

    Runs `profile links`, `kernels`, `memory` and `storage` one after the other:
    the links between its GPUs, the kernels and the memory of a model's layouts,
    host memory and a drive. `plan --cluster` on the file prices by all of it. On
    several nodes, start `profile links` on each with torchrun, and name the other
    profiles in its file. --device cpu without --gpu measures the CPU ranks of this
    machine as devices of their own.

    \b
    Examples:
      meshwright profile all --model llama-3.2-1b --gpu h200 --gpus 8 -o node.yaml
      meshwright profile all --device cpu --model tiny.yaml --gpus 2 -o node.yaml
    """
    from ...profiles.profilers import link_ranks

    terminal: Terminal = context.obj
    _check_alone(terminal)
    files = {what: output.parent / f"{output.stem}.{what}.yaml" for what in ("kernels", "memory", "storage")}
    for path in (output, *files.values()):
        check_writable(path, force=force or resume)
    flags: options.RequestFlags = {
        "model": model, "gpu": gpu, "gpus": gpus, "cluster": None, "seq_len": seq_len, "global_batch": global_batch,
        "dtype": dtype, "optimizer": None, "target": None,
    }  # fmt: skip
    common: dict[str, Any] = {"quick": quick, "dry_run": dry_run, "force": True}
    sets = None
    of_cpu = device == "cpu" and not gpu and source is None and layout is None  # the CPU ranks themselves

    def missing(path: Path) -> bool:
        return dry_run or not (resume and path.exists())

    num_ranks = ranks or gpus or link_ranks.default_ranks()
    if missing(output) and (num_ranks > 1 or not of_cpu):
        profile_links.command(context, ranks=num_ranks if of_cpu else ranks, gpu=gpu, output=output, device=device,
                              resume=resume and _begun(output), **common)  # fmt: skip
    if missing(files["kernels"]):
        here: options.RequestFlags = {**flags, "gpus": num_ranks} if of_cpu else flags
        profile.run(terminal, "kernels", source, layout, here, None, files["kernels"], device,
                    resume=resume and _begun(files["kernels"]), **common)  # fmt: skip
    if of_cpu and not dry_run:
        _name_device(terminal, output, files["kernels"])
        flags = {**flags, "gpus": None, "cluster": str(output), "target": TARGET}
        sets = ["top=1"] if quick else None
    if missing(files["memory"]) and not (of_cpu and dry_run):
        profile.run(terminal, "memory", source, layout, flags, sets, files["memory"], device, resume=False, **common)
    if missing(files["storage"]):
        profile_storage.command(context, folder=folder, output=files["storage"], device=device, **common)
    if not dry_run:
        _name(terminal, output, [path for path in files.values() if _tells(path, output)])


def _check_alone(terminal: Terminal) -> None:
    """Raises InputError where one of the profiles is asked for, or ranks of several nodes measure."""
    from ...errors import InputError
    from ...profiles.profilers import link_ranks

    if terminal.settings.json:
        raise InputError("`profile all` writes files", hint="`--json` goes with `profile kernels` and the others")
    if link_ranks.under_torchrun():
        raise InputError("`profile all` measures one node", hint="torchrun starts `-m meshwright profile links`")


def _begun(path: Path) -> bool:
    """Whether an interrupted run left samples behind."""
    return path.with_suffix(".samples.csv").exists()


def _name_device(terminal: Terminal, output: Path, kernels: Path) -> None:
    """The profile of the CPU rank, named in the cluster file; one rank alone has no links, and a file of its own."""
    from ...profiles.io.reader import read_document

    if not output.exists():
        name = read_document(kernels).at(("gpu",))
        write_file(output, f"groups: [{{gpu: {name}, gpus_per_node: 1, count: 1}}]\n", force=True)
    _name(terminal, output, [kernels])


def _tells(path: Path, cluster: Path) -> bool:
    """Whether plans on the cluster can be priced by a profile: one of a CPU has no constant of a GPU."""
    from ...errors import InputError
    from ...profiles.cluster.device_files import constants, other_hardware
    from ...profiles.cluster.load import load_cluster
    from ...profiles.io.reader import read_document

    try:
        document, spec = read_document(path), load_cluster(cluster)
        tells = constants(document) or document.at(("device",)) is not None
        return bool(tells) and not other_hardware(document, spec)
    except InputError:
        return False


def _name(terminal: Terminal, output: Path, telling: list[Path]) -> None:
    """Name the profiles in the cluster file."""
    if telling:
        listed = ", ".join(path.name for path in telling)
        lines = output.read_text(encoding="utf-8").splitlines(True)
        others = [line for line in lines if not line.startswith(_NAMED)]
        write_file(output, "".join(others) + f"{_NAMED} [{listed}]\n", force=True)
        terminal.show(["", f"{output} prices by {listed} too"])
