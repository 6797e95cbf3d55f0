"""`meshwright memory`: what a layout holds on each stage, buffer by buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import options, requests
from ..console import FORMAT_VERSION, Terminal
from ..screens import memory as memory_screen

if TYPE_CHECKING:
    from ...planner.document.plan import Plan
    from ...runtime.rehearsal.traced import Comparison


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
    technique: options.Technique = None,
    max_memory: options.MaxMemory = None,
    set_: options.SetOption = None,
    target: options.Target = None,
    stack: options.Stack = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Check it: run a step of the runtime on tensors without data.",
                           show_default=False)
    ] = False,
    stage: Annotated[
        int | None, typer.Option("--stage", metavar="N", help="Trace this stage only [one of each kind].",
                                 show_default=False)
    ] = None,
) -> None:
    """Show the memory of a layout, per pipeline stage and buffer.

    Of a layout by its id (--layout), of layout --choice of a plan file, or else
    of the layout that `plan` would choose. Exits with 1 where --layout names one
    that does not fit. --trace needs no GPU, but torch; it exits with 1 where the
    traced peak differs by more than 5 %.

    \b
    Examples:
      meshwright memory request.yaml --layout tp8-dp1-mbs1-z1-rsel
      meshwright memory plan.json --choice 2
      meshwright memory plan.json --trace
    """  # fmt: skip
    from ...errors import InputError
    from ...planner import api
    from ...planner.drivers.given_layout import evaluate_resolved, overflows
    from ...planner.request.load import request_from_dict
    from ...planner.request.resolve import resolve

    flags = options.RequestFlags(
        model=model, gpu=gpu, gpus=gpus, cluster=cluster, seq_len=seq_len, lengths=lengths, packed=packed,
        global_batch=global_batch, dtype=dtype, optimizer=optimizer, lora=lora, train_layers=train_layers,
        technique=technique, max_memory=max_memory, target=target, stack=stack,
    )  # fmt: skip
    terminal: Terminal = context.obj
    if stage is not None and not trace:
        raise InputError("--stage says which stage to trace", hint="add `--trace`")
    asked = None  # what --layout is evaluated for, unless the plan has it
    if source is not None and requests.is_plan(source):
        found = api.load_plan(source)
        choice = next((each.choice for each in found.candidates if each.layout_id == layout), choice)
        if layout is not None and requests.candidate(found.model_dump(mode="json"), choice)["layout_id"] != layout:
            asked = resolve(request_from_dict(found.request))
    elif layout is not None:
        asked = resolve(requests.build(source, set_, flags))
    else:
        with terminal.progress("searching") as progress:
            found = api.plan(requests.build(source, set_, flags), progress=progress)
    if asked is not None and layout is not None:
        found, choice = evaluate_resolved(asked, layout), 1
    document = found.model_dump(mode="json")
    candidate = requests.candidate(document, choice)
    traced = _traced(terminal, found, choice, stage, source.name if source else "plan") if trace else []
    if terminal.settings.json:
        terminal.write_json(memory_document(candidate, traced))
    terminal.show(memory_screen.memory_screen(document, candidate))
    requests.tell_warnings(terminal, document)
    if traced:
        _show_trace(terminal, found, traced)
    if asked is not None and overflows(asked, found.best):
        raise typer.Exit(1)


def _traced(terminal: Terminal, plan: Plan, choice: int, stage: int | None, name: str) -> list[Comparison]:
    """The traces of one stage, or of one of each kind, beside the plan's bytes."""
    from ...errors import InputError
    from ...planner.targets.emit import check_trained
    from ...runtime import launcher
    from ...runtime.job import job_of
    from ...runtime.rehearsal.traced import Comparison, distinct_stages

    check_trained(plan, "meshwright")
    job = job_of(plan, choice, name)
    if stage is not None and not 0 <= stage < job.layout.pp:
        raise InputError(f"--stage {stage}: {job.layout} has the stages 0 to {job.layout.pp - 1}",
                         hint="leave it out, and one stage of each kind is traced")  # fmt: skip
    launcher.check_torch("`memory --trace`")
    from ...runtime.rehearsal import dry_run

    stages, found = [stage] if stage is not None else distinct_stages(job), []
    with terminal.progress("tracing") as progress:
        for done, each in enumerate(stages):
            progress(done, len(stages), f"stage {each}")
            planned = plan.candidates[choice - 1].memory[each].model_dump()
            found.append(Comparison.of(dry_run.trace(job, each), planned))
    return found


def _show_trace(terminal: Terminal, plan: Plan, traced: list[Comparison]) -> None:
    """The tables; exits with 1 where the numbers disagree."""
    from ..screens import trace as trace_screen

    terminal.show(trace_screen.trace_screen(traced))
    stack = plan.resolved["stack"]["name"]
    disagree = [each for each in traced if not each.agrees]
    if disagree and stack != "meshwright":
        terminal.warn(f"what was traced is our own runtime, the plan counts what {stack} keeps",
                      "plan with `--target meshwright` to compare like with like")  # fmt: skip
    if disagree:
        raise typer.Exit(1)


def memory_document(candidate: dict[str, Any], traced: list[Comparison]) -> dict[str, Any]:
    """The JSON form: one item per stage, and one per traced stage."""
    more = {"trace": [each.as_dict() for each in traced]} if traced else {}
    return {
        "format_version": FORMAT_VERSION,
        "kind": "memory",
        "layout_id": candidate["layout_id"],
        "items": candidate["memory"],
        **more,
    }
