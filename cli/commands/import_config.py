"""`meshwright import`: a team's own launch config, priced, and what would be faster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import options, requests, text
from ..console import FORMAT_VERSION, Terminal, check_writable, write_file
from ..screens import explain as explain_screen
from ..screens import memory as memory_screen
from ..screens import plan as plan_screen

if TYPE_CHECKING:
    from ...planner.importing import Imported


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
    found = import_config(kind, files, {name: value for name, value in given.items() if value is not None}, version)
    for warning in found.warnings:
        terminal.warn(warning)
    own = found.price().model_dump(mode="json")
    switched = api.evaluate(found.request, str(found.layout)).best.step_s if found.switched else None
    with terminal.progress("searching") as progress:
        plan = api.plan(found.request, progress=progress)
    document = plan.model_dump(mode="json")
    if output is not None:
        write_file(output, plan.to_json(), force=force)
    theirs = requests.candidate(own, 1)
    if terminal.settings.json:
        head: dict[str, Any] = {"format_version": FORMAT_VERSION, "kind": "import", "framework": found.framework}
        terminal.write_json({
            **head, "layout_id": str(found.layout), "candidate": theirs, "best": document["candidates"][0],
            "options_read": found.read, "unknown": found.unknown, "assumed": list(found.assumed),
            "switched": list(found.switched), "switched_step_s": switched,
        })  # fmt: skip
    terminal.show(_screen(found, own, switched, document, output))
    requests.tell_warnings(terminal, document)


def _screen(
    found: Imported, own: dict[str, Any], switched: float | None, document: dict[str, Any], output: Path | None
) -> list[Any]:
    best, theirs = document["candidates"][0], requests.candidate(own, 1)
    screen: list[Any] = [f"{found.framework}: {found.read} options say the layout, {found.unread} say other things"]
    if found.unknown:
        listed = ", ".join(f"{name} (line {line})" for name, line in found.unknown.items())
        screen.append(text.wrapped(f"unknown to {found.framework}: {listed}", hanging="  "))
    screen += [text.wrapped(f"assumed: {each}", hanging="  ") for each in found.assumed]
    speed = f"{text.percent(theirs['mfu'])} % MFU, {text.significant(theirs['tokens_per_s_per_gpu'])} tokens/s per GPU"
    screen += ["", f"yours    {theirs['layout_id']}", f"         {plan_screen.step_text(theirs)}, {speed}"]
    screen += [text.wrapped(f"         {line}", hanging="         ") for line in _memory(own, theirs)]
    if switched is not None and switched < theirs["step_s"]:
        share = text.percent(1 - switched / theirs["step_s"])
        line = f"         with {', '.join(found.switched)}: {text.significant(switched)} s, {share} % faster"
        screen.append(text.wrapped(line, hanging="         "))
    if best["layout_id"] == theirs["layout_id"]:
        screen += ["", "Nothing is faster: it is the layout that `plan` chooses"]
        return screen if switched is None else [*screen, "", _next(document, output)]
    faster = 1 - best["step_s"] / theirs["step_s"]
    gain = f"{text.percent(faster)} % faster" if faster >= 0 else f"{text.percent(-faster)} % slower, but it fits"
    peak = f"{text.gib(memory_screen.peak_bytes(best))} GiB"
    screen += [f"planned  {best['layout_id']}", f"         {plan_screen.step_text(best)}, {gain}; fits ({peak})", ""]
    screen += ["Yours beside the planned, per step:", explain_screen.difference_table(best, theirs)]
    return [*screen, "", _next(document, output)]


def _memory(own: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Whether it fits; of a config that somebody runs, what it means if it does not."""
    need, limit = memory_screen.peak_bytes(theirs), memory_screen.capacity(own)
    held = f"({text.gib(need)} GiB of {text.gib(limit)})"
    if need <= limit:
        return [f"fits {held}"]
    over = f"{text.gib(need - limit)} GiB"
    return [f"does not fit by this estimate {held}: if it runs for you, the estimate is {over} or more too high"]


def _next(document: dict[str, Any], output: Path | None) -> str:
    saved = f"meshwright emit {output}" if output is not None else "add `-o plan.json`, then meshwright emit plan.json"
    return f"Next: {saved} --to {document['resolved']['target']}"
