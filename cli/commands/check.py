"""`meshwright check`: is this plan, request or folder of launch files right?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import FieldProblem, reason
from .. import text
from ..console import FORMAT_VERSION, Terminal
from ..flag import flag

if TYPE_CHECKING:
    from ...planner.document.serving_plan import ServingPlan

Paths = Annotated[
    list[Path], typer.Argument(metavar="PATH...", help="Folder of `emit -d`, plan, or request; a serving plan and "
                               "its scripts.", show_default=False)
]
To = Annotated[str | None, flag("--to", metavar="TARGET", text="Framework [by the files].")]
Version = Annotated[
    str | None, flag("--target-version", metavar="V", text="Release of the framework [that of the header].")
]


def command(
    context: typer.Context,
    paths: Paths,
    to: To = None,
    version: Version = None,
) -> None:
    """Check launch files, plans and requests.

    The exit code is 1 if launch files have problems; a plan or a request that is
    wrong is an error with its own lines (exit code 2).

    Launch files are compared with the options of the framework's release, with
    the rules that it checks late, and with the plan beside them. The framework's
    own parser reads them if it is installed (Megatron: MEGATRON_PATH).
    Files of a serving plan are compared with it option by option.

    \b
    Examples:
      meshwright check run
      meshwright check run --to megatron --target-version 0.18.0
      meshwright check serving.json served/serve.sh
    """
    from .. import requests, serving

    terminal: Terminal = context.obj
    if len(paths) > 1 and requests.is_plan(paths[0], "serving-plan") and not any(map(_is_serving, paths[1:])):
        plan = serving.loaded(paths[0])
        checked: list[CheckedFile] = [_service(terminal, paths[0], plan, _texts(paths[1:]))]
    else:
        checked = [_check(terminal, path, to, version) for path in paths]
    if terminal.settings.json:
        items = [item.to_dict() for item in checked]
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "check", "items": items})
    if any(item.problems for item in checked):
        raise typer.Exit(1)


_FOLDER = "name a folder that `emit -d` wrote"


@dataclass(frozen=True)
class CheckedFile:
    """A plan or a request; one that is wrong is an error."""

    path: Path
    what: str  # `plan` or `request`
    problems: tuple[FieldProblem, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {"path": str(self.path), "what": self.what, "problems": [_problem(problem) for problem in self.problems]}


@dataclass(frozen=True)
class CheckedFolder(CheckedFile):
    """A folder of launch files; `what` is its target."""

    framework: str = ""  # with its release
    layout_id: str | None = None  # None: the files do not say it
    not_judged: tuple[str, ...] = ()  # options that neither the plan nor a rule says anything about
    noun: str = "layout"  # what the id is of
    own_parser: str = "not run"  # `accepted`, `not run`, `not installed`, or what the framework's parser objects to

    @property
    def rejected(self) -> bool:
        """Whether the framework's own parser does not take the files."""
        return self.own_parser not in ("accepted", "not run", "not installed")

    def to_dict(self) -> dict[str, object]:
        more = {"framework": self.framework, "layout_id": self.layout_id, "own_parser": self.own_parser,
                "not_judged": list(self.not_judged)}  # fmt: skip
        return {**super().to_dict(), **more}


def _problem(problem: FieldProblem) -> dict[str, object]:
    return {"message": problem.message, "file": problem.file, "line": problem.line, "field": problem.field,
            "hint": problem.hint}  # fmt: skip


def _is_serving(path: Path) -> bool:
    """Whether it is checked by itself: a serving plan, or a folder."""
    from .. import requests

    return path.is_dir() or requests.is_plan(path, "serving-plan")


def _check(terminal: Terminal, path: Path, to: str | None, version: str | None) -> CheckedFile:
    from .. import reinforcement, requests, serving

    if path.is_dir():
        if requests.is_plan(path / "plan.json", "serving-plan"):
            plan = serving.loaded(path / "plan.json")
            return _service(terminal, path, plan, _read(path))
        if requests.is_plan(path / "plan.json", "rl-plan"):
            return _placement(terminal, path)
        return _folder(terminal, path, to, version)
    if requests.is_plan(path, "serving-plan"):
        number = len(serving.loaded(path).candidates)
        terminal.show([f"{path}: a plan of {number} deployment{'s' if number > 1 else ''}, in order"])
        return CheckedFile(path, "serving-plan")
    if requests.is_plan(path, "rl-plan"):
        number = len(reinforcement.loaded(path).candidates)
        terminal.show([f"{path}: a plan of {number} placement{'s' if number > 1 else ''}, in order"])
        return CheckedFile(path, "rl-plan")
    if requests.is_plan(path):
        from ...planner.document.reading import load_plan

        layouts = load_plan(path).candidates
        terminal.show([f"{path}: a plan of {len(layouts)} layouts, in order"])
        return CheckedFile(path, "plan")
    from ...planner.request.load import load_request
    from ...planner.request.resolve import resolve

    resolved = resolve(load_request(path))
    terminal.show([f"{path}: a request for {resolved.model.name} on {resolved.cluster.name}, in order"])
    return CheckedFile(path, "request")


