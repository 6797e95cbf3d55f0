"""`meshwright memory`: what a layout holds on each stage, buffer by buffer."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from .. import options, requests
from ..console import FORMAT_VERSION, Terminal
from ..flag import flag
from ..progress import Progress
from ..screens import memory as memory_screen

if TYPE_CHECKING:
    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan
    from ...planner.evaluation.conversion import Moved
    from ...planner.request.load import Request
    from ...planner.request.resolve import Resolved
    from ...runtime.rehearsal.traced import Comparison

Trace = Annotated[bool, flag("--trace", text="Check by running a step of the runtime on tensors without data.")]
Stage = Annotated[int | None, flag("--stage", metavar="N", text="Trace this stage only [one of each kind].")]


def command(
    context: typer.Context,
    source: options.RequestOrPlan = None,
    layout: options.LayoutId = None,
    choice: options.Choice = 1,
    model: options.Model = None,
    gpu: options.Gpu = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq_len: options.SeqLen = None,
    lengths: options.Lengths = None,
    packed: options.Packed = None,
    global_batch: options.GlobalBatch = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    lora: options.LoraOption = None,
    train_layers: options.TrainLayers = None,
    images: options.Images = None,
    freeze_tower: options.FreezeTower = None,
    freeze_language: options.FreezeLanguage = None,
    reference: options.Reference = None,
    reward_model: options.RewardModel = None,
    source_len: options.SourceLen = None,
    technique: options.Technique = None,
    max_memory: options.MaxMemory = None,
    headroom: options.Headroom = None,
    set_: options.SetOption = None,
    target: options.Target = None,
    stack: options.Stack = None,
    trace: Trace = False,
    stage: Stage = None,
) -> None:
    """Show the memory of a layout, per pipeline stage and buffer.

    The layout is named by its id (--layout) or by its number in a plan (--choice);
    else it is the layout that `plan` would choose. For a layout that is not the
    plan's, the last line has the time to move the states there. Exits with 1 if a
    layout of --layout does not fit. --trace needs torch but no GPU; it exits with
    1 if the traced peak differs by more than 5 %.

    \b
    Examples:
      meshwright memory request.yaml --layout tp8-dp1-mbs1-z1-rsel
      meshwright memory plan.json --choice 2
      meshwright memory plan.json --trace
    """
    from ...errors import InputError
    from ...planner import api
    from ...planner.drivers.given_layout import overflows

    flags = options.request_flags(context)
    terminal: Terminal = context.obj
    if stage is not None and not trace:
        raise InputError("--stage names the stage to trace", hint="add `--trace`")
    states = None
    if source is not None and requests.is_plan(source):
        loaded = api.load_plan(source)
        plan, candidate, evaluated = _of_plan(loaded, layout, choice)
        states = _moved(loaded, plan, candidate)
    else:
        built = requests.build(source, set_, flags)
        plan, candidate, evaluated = _of_request(terminal, built, layout, choice)
    traced = _traced(terminal, plan, candidate, stage, source.name if source else "plan") if trace else []
    if terminal.settings.json:
        terminal.write_json(memory_document(candidate, traced, states))
    terminal.show([*memory_screen.memory_screen(plan, candidate), *memory_screen.moved_lines(states)])
    requests.show_warnings(terminal, plan.warnings)
    if traced:
        _show_trace(terminal, plan, traced)
    if source is None or not requests.is_plan(source):
        requests.end_if_interrupted(terminal, plan)
    if evaluated is not None and overflows(evaluated, candidate):
        raise typer.Exit(1)


def _of_request(
    terminal: Terminal, request: Request, layout: str | None, choice: int
) -> tuple[Plan, Candidate, Resolved | None]:
    """A layout by its id, with what its request resolved to; else one of the layouts that `plan` would list."""
    from ...planner import api
    from ...planner.request.resolve import resolve

    if layout is not None:
        return _evaluated(resolve(request), layout)
    with terminal.progress("searching") as progress:
        plan = api.plan(request, progress=progress)
    return plan, requests.candidate(plan, choice), None


def _of_plan(plan: Plan, layout: str | None, choice: int) -> tuple[Plan, Candidate, Resolved | None]:
    """A layout of the plan, by its id or its number. A layout that the plan does not have is evaluated on its request:
    the last item is then what that resolved to."""
    from ...planner.request.load import request_from_dict
    from ...planner.request.resolve import resolve

    if layout is None:
        return plan, requests.candidate(plan, choice), None
    for candidate in plan.candidates:
        if candidate.layout_id == layout:
            return plan, candidate, None
    requests.candidate(plan, choice)  # a choice that the plan does not have is refused all the same
    return _evaluated(resolve(request_from_dict(plan.request)), layout)


def _moved(loaded: Plan, plan: Plan, candidate: Candidate) -> tuple[str, Moved] | None:
    """The layout that the plan chose, and its states moved to another one; None for that layout itself."""
    from ...planner.evaluation.conversion import moved_in

    chosen = loaded.best
    if chosen.layerwise is not None or candidate.layout_id == chosen.layout_id:
        return None
    states = moved_in(plan, candidate, chosen.to_layout())
    return None if states is None else (chosen.layout_id, states)


def _evaluated(resolved: Resolved, layout: str) -> tuple[Plan, Candidate, Resolved]:
    from ...planner.drivers.given_layout import evaluate_resolved

    plan = evaluate_resolved(resolved, layout)
    return plan, plan.best, resolved


def _traced(
    terminal: Terminal, plan: Plan, candidate: Candidate, stage: int | None, name: str
) -> list[Comparison]:
    """The traces of one stage, or of one of each kind, beside the plan's bytes."""
    from ...errors import InputError
    from ...planner.targets.emit import check_trained
    from ...runtime import launcher
    from ...runtime.job import job_of
    from ...runtime.rehearsal.traced import Comparison, distinct_stages

    check_trained(plan, "meshwright")
    job = job_of(plan, candidate.choice, name)
    if stage is not None and not 0 <= stage < job.layout.pp:
        raise InputError(f"--stage {stage}: {job.layout} has the stages 0 to {job.layout.pp - 1}",
                         hint="leave it out, and one stage of each kind is traced")  # fmt: skip
    launcher.check_torch("`memory --trace`")
    from ...runtime.rehearsal import dry_run

    stages = [stage] if stage is not None else distinct_stages(job)
    comparisons = []
    with terminal.progress("tracing") as progress:
        for done, index in enumerate(stages):
            progress(done, len(stages), f"stage {index}")
            planned = candidate.memory[index].model_dump()
            watch = partial(_report, progress, done, len(stages), index)
            comparisons.append(Comparison.of(dry_run.trace(job, index, watch=watch), planned))
    return comparisons


