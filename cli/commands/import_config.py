"""`meshwright import`: a team's own launch config, priced, and what would be faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import options, reinforcement, requests, serving, serving_flags
from ..console import FORMAT_VERSION, Terminal
from ..files import check_writable, write_file
from ..flag import flag
from ..screens import import_config as import_screen

if TYPE_CHECKING:
    from ...planner.document.plan import Plan
    from ...planner.importing import Imported

Kind = Annotated[
    str,
    typer.Argument(metavar="FORMAT", show_default=False,
                   help="megatron-args, megatron-bridge, nemo-recipe, torchtitan, deepspeed, accelerate, "
                "hf-trainer, axolotl, llama-factory, swift, megatron-swift, nemo, nanotron, maxtext, verl, "
                "nemo-rl, slime, openrlhf, areal, vllm, sglang."),
]
Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Script, options, TOML, Python, JSON or YAML.", show_default=False),
]
Version = Annotated[str | None, flag("--target-version", metavar="V", text="Release of the framework [newest].")]
Parameters = Annotated[
    list[str] | None,
    flag("--arg", metavar="V", text="Parameter of a script, in turn; NAME=V sets a variable or an option, 3=V the "
         "third one."),
]


def command(
    context: typer.Context,
    kind: Kind,
    files: Files,
    model: options.Model = None,
    gpu: options.Gpu = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq_len: options.SeqLen = None,
    global_batch: options.GlobalBatch = None,
    images: options.Images = None,
    version: Version = None,
    arguments: Parameters = None,
    input: serving_flags.Input = None,
    rate: serving_flags.Rate = None,
    ttft: serving_flags.Ttft = None,
    tpot: serving_flags.Tpot = None,
    percentile: serving_flags.Percentile = None,
    output_file: serving_flags.OutputFile = None,
    output: serving_flags.Output = None,
    force: options.Force = False,
) -> None:
    """Price the layout of a launch config, with a faster layout and the reason.

    Give the parts that the config leaves open (GPUs, often the model) as for
    `plan`; a flag wins over the file. Options that the framework does not have are
    listed. Shell scripts are followed, not run; name files that they source beside
    them. An option that may change the layout and is not understood is named, and
    nothing is priced.
    Commands of vllm and sglang need the lengths (--input, --output) and take
    promises: they are compared with the deployment that carries the largest rate.
    With the length of an answer (--output) a config of verl or nemo-rl is compared
    whole: generation, scoring and training, and where each of them is.

    \b
    Examples:
      meshwright import megatron-args train.sh --cluster dgx-h100:8
      meshwright import megatron-args train.sh --cluster dgx-h100:8 --arg TP=4
      meshwright import deepspeed ds.json --model qwen3-8b --cluster dgx-h100:2
      meshwright import axolotl lora.yaml --cluster dgx-h100:1
      meshwright import vllm serve.sh --cluster dgx-h100 --input 2000 --output 300
      meshwright import verl run_grpo.sh --cluster dgx-h100:2 --output 1500
      meshwright import nemo-rl grpo.yaml --cluster dgx-h100:4 --output 2000
    """
    from ...planner.importing import import_config
    from ...planner.targets.engines.command_line import READ_ENGINES

    terminal: Terminal = context.obj
    flags = options.request_flags(context)
    file = serving.tokens_or_file(flags, output_file)
    if file is not None:
        check_writable(file, force=force)
    if kind in READ_ENGINES:
        return serving.import_command(terminal, kind, files, flags, arguments or [], file, force=force)
    if reinforcement.of_whole_step(kind, files, flags):
        return reinforcement.import_command(terminal, kind, files, flags, arguments or [], file, force=force)
    imported = import_config(kind, files, serving.training_flags(flags), version, arguments or ())
    for warning in imported.warnings:
        terminal.warn(warning)
    if imported.gaps:
        return _show_gaps(terminal, imported, several=len(files) > 1)
    _compare(terminal, imported, file, force=force)


def _compare(terminal: Terminal, imported: Imported, file: Path | None, *, force: bool) -> None:
    """Prices the layout of the config beside the fastest one. file: of the plan."""
    priced = imported.price()
    switched = imported.price_switched().best.step_s if imported.switched else None
    plan, why = _fastest(terminal, imported)
    if file is not None and plan is not None:
        write_file(file, plan.to_json(), force=force)
    if terminal.settings.json:
        terminal.write_json({
            **_read(imported), "candidate": priced.best.model_dump(mode="json"),
            "best": plan.best.model_dump(mode="json") if plan else None, "switched": list(imported.switched),
            "switched_step_s": switched,
        })  # fmt: skip
    saved_as = str(file) if file and plan else None
    terminal.show(import_screen.import_screen(imported, priced, switched, plan or why, saved_as))
    requests.end_with_warnings(terminal, plan)


def _fastest(terminal: Terminal, imported: Imported) -> tuple[Plan | None, str]:
    """The plan, or None and the reason, where their engine does more than plans for the target."""
    from ...errors import NoFeasibleLayoutError, UnsupportedError
    from ...planner import api

    try:
        with terminal.progress("searching") as progress:
            return api.plan(imported.request, progress=progress), ""
    except (NoFeasibleLayoutError, UnsupportedError) as error:
        return None, error.message


def _show_gaps(terminal: Terminal, imported: Imported, *, several: bool) -> None:
    """The options that leave the layout open. several: files, so that each is named."""
    if terminal.settings.json:
        terminal.write_json({**_read(imported), "candidate": None, "best": None})
    terminal.show(import_screen.gaps_screen(imported, several=several))


def _read(imported: Imported) -> dict[str, Any]:
    """The result of the import, in JSON."""
    gaps = [{"message": gap.message, "file": gap.file, "line": gap.line, "field": gap.field} for gap in imported.gaps]
    return {
        "format_version": FORMAT_VERSION, "kind": "import", "framework": imported.framework,
        "layout_id": str(imported.read_layout) if imported.read_layout else None, "options_read": imported.read,
        "unknown": imported.unknown, "assumed": list(imported.assumed), "gaps": gaps,
    }  # fmt: skip
