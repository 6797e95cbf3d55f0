"""`plan --workload serve`: a deployment of an inference engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from . import requests
from .console import FORMAT_VERSION, Terminal
from .files import write_file
from .options import RequestFlags
from .screens import serving_plan as screen

if TYPE_CHECKING:
    from ..planner.accuracy.calibrate import Calibrated
    from ..planner.document.serving_plan import ServingPlan
    from ..planner.drivers.imported_service import ImportedService
    from ..planner.explain.serving import ServingExplanation
    from ..planner.request.serving import ServingRequest
    from ..planner.serving.from_bench import BenchCalibrationReport
    from ..planner.targets.emit import Emitted


_LENGTHS = (".csv", ".jsonl", ".txt", ".npy", ".npz", ".yaml", ".yml")  # files of lengths; plans are JSON


def tokens_or_file(flags: RequestFlags, given: Path | None) -> Path | None:
    """The file of -o and --output. `--output` stays in the flags as tokens of an answer where it is a number, a
    distribution, or a file that no plan is written to."""
    output = flags.get("output")
    if output is None or output[:1].isdigit() or Path(output).suffix.lower() in _LENGTHS:
        return given
    flags["output"] = None
    if given is not None:
        raise InputError(f"-o {given} and --output {output}: two files for one plan", hint="leave one of them out")
    return Path(output)


def refuse(options: Mapping[str, object]) -> None:
    """Refuses what goes with a training step, by name."""
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{given[0]} goes with a training step, not with this `--workload`", hint="leave it out")


def training_flags(flags: RequestFlags) -> dict[str, object]:
    """The flags that are given. Refuses those of serving, by name."""
    from ..planner.request.serving import SERVING_FLAT

    given = {name: value for name, value in flags.items() if value is not None}
    if wrong := [name for name in SERVING_FLAT if name in given]:
        raise InputError(f"--{wrong[0]} goes with vllm and sglang, not with a training config", hint="leave it out")
    return given


def emitted(
    plan: Path, to: str | None, launcher: str | None, version: str | None, choice: int, transfer: str | None
) -> Emitted:  # fmt: skip
    """The files of a deployment."""
    from ..planner.targets.engines.emit import emit_serving

    if version is not None:
        raise InputError("--target-version is for training; a serving plan is for one release", hint="leave it out")
    serving_plan = loaded(plan)
    engine = to or str(serving_plan.resolved["engine"])
    return emit_serving(serving_plan, engine, choice, launcher or "scripts", transfer or "nixl")


def loaded(path: Path) -> ServingPlan:
    """The plan in a file."""
    from ..planner.document.reading import load_serving_plan

    return load_serving_plan(path)


def explain(terminal: Terminal, plan: ServingPlan, choice: int) -> None:
    """Shows where the latencies of a deployment go, what binds, and what the others lack."""
    from ..planner.explain.serving import explain_serving
    from .screens import serving_explain

    explanation = requests.rounded(explain_serving(plan, choice))
    _write_explanation(terminal, plan, explanation, "serving-explanation")
    terminal.show(serving_explain.screen(plan, plan.candidate(choice), explanation))
    requests.show_warnings(terminal, plan.warnings)


def why_not(terminal: Terminal, plan: ServingPlan, name: str) -> None:
    """Shows another deployment beside the first of the plan."""
    from ..planner.explain.serving_why_not import compared
    from .screens import serving_explain

    comparison = requests.rounded(compared(plan, name))
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "serving-comparison",
                             "candidate": plan.best.model_dump(mode="json"),
                             **comparison.model_dump(mode="json")})  # fmt: skip
    terminal.show(serving_explain.why_not_screen(plan, comparison))


def report(terminal: Terminal, plan: ServingPlan, choice: int, output: Path, *, force: bool) -> None:
    """Writes the page of a deployment."""
    from ..planner.explain.serving import explain_serving
    from .pages.serving import serving_page

    explanation = requests.rounded(explain_serving(plan, choice))
    write_file(output, serving_page(plan, explanation), force=force)
    _write_explanation(terminal, plan, explanation, "serving-report")
    terminal.talk(f"Wrote {output}")
    requests.show_warnings(terminal, plan.warnings)


def _write_explanation(terminal: Terminal, plan: ServingPlan, explanation: ServingExplanation, kind: str) -> None:
    """The JSON form, where it is asked for."""
    if terminal.settings.json:
        terminal.write_json({
            "format_version": FORMAT_VERSION, "kind": kind, **explanation.model_dump(mode="json"),
            "candidate": plan.candidate(explanation.choice).model_dump(mode="json"),
            "certificate": plan.certificate.model_dump(mode="json"),
        })  # fmt: skip


def calibrated(
    reports: list[Path], plans: list[Path], instances: int | None
) -> Calibrated[BenchCalibrationReport]:  # fmt: skip
    """Numbers of an engine from reports of its benchmark."""
    from ..planner.serving.from_bench import calibrate_benches

    if len(plans) > 1:
        raise InputError(f"{len(plans)} plans: the reports are of the first deployment of one",
                         hint="give one `--plan`")  # fmt: skip
    return calibrate_benches(reports, loaded(plans[0]), instances)


def import_command(
    terminal: Terminal, kind: str, files: list[Path], flags: RequestFlags, arguments: list[str], output: Path | None,
    *, force: bool,
) -> None:  # fmt: skip
    """Reads a team's own command, and shows what serves more."""
    from ..planner.drivers.imported_service import import_service
    from ..planner.request.serving import read_rate
    from ..planner.targets.engines.registry import engine_target
    from .screens import serving_import

    with terminal.progress("searching"):
        imported = import_service(kind, files, flags, arguments)
    engine = engine_target(kind)
    if output is not None and imported.best is not None:
        write_file(output, imported.best.to_json(), force=force)
    if terminal.settings.json:
        terminal.write_json(_imported(imported, f"{kind} {engine.release}"))
    rate = flags.get("rate")
    saved_as = str(output) if output is not None and imported.best is not None else None
    asked = None if rate is None else read_rate(rate)
    terminal.show(serving_import.screen(imported, f"{kind} {engine.release}", asked, saved_as))


def _imported(imported: ImportedService, framework: str) -> dict[str, object]:
    service = imported.service
    return {
        "format_version": FORMAT_VERSION, "kind": "import", "framework": framework,
        "fix": imported.fix, "options_read": sum(len(command.read) for command in service.commands),
        "unknown": {name: line for command in service.commands for name, line in command.unknown.items()},
        "assumed": list(imported.assumed),
        "gaps": [{"message": gap.message, "file": gap.file, "line": gap.line, "field": gap.field}
                 for gap in service.gaps],
        "candidate": imported.theirs.best.model_dump(mode="json") if imported.theirs else None,
        "best": imported.best.best.model_dump(mode="json") if imported.best else None,
    }  # fmt: skip


def run(
    terminal: Terminal, request: ServingRequest, output: Path | None, *, force: bool, allow: Sequence[str] = ()
) -> None:  # fmt: skip
    """Plans, writes and shows."""
    from ..planner import api

    with terminal.progress("searching"):
        plan = api.plan_serving(request, allow_techniques=allow)
    requests.conclude(terminal, plan, output, lambda saved_as: screen.screen(plan, saved_as), force=force)