def _folder(terminal: Terminal, path: Path, to: str | None, version: str | None) -> CheckedFolder:
    """The folder held to the rules and, if these find nothing, given to the framework's own parser."""
    from ...errors import FieldProblem, InputError
    from ...planner.targets.check import check_files
    from ...planner.targets.post_training.check import of_post_training

    files = _read(path)
    if "plan.json" not in files and of_post_training(files):
        raise InputError(f"{path}: no plan.json, which files of post-training are compared with",
                         hint="keep the one that `emit` writes beside them")  # fmt: skip
    try:
        checked = check_files(files, to, version)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", hint=error.hint) from None
    for warning in checked.warnings:
        terminal.warn(warning)
    verdict = "not run" if checked.problems else _own_parser(checked.target, files)
    folder = CheckedFolder(
        path, checked.target, tuple(checked.problems), framework=checked.framework,
        layout_id=str(checked.layout) if checked.layout else None, own_parser=verdict,
        not_judged=tuple(checked.not_judged),
    )  # fmt: skip
    if folder.rejected:
        folder = replace(folder, problems=(FieldProblem(f"{checked.framework}: {verdict}"),))
    _show(terminal, folder)
    return folder


def _service(terminal: Terminal, path: Path, plan: ServingPlan, files: dict[str, str]) -> CheckedFolder:
    """Files of a deployment beside those of its plan."""
    from ...planner.targets.engines.check import check_service

    checked = check_service(plan, files)
    folder = CheckedFolder(
        path, str(plan.resolved["engine"]), tuple(checked.problems), framework=checked.framework,
        layout_id=checked.deployment_id, not_judged=tuple(checked.not_judged), noun="deployment",
    )  # fmt: skip
    _show(terminal, folder)
    return folder


def _placement(terminal: Terminal, path: Path) -> CheckedFolder:
    """Files of post-training beside those of their plan."""
    from ...planner.targets.post_training.check import check_rl
    from .. import reinforcement

    checked = check_rl(reinforcement.loaded(path / "plan.json"), _read(path))
    folder = CheckedFolder(path, checked.target, checked.problems, framework=checked.framework,
                           layout_id=checked.placement_id, noun="placement", not_judged=checked.not_judged)  # fmt: skip
    _show(terminal, folder)
    return folder


def _read(path: Path) -> dict[str, str]:
    """Name -> text of the files in a folder."""
    from ...errors import InputError

    try:
        return _texts([item for item in sorted(path.iterdir()) if item.is_file()])
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}", hint=_FOLDER) from None


def _texts(files: Sequence[Path]) -> dict[str, str]:
    """Name -> text."""
    from ...errors import InputError

    texts = dict[str, str]()
    for file in files:
        try:
            texts[file.name] = file.read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {reason(error)}", hint=_FOLDER) from None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise InputError(f"{file}, line {line}: not UTF-8 text", hint=_FOLDER) from None
    return texts


def _own_parser(target: str, files: dict[str, str]) -> str:
    """`accepted`, what the framework says against the files, or why it was not asked."""
    from ...planner.document.reading import read_plan
    from ...planner.targets.registry import target as load_target

    config = load_target(target).config
    if config is None or "plan.json" not in files:
        return "not run"
    installed, objection = config.parser.verdict(files, read_plan(files["plan.json"], "plan.json"), 1)
    return (objection or "accepted") if installed else "not installed"


_PARSER_WORDS = {
    "accepted": "; accepted by the framework's own parser",
    "not installed": "; the framework is not installed here: its own parser was not run",
}


def _show(terminal: Terminal, folder: CheckedFolder) -> None:
    title = f"{folder.path}: {folder.framework}"
    problems = folder.problems
    aside = text.wrapped(f"  not judged: {', '.join(folder.not_judged)}", hanging="    ")
    beside = [aside] if folder.not_judged else []
    if not problems:
        layout = f", {folder.noun} {folder.layout_id}" if folder.layout_id else ""
        terminal.show([f"{title}{layout}: in order{_PARSER_WORDS.get(folder.own_parser, '')}", *beside])
        return
    hints = list(dict.fromkeys(problem.hint for problem in problems if problem.hint))
    terminal.show([f"{title}: {len(problems)} problem{'s' if len(problems) > 1 else ''}",
                   *(f"  {problem}" for problem in problems), *beside,
                   *(f"  hint: {hint}" for hint in hints[:3])])  # fmt: skip
