"""A run of `meshwright launch` as its user sees it: its steps, its checks, its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .console import Terminal, to_json
from .files import write_file

if TYPE_CHECKING:
    from ..runtime.job import Job
    from ..runtime.nodes import Nodes
    from ..runtime.report import Event, Recorder
    from ..runtime.restarts import Recovery
    from ..runtime.settings import Settings


def reference_steps(terminal: Terminal, settings: Settings) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step of the same run in one process."""
    from ..runtime import launcher

    with terminal.progress("training the reference", bar=False):
        return launcher.reference_steps(settings)


def show_notes(job: Job, notes: list[str], show_line: Callable[[str], None]) -> None:
    """Shows the sizes that were shrunk, and the assumptions for fields that the model's config leaves open."""
    from .screens import launch as screen

    for line in notes:
        show_line(f"scaled down: {line}")
    for line in job.model.assumptions:
        show_line(line)
    if job.model.is_moe:
        show_line(screen.balancing_line(job))
    if job.model.dropouts:
        show_line(f"trained without dropout: the model's config has {', '.join(job.model.dropouts)}")


def train(
    terminal: Terminal, recorder: Recorder, settings: Settings, nodes: Nodes, recovery: Recovery, report: Path | None,
    *, force: bool,
) -> None:  # fmt: skip
    """Runs all ranks of this node and shows their events. A run that stops early keeps its report all the same."""
    from ..runtime import restarts
    from ..runtime.report import event_line

    def on_event(event: Event) -> None:
        recorder.add(event)
        progress(len(recorder.steps), settings.steps, "steps")
        if line := event_line(event, recorder.job):
            (terminal.warn if event["event"] == "not_saved" else terminal.show_line)(line)

    try:
        with terminal.progress("training", bar=False) as progress:
            restarts.run(settings, nodes, recovery, on_event, terminal.verbose, terminal.talk, recorder.follow)
    except KeyboardInterrupt:
        recorder.stopped = "interrupted"
        terminal.talk(f"all ranks stopped after {len(recorder.steps)} finished steps")
        raise
    except Exception as error:
        recorder.stopped = str(error).splitlines()[0]
        raise
    finally:
        if recorder.stopped:
            _write(terminal, recorder.document(), report, force=force)


def finish(
    terminal: Terminal, recorder: Recorder, settings: Settings, reference: list[tuple[float, float]],
    report: Path | None, *, force: bool,
) -> None:  # fmt: skip
    """Shows the checks of a complete run and writes its report; exits with 1 where parity fails."""
    more = _checked(terminal, recorder, settings, reference)
    _write(terminal, recorder.document(**more), report, force=force)
    if terminal.settings.json:
        terminal.write(to_json(recorder.document(**more)))
    if settings.check_parity and not (more["parity"]["agrees"] and more["parity"]["memory_agrees"]):
        raise typer.Exit(1)


def _write(terminal: Terminal, document: dict[str, object], path: Path | None, *, force: bool) -> None:
    if path is not None:
        write_file(path, to_json(document), force=force)
        terminal.talk(f"report: {path}")


def _checked(
    terminal: Terminal,
    recorder: Recorder,
    settings: Settings,
    reference: list[tuple[float, float]],
) -> dict[str, Any]:
    """Memory beside the planner's, and losses beside the reference's: shown, and for the report."""
    from ..runtime.rehearsal import parity, pricing
    from ..runtime.settings import planned_job
    from .screens import launch as screen

    predicted = [stage["allocated"] for stage in pricing.predicted_bytes(recorder.job)]
    memory = parity.compare_memory(recorder.peaks(), predicted)
    more: dict[str, Any] = {
        "memory": [
            {"stage": row.stage, "measured_bytes": row.measured_bytes, "predicted_bytes": row.predicted_bytes}
            for row in memory
        ]
    }
    if settings.check_parity:
        steps = [(float(step["loss"]), float(step["gradient_norm"])) for step in recorder.steps]
        # A run that was resumed is compared from there on.
        verdict = parity.compare(steps, reference[len(reference) - len(steps) :],
                                 planned_dtype=settings.planned_dtype)  # fmt: skip
        missing = parity.not_exercised(planned_job(settings), recorder.job, verdict, as_trained=settings.as_trained)
        more["parity"] = {**verdict.as_dict(), "as_trained": settings.as_trained,
                          "planned_dtype": settings.planned_dtype, "memory_agrees": all(row.within for row in memory),
                          "not_exercised": missing}  # fmt: skip
        terminal.show([screen.parity_table(verdict)])
        terminal.show_line(screen.verdict_line(verdict))
        terminal.show_line(f"not exercised: {', '.join(missing)}")
    terminal.show([screen.memory_table(memory)])
    if settings.check_parity and not all(row.within for row in memory):
        terminal.warn(f"NOT the planned memory: it is off by more than {parity.MEMORY_TOLERANCE:.0%}")
    return more
