"""A run of `meshwright launch` as its user sees it: its steps, its checks, its report."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import InputError
from .console import Terminal, to_json
from .files import write_file

if TYPE_CHECKING:
    from ..runtime.job import Job
    from ..runtime.nodes import Nodes
    from ..runtime.rehearsal.parity import Parity
    from ..runtime.report import Event, Recorder
    from ..runtime.restarts import Recovery
    from ..runtime.settings import Settings


_RECENT = 20  # steps that tell how long the rest takes


def show_notes(job: Job, notes: list[str], show_line: Callable[[str], None], *, scaled: bool) -> None:
    """Shows where the run differs from the plan, and the assumptions for fields that the model's config leaves open.
    scaled: whether its sizes were shrunk."""
    from ..runtime.reinforcement.job import RlJob
    from .screens import launch as screen

    for line in notes:
        show_line(f"{'scaled down' if scaled else 'not as planned'}: {line}")
    for line in job.model.assumptions:
        show_line(line)
    if job.model.is_moe and not isinstance(job, RlJob):
        show_line(screen.balancing_line(job))
    if job.images is not None:
        show_line(screen.images_line(job))
    if job.technique is not None:
        show_line(screen.technique_line(job))
    if job.model.dropouts:
        show_line(f"trained without dropout: the model's config has {', '.join(job.model.dropouts)}")


def run(
    terminal: Terminal, recorder: Recorder, settings: Settings, nodes: Nodes, recovery: Recovery, report: Path | None,
    *, force: bool,
) -> None:  # fmt: skip
    """Trains on this node. Node 0 checks the complete run and writes its report; exits with 1 where parity fails."""
    with _keeping_states(settings) as settings:
        _train(terminal, recorder, settings, nodes, recovery, report, force=force)
        if nodes.node_rank == 0:  # the others have no report of the whole run
            _finish(terminal, recorder, settings, report, force=force)


def check_planned_dtype(settings: Settings, nodes: Nodes) -> None:
    """Raises InputError where a check in the plan's dtype has checkpoints of its own or several nodes."""
    if not settings.planned_dtype:
        return
    if settings.checkpoint is not None:
        raise InputError("--planned-dtype keeps the states of every step in a folder of its own",
                         hint="leave out `--checkpoint`")  # fmt: skip
    if nodes.nnodes > 1:
        raise InputError(f"--planned-dtype compares the states of all ranks on one node, not on {nodes.nnodes}",
                         hint="leave out `--nnodes` and `--nproc-per-node`")  # fmt: skip


@contextmanager
def _keeping_states(settings: Settings) -> Iterator[Settings]:
    """Settings that keep the states of every step for a check in the plan's dtype, in a folder that is removed."""
    if not settings.planned_dtype:
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="meshwright-states-") as folder:
        yield replace(settings, checkpoint=folder, checkpoint_every=1, keep=settings.steps)


def _train(
    terminal: Terminal, recorder: Recorder, settings: Settings, nodes: Nodes, recovery: Recovery, report: Path | None,
    *, force: bool,
) -> None:  # fmt: skip
    """Runs all ranks of this node and shows their events. A run that stops early keeps its report all the same."""
    from ..runtime import restarts
    from ..runtime.report import event_line
    from .screens import launch as screen

    recent = deque[float](maxlen=_RECENT)  # seconds of the last steps

    def on_event(event: Event) -> None:
        if settings.planned_dtype and event["event"] == "checkpoint":
            return
        recorder.add(event)
        line = event_line(event, recorder.job)
        if event["event"] == "step":
            progress(event["step"], settings.steps, "steps")
            recent.append(event["step_s"])
            line += screen.left_text(settings.steps - event["step"], recent)
        if line:
            (terminal.warn if event["event"] in ("not_saved", "not_copied", "not_logged") else terminal.show_line)(line)

    try:
        with terminal.progress("training", bar=False) as progress:
            restarts.run(settings, nodes, recovery, on_event, terminal.verbose, terminal.talk, recorder.follow)
    except KeyboardInterrupt:
        recorder.stopped = "interrupted"
        terminal.talk(f"all ranks stopped after {len(recorder.steps)} finished steps")
        if settings.checkpoint:
            terminal.talk("steps since the last checkpoint are not saved: SIGTERM saves before the end, "
                          "`--checkpoint-every` more often")  # fmt: skip
        raise
    except Exception as error:
        recorder.stopped = str(error).splitlines()[0]
        raise
    finally:
        if recorder.stopped:
            _write(terminal, recorder.document(), report, force=force)


