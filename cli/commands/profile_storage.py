"""`meshwright profile storage`: how fast states can be offloaded, to the host's memory and to drives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import text
from ..console import FORMAT_VERSION, Terminal, table
from ..files import check_writable, write_file
from ..flag import flag
from ..options import Force
from .profile import Device, Quick, today

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...profiles.profilers.samples import SampleRange

Folder = Annotated[
    Path | None,
    flag("--dir", metavar="DIR", text="Folder on the drive that states would go to; without it no drive is measured."),
]
Output = Annotated[
    Path | None,
    flag("-o", "--output", metavar="FILE", text="Write the profile here, as YAML, and its samples beside it."),
]
DryRun = Annotated[bool, flag("--dry-run", text="Show what would be measured.")]


def command(
    context: typer.Context,
    folder: Folder = None,
    device: Device = "auto",
    quick: Quick = False,
    dry_run: DryRun = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Measure host memory, copies between host and GPU, and drives, for offloads.

    Measures a copy in host memory by all threads (bytes read and written),
    pinned copies between host and GPU, and a file of 1 GiB in --dir without
    the page cache. A cluster file that names the profile prices offloads by it.

    \b
    Examples:
      meshwright profile storage -o storage.yaml
      meshwright profile storage --dir /tmp --quick
    """
    from ...errors import InputError
    from ...runtime import launcher

    terminal: Terminal = context.obj
    if device not in ("auto", "cuda", "cpu"):
        raise InputError(f"--device `{device}` is none of auto, cuda, cpu", hint="`--device auto`")
    if folder is not None and not folder.is_dir():
        raise InputError(f"--dir {folder} is no folder", hint="a folder on the drive, which you may write")
    if output is not None:
        check_writable(output, force=force)
    if dry_run:
        drive = "" if folder is None else f"a file in {folder}; "
        terminal.show([f"host memory; {drive}on a GPU copies to it and back"])
        return
    launcher.check_torch("`profile`")
    from ...profiles.cluster.device_files import storage_text
    from ...profiles.profilers import environment, storage, timing
    from ...profiles.profilers.samples import Samples

    where = timing.open_device(device)
    about = environment.environment(where)
    saved = Samples(output.with_suffix(".samples.csv") if output else None, about)
    with terminal.progress("measuring") as progress:
        ranges = storage.measure(where, folder, quick=quick, samples=saved, progress=progress)
    document = {"kind": "storage-profile", "gpu": environment.gpu_of(where), "environment": about,
                "rates": {name: asdict(rate) for name, rate in ranges.items()}}  # fmt: skip
    if output is not None:
        samples = output.with_suffix(".samples.csv").name
        write_file(output, storage_text(document, today(), samples), force=force)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, **document})
    terminal.show(_screen(about["device"], ranges, str(output) if output else None))


def _screen(
    device: str, ranges: Mapping[str, SampleRange], saved_as: str | None
) -> Iterator[RenderableType]:
    yield f"storage of {device}"
    rows = [
        (name, text.significant(rate.median / 1e9), f"{(rate.high - rate.low) / rate.median:.1%}", f"{rate.number}")
        for name, rate in ranges.items()
    ]
    yield table("", "GB/s", "spread", "samples", rows=rows, right=["GB/s", "spread", "samples"])
    yield ""
    if "drive read" in ranges:
        slower = min(ranges["drive read"].median, ranges["drive write"].median) / 1e9
        yield text.wrapped(f"States on this drive: `--technique zero-infinity:gb_per_s={slower:.3g}`, over the GPUs "
                           "that share it")  # fmt: skip
    yield f"Next: name it under `profiles` of your cluster file: {saved_as}" if saved_as else (
        "Next: add `-o storage.yaml` to keep this")

