"""`meshwright profile`: what this machine can do, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import options, requests
from ..console import FORMAT_VERSION, Terminal, check_writable, write_file

if TYPE_CHECKING:
    from ...planner.document.plan import Plan
    from ...planner.request.resolve import Resolved
    from ...profiles.profilers.kernels import Need

What = Annotated[
    str, typer.Argument(metavar="WHAT", help="What to measure: kernels, memory; links, storage.", show_default=False)
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the profile here, as YAML, and its "
                              "samples beside it.", show_default=False)
]  # fmt: skip
Device = Annotated[
    str, typer.Option("--device", metavar="auto|cuda|cpu", help="Where to measure [auto].", show_default=False)
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Fewer samples, and under 2 minutes in all.", show_default=False)
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on where an interrupted run stopped.", show_default=False)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be measured.", show_default=False)
]
PROFILERS = ("kernels", "memory")


def command(
    context: typer.Context,
    what: What,
    source: options.RequestOrPlan = None,
    layout: options.LayoutId = None,
    model: options.Model = None,
    gpu: options.Gpu = None,
    gpus: options.Gpus = None,
    cluster: options.Cluster = None,
    seq_len: options.SeqLen = None,
    global_batch: options.GlobalBatch = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    set_: options.SetOption = None,
    target: options.Target = None,
    device: Device = "auto",
    quick: Quick = False,
    resume: Resume = False,
    dry_run: DryRun = False,
    output: Output = None,
    force: options.Force = False,
) -> None:
    """Measure what this machine can do: one rank of the layouts that matter.

    kernels: every product, attention, norm, element-wise operation, optimizer
    step, embedding and loss of a model, forward and backward, in the shapes
    that the layouts of a plan give them (those that `plan` finds, or --layout),
    beside what the planner takes them to be. memory: trains the layouts for a
    few steps, and tells what tensors held, what the GPU's allocator reserved on
    top, and what was in use beside it. links: between GPUs and nodes, with
    options of its own (`profile links --help`), as storage and all; import: a cluster file out of what
    other tools print (`profile import --help`).

    \b
    Examples:
      meshwright profile kernels plan.json -o kernels.yaml
      meshwright profile kernels --model llama-3.2-1b --gpu h200 --gpus 1 --quick
      meshwright profile memory plan.json -o memory.yaml
    """
    flags = options.RequestFlags(model=model, gpu=gpu, gpus=gpus, cluster=cluster, seq_len=seq_len, dtype=dtype,
                                 global_batch=global_batch, optimizer=optimizer, target=target)  # fmt: skip
    terminal: Terminal = context.obj
    _check(what, output, device, resume=resume, force=force)
    from ..profiling import memory as memory_run
    from ..screens import profile as profile_screen

    if what == "kernels" and device == "cpu" and source is None and not gpu and not cluster and not layout:
        _device(terminal, flags, set_, output, quick=quick, resume=resume, dry_run=dry_run, force=force)
        return
    if dry_run:
        found, layouts, plan = _asked(source, layout, flags, "", set_)
        kernels = what == "kernels"
        terminal.show(profile_screen.needs_screen(_needs(found, layouts)) if kernels else
                      memory_run.dry_screen(plan, quick=quick))  # fmt: skip
        return
    from ...runtime import launcher

    launcher.check_torch("`profile`")
    if what == "memory":  # its ranks open the GPU, and nobody else: a second context would count
        _, _, plan = _asked(source, layout, flags, "", set_)
        _memory(terminal, plan, device, output, quick=quick, force=force)
        return
    from ...profiles.profilers import environment, timing

    where = timing.open_device(device)
    here = environment.gpu_of(where)
    found, layouts, _ = _asked(source, layout, flags, here, set_)
    document = _kernels(terminal, found, layouts, where, here, quick=quick, samples=_beside(output), resume=resume)
    if output is not None:
        _write(terminal, document, output, force=force)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, **document})
    terminal.show(profile_screen.kernels_screen(document, saved_as=str(output) if output else None))


def _device(
    terminal: Terminal, flags: options.RequestFlags, sets: list[str] | None, output: Path | None, *, quick: bool,
    resume: bool, dry_run: bool, force: bool,
) -> None:  # fmt: skip
    """No GPU is asked for: the CPU rank that this is, as a device of its own."""
    from ...runtime import launcher
    from ..profiling import kernels as kernels_run
    from ..screens import profile as profile_screen

    here = {"groups": [{"gpu": "cpu", "gpus_per_node": flags["gpus"] or 1, "count": 1}]}
    on_cpu: options.RequestFlags = {
        **flags, "gpus": None, "cluster": here, "target": flags["target"] or kernels_run.TARGET,
    }  # fmt: skip
    request, ranks = requests.build(None, sets, on_cpu), flags["gpus"] or 1
    if dry_run:
        terminal.show(profile_screen.needs_screen(kernels_run.needs_of(request, ranks)))
        return
    launcher.check_torch("`profile`")
    from ...profiles.profilers import environment, kernel_ranks, timing

    where = timing.open_device("cpu")
    timing.as_a_rank()
    with kernel_ranks.joined(environment.device_name(where)) as joined:
        if joined.is_of_another_device and output is not None:
            output = output.with_suffix(f".{joined.devices[joined.rank]}{output.suffix}")
        samples = _beside(output) if joined.writes else None
        document = kernels_run.measure(terminal, request, ranks, joined, where, quick=quick, samples=samples,
                                          resume=resume and joined.writes)  # fmt: skip
        if not joined.writes:
            return
    if output is not None:
        _write(terminal, document, output, force=force)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, **document})
    saved_as = str(output) if output else None
    terminal.show(profile_screen.kernels_screen(document, saved_as=saved_as))
    terminal.show(kernels_run.device_screen(document, saved_as))


def _check(what: str, output: Path | None, device: str, *, resume: bool, force: bool) -> None:
    from ...errors import InputError, UnknownNameError

    if what not in PROFILERS:
        raise UnknownNameError("thing to measure", what, PROFILERS)
    if device not in ("auto", "cuda", "cpu"):
        raise InputError(f"--device `{device}` is none of auto, cuda, cpu", hint="`--device auto`")
    if output is not None:
        check_writable(output, force=force)
    if resume and what != "kernels":
        raise InputError(f"--resume goes on with the samples of kernels, {what} has none", hint="leave it out")
    if resume and output is None:
        raise InputError("--resume goes on with the samples beside a profile", hint="name it: `-o kernels.yaml`")


def _asked(
    source: Path | None, layout: str | None, flags: options.RequestFlags, here: str, sets: list[str] | None
) -> tuple[Resolved, list[Any], Plan]:
    """The request, the layouts that are wanted, and their plan. A GPU that is here stands in where none is named."""
    from ...cost_models.layouts import parse
    from ...errors import InputError
    from ...planner import api
    from ...planner.request.load import request_from_dict
    from ...planner.request.resolve import resolve
    from ...profiles.profilers.kernels import DTYPES

    if source is not None and requests.is_plan(source):
        plan = api.load_plan(source)
        request = request_from_dict(plan.request)
    else:
        if here and not flags["gpu"] and not flags["cluster"] and source is None:
            flags = {**flags, "gpu": here}
        request = requests.build(source, sets, flags)
        plan = None
    dtype = request.workload.precision
    if dtype not in DTYPES:
        raise InputError(f"{dtype} products are not timed yet", hint="`--dtype bf16` times the same shapes in bf16")
    if layout is not None:
        plan = api.evaluate(request, layout)
    plan = plan or api.plan(request)
    return resolve(request), [parse(each.layout_id) for each in plan.candidates], plan


def _beside(output: Path | None) -> Path | None:
    return None if output is None else output.with_suffix(".samples.csv")


def _needs(resolved: Resolved, layouts: list[Any]) -> list[Need]:
    from ...profiles.profilers.kernels import needs

    return needs(resolved.problem, layouts)


def _kernels(
    terminal: Terminal, resolved: Resolved, layouts: list[Any], where: Any, here: str, *, quick: bool,
    samples: Path | None, resume: bool,
) -> dict[str, Any]:  # fmt: skip
    from ...profiles.profilers import environment, kernel_profile, timing
    from ...profiles.profilers.kernels import distinct
    from ...profiles.profilers.samples import Samples

    dtype = resolved.workload.precision
    same = here == resolved.cluster.gpu.name
    if not same:
        terminal.warn(f"this is {here or 'no GPU of the catalogue'}, the request is for {resolved.cluster.gpu.name}",
                      "the times stand for this machine alone, and no price stands beside them")  # fmt: skip
    about = environment.environment(where)
    wanted = _needs(resolved, layouts)
    kept = Samples(samples, {**about, "dtype": dtype}, resume=resume)
    with terminal.progress("timing") as progress:
        effort = timing.QUICK if quick else timing.FULL
        measured = kernel_profile.measure(list(distinct(wanted)), dtype, where, effort, kept, progress)
    batches = [resolved.workload.global_batch / (each.dp * each.micro_batch) for each in layouts]
    return kernel_profile.document(
        measured, wanted, about, model=resolved.model.name, dtype=dtype, gpu=here,
        rates=resolved.rates if same else None, num_micro_batches=batches,
        bandwidth=resolved.cluster.gpu.memory_bw_bytes_per_s,
    )  # fmt: skip


def _memory(
    terminal: Terminal, plan: Plan, device: str, output: Path | None, *, quick: bool, force: bool
) -> None:  # fmt: skip
    from ..profiling import memory as memory_run

    document = memory_run.measure(terminal, plan, device, quick=quick)
    if output is not None:
        write_file(output, memory_run.profile_text(document, today()), force=force)
        terminal.talk(f"profile: {output}")
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, **document})
    terminal.show(memory_run.screen(document, saved_as=str(output) if output else None))


def today() -> str:
    """The date of a profile."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()


def _write(terminal: Terminal, document: dict[str, Any], output: Path, *, force: bool) -> None:
    from ...profiles.profilers.kernel_file import profile_text

    samples = _beside(output)
    text = profile_text(document, today(), samples.name if samples else "")
    write_file(output, text, force=force)
    terminal.talk(f"profile: {output}, samples: {samples}")
