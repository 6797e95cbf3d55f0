"""`meshwright explore`: a page on this machine to change model, cluster, batch and hardware."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import options, requests
from ..console import FORMAT_VERSION, Terminal
from ..flag import flag

if TYPE_CHECKING:
    from ...planner.document.plan import Plan

_MODEL, _CLUSTER = "llama-3.1-8b", "dgx-h100:1"  # without a plan or a flag

PlanArgument = Annotated[
    Path | None, typer.Argument(metavar="PLAN", help="Plan to begin with, by `plan -o`.", show_default=False)
]
Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port [a free one].",
                                   show_default=False)]  # fmt: skip
DryRun = Annotated[bool, flag("--dry-run", text="Check all of it, and serve nothing.")]


def command(
    context: typer.Context,
    plan: PlanArgument = None,
    model: options.Model = None,
    cluster: options.Cluster = None,
    port: Port = 0,
    dry_run: DryRun = False,
) -> None:
    """Open a page in the browser to change model, cluster, batch and hardware, and see the effect at once.

    Only this machine can open the page, with the printed address. Ctrl-C ends it.

    \b
    Examples:
      meshwright explore plan.json
      meshwright explore --model llama-3.1-8b --cluster dgx-h100:2
    """
    from ...errors import InputError
    from ...planner.document.reading import load_plan
    from ..explore import server
    from ..explore.session import Session

    terminal: Terminal = context.obj
    server.check_installed()
    if plan is not None and (model or cluster):
        raise InputError("a plan has its model and cluster", hint="leave out the plan, or `--model` and `--cluster`")
    with server.listening(port) as listener:
        start = _planned(terminal, model, cluster) if plan is None else load_plan(plan)
        session = Session.of(start, str(plan or ""))
        token = secrets.token_urlsafe()
        url = server.address(listener, token)
        terminal.outlive_streams()  # and show the address at once
        if terminal.settings.json:
            terminal.write_json({"format_version": FORMAT_VERSION, "kind": "explore", "address": url})
        if dry_run:
            terminal.show([f"Would serve {start.best.layout_id} and {len(start.candidates) - 1} other layouts."])
            return
        terminal.show([f"Open {url}", "Ctrl-C ends it."])
        try:
            server.serve(session, listener, token)
        except KeyboardInterrupt:
            terminal.talk("Stopped")


def _planned(terminal: Terminal, model: str | None, cluster: str | None) -> Plan:
    """The plan to begin with where there is no file of one."""
    from ...planner.api import plan as make_plan

    flags: options.RequestFlags = {"model": model or _MODEL, "cluster": cluster or _CLUSTER}
    request = requests.build(None, None, flags)
    with terminal.progress("searching") as progress:
        return make_plan(request, progress=progress)
