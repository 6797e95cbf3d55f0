"""`meshwright check`: is this plan, request or folder of launch files right?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import FORMAT_VERSION, Terminal

if TYPE_CHECKING:
    from ...errors import FieldProblem


def command(
    context: typer.Context,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Folder of `emit -d`, plan, or request.", show_default=False)
    ],
    to: Annotated[
        str | None, typer.Option("--to", metavar="TARGET", help="Framework [by the files].", show_default=False)
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--target-version", metavar="V", help="Its release [that of the header].", show_default=False),
    ] = None,
) -> None:
    """Check launch files, plans and requests; exit code 1 if something is wrong.

    Launch files are held to the options that the framework's release has, to the
    rules that it finds out late, and to the plan beside them; and given to the
    framework's own parser if it is installed (Megatron: MEGATRON_PATH).

    \b
    Examples:
      meshwright check run
      meshwright check run --to megatron --target-version 0.16.1
    """
    terminal: Terminal = context.obj
    items = [_check(terminal, path, to, version) for path in paths]
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "check", "items": items})
    if any(item["problems"] for item in items):
        raise typer.Exit(1)


def _check(terminal: Terminal, path: Path, to: str | None, version: str | None) -> dict[str, Any]:
    if path.is_dir():
        return _folder(terminal, path, to, version)
    from .. import requests

    if requests.is_plan(path):
        from ...planner.document.reading import load_plan

        plan = load_plan(path)
        terminal.show([f"{path}: a plan of {len(plan.candidates)} layouts, in order"])
        return {"path": str(path), "what": "plan", "problems": []}
    from ...planner.request.load import load_request
    from ...planner.request.resolve import resolve

    resolved = resolve(load_request(path))
    terminal.show([f"{path}: a request for {resolved.model.name} on {resolved.cluster.name}, in order"])
    return {"path": str(path), "what": "request", "problems": []}


def _folder(terminal: Terminal, path: Path, to: str | None, version: str | None) -> dict[str, Any]:
    from ...errors import FieldProblem, InputError
    from ...planner.targets.check import check_files

    try:
        names = sorted(each for each in path.iterdir() if each.is_file())
        files = {each.name: each.read_text(encoding="utf-8") for each in names}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}", hint="name a folder that `emit -d` wrote") from None
    try:
        found = check_files(files, to, version)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", hint=error.hint) from None
    for warning in found.warnings:
        terminal.warn(warning)
    item: dict[str, Any] = {
        "path": str(path), "what": found.target, "framework": found.framework,
        "layout_id": str(found.layout) if found.layout else None,
        "problems": [_problem(each) for each in found.problems], "own_parser": "not run",
    }  # fmt: skip
    if not found.problems:
        item["own_parser"] = said = _own_parser(found.target, files)
        if said not in ("accepted", "not run", "not installed"):
            item["problems"] = [_problem(FieldProblem(f"{found.framework}: {said}"))]
    _show(terminal, path, item, found.problems)
    return item


def _own_parser(target: str, files: dict[str, str]) -> str:
    """`accepted`, what the framework says against the files, or why it was not asked."""
    from ...planner.document.reading import read_plan
    from ...planner.targets.registry import target as load_target

    config = load_target(target).config
    if config is None or "plan.json" not in files:
        return "not run"
    here, said = config.parser.verdict(files, read_plan(files["plan.json"], "plan.json"), 1)
    return (said or "accepted") if here else "not installed"


def _problem(problem: FieldProblem) -> dict[str, Any]:
    return {"message": problem.message, "file": problem.file, "line": problem.line, "field": problem.field,
            "hint": problem.hint}  # fmt: skip


def _show(terminal: Terminal, path: Path, item: dict[str, Any], problems: list[FieldProblem]) -> None:
    if not item["problems"]:
        layout = f", layout {item['layout_id']}" if item["layout_id"] else ""
        own = {"accepted": "accepted by the framework's own parser", "not installed": "the framework is not installed "
               "here: its own parser was not run"}.get(item["own_parser"], "")  # fmt: skip
        terminal.show([f"{path}: {item['framework']}{layout}: in order" + (f"; {own}" if own else "")])
        return
    lines = [str(each) for each in problems] or [each["message"] for each in item["problems"]]
    hints = list(dict.fromkeys(each.hint for each in problems if each.hint))
    terminal.show([f"{path}: {item['framework']}: {len(lines)} problem{'s' if len(lines) > 1 else ''}",
                   *(f"  {line}" for line in lines), *(f"  hint: {hint}" for hint in hints[:3])])  # fmt: skip
