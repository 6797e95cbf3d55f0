"""`meshwright emit`: the files that launch a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError
from .. import options, reinforcement, requests, serving
from ..console import FORMAT_VERSION, Terminal
from ..files import make_folder, write_files
from ..flag import flag

if TYPE_CHECKING:
    from ...planner.document.lengths_plan import LengthsPlan
    from ...planner.document.plan import Plan
    from ...planner.targets.emit import Emitted

To = Annotated[str | None, flag("--to", metavar="TARGET", text="Framework to write for [that of the plan, rl: verl].")]
Launcher = Annotated[
    str | None,
    flag("--launcher", metavar="NAME", text="torchrun, slurm, kubernetes, hostfile, ray, skypilot [torchrun]; of a "
         "serving plan scripts, dynamo, llm-d [scripts]."),
]
Version = Annotated[
    str | None, flag("--target-version", metavar="V", text="Release of the framework [the newest known].")
]
Transfer = Annotated[
    str | None,
    flag("--transfer", metavar="nixl|mooncake", text="serve: transfer of caches from prefill to decode [nixl]."),
]
Directory = Annotated[Path | None, flag("-d", "--directory", metavar="DIR", text="Write here; else print.")]


def command(
    context: typer.Context,
    plan: options.PlanFile,
    to: To = None,
    launcher: Launcher = None,
    version: Version = None,
    transfer: Transfer = None,
    choice: options.Choice = 1,
    directory: Directory = None,
    force: options.Force = False,
) -> None:
    """Write the files that launch a plan, or print them.

    The files are for the target of the plan, or for another that can run it (--to).
    A plan of `plan --workload serve` gives scripts for its engine, or manifests of
    Dynamo or llm-d; one of `plan --workload grpo` overrides of verl.

    \b
    Examples:
      meshwright emit plan.json
      meshwright emit plan.json --to megatron --launcher slurm -d run
    """
    terminal: Terminal = context.obj
    if requests.is_plan(plan, "serving-plan"):
        written = serving.emitted(plan, to, launcher, version, choice, transfer)
    elif requests.is_plan(plan, "rl-plan"):
        others = {"--launcher": launcher, "--target-version": version, "--transfer": transfer}
        written = reinforcement.emitted(plan, to, choice, others)
    elif transfer is not None:
        raise InputError("--transfer is for serving plans; this one is of a training step", hint="leave it out")
    else:
        written = _emitted(plan, to, launcher or "torchrun", version, choice)
    for warning in written.warnings:
        terminal.warn(warning)
    if directory is not None:
        _write(terminal, written.files, directory, force=force)
        terminal.talk(f"\nLaunch: {f'cd {directory} && ' if directory != Path() else ''}{written.next_step}")
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "files", "files": written.files})
    elif directory is None:
        for name, text in written.files.items():
            if name != "plan.json":  # the reader has it
                terminal.show([f"# ----- {name}", text.rstrip("\n")])


def _emitted(plan: Path, to: str | None, launcher: str, version: str | None, choice: int) -> Emitted:
    """The files of a training plan; the nearest layout in the hint where the target refuses this one."""
    from ...planner.document.lengths_plan import load_lengths_plan
    from ...planner.document.reading import load_plan
    from ...planner.explain.nearest import nearest_hint
    from ...planner.targets.emit import LayoutRefusedError, emit
    from ...planner.targets.registry import own_target

    lengths = load_lengths_plan(plan)
    loaded, reason = (load_plan(plan), "") if lengths is None else _started(lengths, to)
    own = own_target(loaded.resolved["target"])
    to = to or own
    try:
        written = emit(loaded, to, launcher, version, choice, str(plan))
        return replace(written, warnings=(reason, *written.warnings)) if reason else written
    except LayoutRefusedError as error:
        if lengths is None:
            error.hint = error.hint or nearest_hint(loaded, choice, to, error.fields)
        elif to != own:
            error.hint = f"plan with `--target {to}`: this plan has one layout, that of the rule of {own}"
        raise


def _started(plan: LengthsPlan, to: str | None) -> tuple[Plan, str]:
    """The plan of one layout that starts a run on documents of mixed lengths; why it has one degree for all, if so."""
    from ...planner.drivers.document_degrees import training_plan
    from ...planner.drivers.static_degree import static_plan
    from ...planner.targets.registry import target

    if to is None or plan.rule_tokens or target(to).mixed_lengths:
        return training_plan(plan), ""
    return static_plan(plan, to)


def _write(terminal: Terminal, texts: dict[str, str], directory: Path, *, force: bool) -> None:
    """All files or, where one may not be written, none."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is not a folder", hint="choose another `-d`")
    present = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    if present and not force:
        shown = ", ".join(present[:3]) + (f" and {len(present) - 3} more" if len(present) > 3 else "")
        raise InputError(
            f"{directory} holds {shown}: nothing was written",
            hint="choose another `-d`; `--force` writes into it and overwrites what has the same name",
        )
    made = make_folder(directory)
    try:
        write_files({directory / name: text for name, text in texts.items()}, force=True)
    except BaseException:  # Ctrl-C leaves no empty folder either
        for folder in made:
            folder.rmdir()
        raise
    width = max(map(len, texts))
    for name, text in texts.items():
        terminal.talk(f"wrote {directory}/{name:<{width}}  {len(text.splitlines()):>4} lines")
