"""`meshwright plan`: the fastest layout that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from .. import options, requests, tradeoffs
from ..console import Terminal, check_writable, write_file
from ..screens import plan as plan_screen


def command(
    context: typer.Context,
    request: options.RequestFile = None,
    model: options.Model = None,
    gpu: options.Gpu = None,
    gpus: options.GpuCounts = None,
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
    allow_technique: options.AllowTechnique = None,
    total_tokens: options.TotalTokens = None,
    objective: options.Objective = None,
    max_memory: options.MaxMemory = None,
    fix: options.FixOption = None,
    set_: options.SetOption = None,
    target: options.Target = None,
    stack: options.Stack = None,
    top: options.Top = None,
    pareto: options.Pareto = None,
    deadline: options.Deadline = None,
    stages: Annotated[
        Literal["even", "own"] | None,
        typer.Option("--stages", help="Divide the layers evenly, or place them best in the best pipelines (slower) "
                     "[even; over unlike groups of nodes by speed].", show_default=False),
    ] = None,
    layers: Annotated[
        Literal["alike", "own"],
        typer.Option("--layers", help="Give all layers one strategy, or look for one of its own for each as well."),
    ] = "alike",
    time_limit: Annotated[
        str | None,
        typer.Option("--time-limit", metavar="TIME", help="Stop with the best so far, as in 30s.", show_default=False),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of the orders of nodes tried where links differ [0].",
                          show_default=False)
    ] = 0,
    jobs: options.Jobs = 1,
    executor: options.Executor = None,
    output: options.Output = None,
    force: options.Force = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write the best layout's pipeline here, for Perfetto.", show_default=False
        ),
    ] = None,
) -> None:
    """Find the fastest layout that fits, and the runners-up.

    A request file, flags, or both: a flag wins over the file.

    \b
    Examples:
      meshwright plan --model llama-3.1-8b --gpu h100-sxm-80gb --gpus 8
      meshwright plan request.yaml --fix tp=8 --max-memory 70GiB -o plan.json
      meshwright plan request.yaml --pareto time,memory
      meshwright plan run.yaml --gpus 64..256 --deadline 90d
    """
    from ...cost_models import units
    from ...planner import api
    from ...planner.request.gpu_counts import parse_range

    flags = {name: value for name, value in locals().items() if name in _FLAGS}
    terminal: Terminal = context.obj
    numbers = None if gpus is None else parse_range(gpus)
    flags["gpus"] = None if gpus is None or numbers is not None else int(gpus.replace("_", ""))
    by_gpu = numbers is not None and gpu is not None and cluster is None
    if by_gpu and numbers is not None:  # a GPU alone is a request with a number of them
        flags["gpus"] = numbers.first
    asked = requests.build(request, set_, flags)
    if by_gpu:
        asked = asked.model_copy(update={"gpus": None})
    for path in (output, trace):
        if path is not None:
            check_writable(path, force=force)
    if trace is not None:
        from ...planner.explain.trace import check_drawn, chrome_trace, of_candidate

        check_drawn(asked, allow_technique or ())
    limit_s = None if time_limit is None else units.parse(time_limit, "s")
    if tradeoffs.asks(numbers, pareto, deadline):
        single = {"--trace": trace, "--stages own": stages == "own", "--layers own": layers == "own",
                  "--allow-technique": allow_technique}  # fmt: skip
        tradeoffs.refuse(single, output, deadline)
        deadline_s = None if deadline is None else units.parse(deadline, "s")
        how = {"jobs": jobs, "executor": executor, "time_limit_s": limit_s}
        tradeoffs.run(terminal, asked, numbers, pareto, deadline_s, top=top, output=output, force=force, **how)
        return
    with terminal.progress("searching") as progress:
        found = api.plan(asked, progress=progress, time_limit_s=limit_s, stages=stages, layers=layers, seed=seed,
                         jobs=jobs, executor=executor, allow_techniques=allow_technique or ())  # fmt: skip
    document: dict[str, Any] = found.model_dump(mode="json")
    if output is not None:
        write_file(output, found.to_json(), force=force)
    if trace is not None:
        write_file(trace, chrome_trace(of_candidate(asked, found.best)), force=force)
    if terminal.settings.json:
        terminal.write(found.to_json())
    terminal.show(plan_screen.plan_screen(document, unicode=terminal.unicode, saved_as=str(output) if output else None))
    requests.tell_warnings(terminal, document)
    if found.interrupted:
        terminal.interruption_told = True
        if found.certificate.stopped is not None:
            terminal.warn("interrupted: this is the best layout so far")
        raise typer.Exit(130)


_FLAGS = options.WORKLOAD_FLAGS | {"total_tokens", "objective", "max_memory", "fix", "target", "stack", "top"}