def _report(progress: Progress, done: int, total: int, stage: int, doing: str) -> None:
    progress(done, total, f"stage {stage}, {doing}")


def _show_trace(terminal: Terminal, plan: Plan, traced: list[Comparison]) -> None:
    """The tables; exits with 1 where the numbers disagree."""
    from ..screens import trace as trace_screen

    terminal.show(trace_screen.trace_screen(traced))
    stack = plan.resolved["stack"]["name"]
    disagree = not all(comparison.agrees for comparison in traced)
    if disagree and stack != "meshwright":
        terminal.warn(f"what was traced is our own runtime, the plan counts what {stack} keeps",
                      "plan with `--target meshwright` to compare like with like")  # fmt: skip
    if disagree:
        raise typer.Exit(1)


def memory_document(
    candidate: Candidate, traced: list[Comparison], states: tuple[str, Moved] | None
) -> dict[str, object]:  # fmt: skip
    """The JSON form: one item per stage, one per traced stage, and the states moved from the plan's layout."""
    trace = {"trace": [comparison.as_dict() for comparison in traced]} if traced else {}
    moved = {"moved": {"from": states[0], **asdict(states[1])}} if states else {}
    return {
        "format_version": FORMAT_VERSION,
        "kind": "memory",
        "layout_id": candidate.layout_id,
        "items": [stage.model_dump(mode="json") for stage in candidate.memory],
        **trace,
        **moved,
    }