def _finish(
    terminal: Terminal, recorder: Recorder, settings: Settings, report: Path | None, *, force: bool
) -> None:  # fmt: skip
    more = _checked(terminal, recorder, settings)
    _write(terminal, recorder.document(**more), report, force=force)
    if terminal.settings.json:
        terminal.write(to_json(recorder.document(**more)))
    if settings.check_parity and not (more["parity"]["agrees"] and more["parity"]["memory_agrees"]):
        raise typer.Exit(1)


def _write(terminal: Terminal, document: dict[str, object], path: Path | None, *, force: bool) -> None:
    if path is not None:
        write_file(path, to_json(document), force=force)
        terminal.talk(f"report: {path}")


def _checked(terminal: Terminal, recorder: Recorder, settings: Settings) -> dict[str, Any]:
    """Memory beside the planner's, and losses beside the reference's: shown, and for the report."""
    from ..runtime.preparation import planned_job
    from ..runtime.rehearsal import parity, pricing
    from ..runtime.reinforcement.job import RlJob
    from .screens import launch as screen

    if isinstance(recorder.job, RlJob):
        moved = screen.moved_line(recorder.job, recorder.transfers or {})
        terminal.show([screen.calls_table(recorder.job, recorder.steps), screen.CALLS_PLANNED, *[moved] * bool(moved)])
        return {}
    if recorder.steps:
        terminal.show_line(screen.summary_line(recorder.steps, recorder.job))
    stages = pricing.predicted_bytes(recorder.job, on_gpu=recorder.on_gpu)
    predicted = [stage["allocated"] for stage in stages]
    memory = parity.compare_memory(recorder.peaks(), predicted)
    more: dict[str, Any] = {
        "memory": [
            {"stage": row.stage, "measured_bytes": row.measured_bytes, "predicted_bytes": row.predicted_bytes}
            for row in memory
        ]
    }
    if settings.check_parity:
        verdict = _compared(terminal, recorder, settings)
        missing = parity.not_exercised(planned_job(settings), recorder.job, verdict, as_trained=settings.as_trained)
        more["parity"] = {**verdict.as_dict(), "as_trained": settings.as_trained,
                          "planned_dtype": settings.planned_dtype, "memory_agrees": all(row.within for row in memory),
                          "not_exercised": missing}  # fmt: skip
        terminal.show([screen.parity_table(verdict)])
        terminal.show_line(screen.verdict_line(verdict))
        terminal.show_line(f"not exercised: {', '.join(missing)}")
    if recorder.exchanged is not None:
        terminal.show_line(screen.exchanged_line(recorder.job, recorder.exchanged))
    terminal.show([screen.memory_table(memory)])
    if settings.check_parity and not all(row.within for row in memory):
        terminal.warn(f"NOT the planned memory: it is off by more than {parity.MEMORY_TOLERANCE:.0%}")
    return more


def _compared(terminal: Terminal, recorder: Recorder, settings: Settings) -> Parity:
    """The steps of the run beside those of the same run in one process."""
    from ..runtime import launcher
    from ..runtime.failures import RunFailed
    from ..runtime.rehearsal import parity
    from ..runtime.report import not_saved_line

    if settings.planned_dtype and (unsaved := recorder.of("not_saved")):
        raise RunFailed(f"no comparison: {not_saved_line(unsaved[0])}",
                        hint="the folder for temporary files is too small: set TMPDIR to another")  # fmt: skip
    with terminal.progress("training the reference", bar=False):
        reference = launcher.reference_of(settings)
    steps = [(float(step["loss"]), float(step["gradient_norm"])) for step in recorder.steps]
    # A run that was resumed is compared from there on.
    return parity.compare(steps, reference.steps[len(reference.steps) - len(steps) :], reference.states)
