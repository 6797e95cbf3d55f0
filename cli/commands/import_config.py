"""`meshwright import`: a team's own launch config, priced, and what would be faster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import options, requests
from ..console import FORMAT_VERSION, Terminal
from ..files import check_writable, write_file
from ..screens import import_config as import_screen


def command(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(metavar="FORMAT", show_default=False,
                       help="megatron-args, megatron-bridge, torchtitan, deepspeed, accelerate."),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Script, options, TOML, Python, JSON or YAML.", show_default=False),
    ],
    model: options.Model = None,
    gpu: options.Gpu = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq_len: options.SeqLen = None,
    global_batch: options.GlobalBatch = None,
    version: Annotated[
        str | None,
        typer.Option("--target-version", metavar="V", help="Release of the framework [newest].", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the faster plan here.", show_default=False),
    ] = None,
    force: options.Force = False,
) -> None:
    """Price the layout of a launch config, and say what would be faster and why.

    What the config leaves open (GPUs, often the model) is given as for `plan`;
    a flag wins over the file. Options that the framework does not have are listed.

    \b
    Examples:
      meshwright import megatron-args train.sh --cluster dgx-h100:8
      meshwright import deepspeed ds.json --model qwen3-8b --cluster dgx-h100:2
    """
    from ...planner import api
    from ...planner.importing import import_config

    terminal: Terminal = context.obj
    if output is not None:
        check_writable(output, force=force)
    flags = {"model": model, "gpu": gpu, "gpus": gpus, "cluster": cluster, "seq_len": seq_len}
    given = {**flags, "global_batch": global_batch}
    imported = import_config(kind, files, {name: value for name, value in given.items() if value is not None}, version)
    for warning in imported.warnings:
        terminal.warn(warning)
    priced = imported.price()
    switched = imported.price_switched().best.step_s if imported.switched else None
    with terminal.progress("searching") as progress:
        plan = api.plan(imported.request, progress=progress)
    if output is not None:
        write_file(output, plan.to_json(), force=force)
    if terminal.settings.json:
        terminal.write_json({
            "format_version": FORMAT_VERSION, "kind": "import", "framework": imported.framework,
            "layout_id": str(imported.layout), "candidate": priced.best.model_dump(mode="json"),
            "best": plan.best.model_dump(mode="json"), "options_read": imported.read, "unknown": imported.unknown,
            "assumed": list(imported.assumed), "switched": list(imported.switched), "switched_step_s": switched,
        })  # fmt: skip
    terminal.show(import_screen.import_screen(imported, priced, switched, plan, str(output) if output else None))
    requests.show_warnings(terminal, plan.warnings)
