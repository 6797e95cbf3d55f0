"""`meshwright profile`: what this machine can do, measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import options, requests
from ..console import FORMAT_VERSION, Terminal
from ..files import check_writable, write_file
from ..flag import flag

if TYPE_CHECKING:
    from ...cost_models.layouts import Layout
    from ...planner.document.plan import Plan
    from ...planner.request.resolve import Resolved
    from ...profiles.profilers.kernel_results import KernelProfile
    from ...profiles.profilers.kernels import Need
    from ...profiles.profilers.timing import Device as TorchDevice

What = Annotated[
    str, typer.Argument(metavar="WHAT", help="Part to measure: kernels, memory; links, storage.",
                        autocompletion=options.of_choices("kernels", "memory", "links", "storage", "all", "import"),
                        show_default=False)
]
Output = Annotated[
    Path | None,
    flag("-o", "--output", metavar="FILE", text="Write the profile here, as YAML, and its samples beside it."),
]
Device = Annotated[str, flag("--device", metavar="auto|cuda|cpu", text="Device to measure [auto].")]
Quick = Annotated[bool, flag("--quick", text="Take fewer samples, under 2 minutes in all.")]
Resume = Annotated[bool, flag("--resume", text="Resume an interrupted run.")]
DryRun = Annotated[bool, flag("--dry-run", text="Show what would be measured.")]
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
    """Measure this machine: one rank of the layouts of a plan.

    kernels times all operations of a model, forward and backward, in the shapes
    of a plan's layouts (or of --layout), and compares them with the planner.
    memory trains the layouts for a few steps and reports the bytes of tensors,
    the bytes reserved by the GPU's allocator, and other bytes in use. links,
    storage, all and import have their own options (`profile links --help`).

    \b
    Examples:
      meshwright profile kernels plan.json -o kernels.yaml
      meshwright profile kernels --model llama-3.2-1b --gpu h200 --gpus 1 --quick
      meshwright profile memory plan.json -o memory.yaml
    """
    run(context.obj, what, source, layout, options.request_flags(context), set_, output, device, quick=quick,
        resume=resume, dry_run=dry_run, force=force)  # fmt: skip


def run(
    terminal: Terminal, what: str, source: Path | None, layout: str | None, flags: options.RequestFlags,
    set_: list[str] | None, output: Path | None, device: str, *, quick: bool, resume: bool, dry_run: bool, force: bool,
) -> None:  # fmt: skip
    """Measures kernels or memory of one rank. flags: those of the request that `source` does not have."""
    _check(what, output, device, resume=resume, force=force)
    from ..profiling import memory as memory_run
    from ..screens import profile as profile_screen

    named = source is not None or flags["gpu"] or flags["cluster"] or layout
    if what == "kernels" and device == "cpu" and not named:
        _device(terminal, flags, set_, output, quick=quick, resume=resume, dry_run=dry_run, force=force)
        return
    if dry_run:
        subject = _subject(source, layout, flags, "", set_)
        terminal.show(profile_screen.needs_screen(_needs(subject)) if what == "kernels" else
                      memory_run.dry_screen(subject.plan, quick=quick))  # fmt: skip
        return
    from ...runtime import launcher

    launcher.check_torch("`profile`")
    if what == "memory":  # its ranks open the GPU, and nobody else: a second context would count
        _memory(terminal, _subject(source, layout, flags, "", set_).plan, device, output, quick=quick, force=force)
        return
    from ...profiles.profilers import environment, timing

    opened = timing.open_device(device)
    gpu_here = environment.gpu_of(opened)
    subject = _subject(source, layout, flags, gpu_here, set_)
    profile = _kernels(terminal, subject, opened, gpu_here, quick=quick, samples=_beside(output), resume=resume)
    _finish(terminal, profile, output, force=force)


@dataclass(frozen=True)
class Subject:
    """The subject of a profile: a request, and the layouts of its plan."""

    resolved: Resolved
    plan: Plan

    @property
    def layouts(self) -> list[Layout]:
        from ...cost_models.layouts import parse

        return [parse(candidate.layout_id) for candidate in self.plan.candidates]


def _device(
    terminal: Terminal, flags: options.RequestFlags, sets: list[str] | None, output: Path | None, *, quick: bool,
    resume: bool, dry_run: bool, force: bool,
) -> None:  # fmt: skip
    """Profiles this CPU rank as a device of its own: no GPU was named."""
    from ...runtime import launcher
    from ..profiling import kernels as kernels_run
    from ..screens import profile as profile_screen

    this_cpu = {"groups": [{"gpu": "cpu", "gpus_per_node": flags["gpus"] or 1, "count": 1}]}
    on_cpu: options.RequestFlags = {
        **flags, "gpus": None, "cluster": this_cpu, "target": flags["target"] or kernels_run.TARGET,
    }  # fmt: skip
    request, ranks = requests.build(None, sets, on_cpu), flags["gpus"] or 1
    if dry_run:
        terminal.show(profile_screen.needs_screen(kernels_run.needs_of(request, ranks)))
        return
    launcher.check_torch("`profile`")
    from ...profiles.profilers import environment, kernel_ranks, timing

    cpu = timing.open_device("cpu")
    timing.as_a_rank()
    with kernel_ranks.joined(environment.device_name(cpu)) as joined:
        if joined.is_of_another_device and output is not None:
            output = output.with_suffix(f".{joined.devices[joined.rank]}{output.suffix}")
        samples = _beside(output) if joined.writes else None
        profile = kernels_run.measure(terminal, request, ranks, joined, cpu, quick=quick, samples=samples,
                                      resume=resume and joined.writes)  # fmt: skip
    if joined.writes:
        _finish(terminal, profile, output, force=force)
        terminal.show(kernels_run.device_screen(profile, str(output) if output else None))


def _finish(terminal: Terminal, profile: KernelProfile, output: Path | None, *, force: bool) -> None:
    """Writes the profile and shows it."""
    from ..screens import profile as profile_screen

    if output is not None:
        _write(terminal, profile, output, force=force)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, **profile.to_dict()})
    terminal.show(profile_screen.kernels_screen(profile, saved_as=str(output) if output else None))


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


def _subject(
    source: Path | None, layout: str | None, flags: options.RequestFlags, gpu_here: str, sets: list[str] | None
) -> Subject:
    """The request with the layouts that are wanted. A GPU that is here stands in where none is named."""
    from ...errors import InputError
    from ...planner import api
    from ...planner.request.load import request_from_dict
    from ...planner.request.resolve import resolve
    from ...profiles.profilers.kernels import DTYPES

    plan = None
    if source is not None and requests.is_plan(source):
        plan = api.load_plan(source)
        request = request_from_dict(plan.request)
    else:
        if gpu_here and not flags["gpu"] and not flags["cluster"] and source is None:
            flags = {**flags, "gpu": gpu_here}
        request = requests.build(source, sets, flags)
    dtype = request.workload.precision
    if dtype not in DTYPES:
        raise InputError(f"{dtype} products are not timed yet", hint="`--dtype bf16` times the same shapes in bf16")
    if layout is not None:
        plan = api.evaluate(request, layout)
    return Subject(resolve(request), plan or api.plan(request))


def _beside(output: Path | None) -> Path | None:
    """The file of the samples of a profile."""
    return None if output is None else output.with_suffix(".samples.csv")


def _needs(subject: Subject) -> list[Need]:
    from ...profiles.profilers.kernels import needs

    return needs(subject.resolved.problem, subject.layouts)


def _kernels(
    terminal: Terminal, subject: Subject, device: TorchDevice, gpu_here: str, *, quick: bool, samples: Path | None,
    resume: bool,
) -> KernelProfile:  # fmt: skip
    """Times the kernels of the layouts. They are priced where the device is the one that the request names."""
    from ...profiles.profilers import environment, kernel_profile, timing
    from ...profiles.profilers.kernels import distinct
    from ...profiles.profilers.samples import Samples

    resolved = subject.resolved
    dtype, gpu = resolved.workload.precision, resolved.cluster.gpu
    same = gpu_here == gpu.name
    if not same:
        terminal.warn(f"this is {gpu_here or 'no GPU of the catalogue'}, the request is for {gpu.name}",
                      "the times stand for this machine alone, and no price stands beside them")  # fmt: skip
    about = environment.environment(device)
    needs = _needs(subject)
    saved = Samples(samples, {**about, "dtype": dtype}, resume=resume)
    with terminal.progress("timing") as progress:
        effort = timing.QUICK if quick else timing.FULL
        measured = kernel_profile.measure(list(distinct(needs)), dtype, device, effort, saved, progress)
    batches = [resolved.workload.global_batch / (layout.dp * layout.micro_batch) for layout in subject.layouts]
    return kernel_profile.profile_of(
        measured, needs, about, model=resolved.model.name, dtype=dtype, gpu=gpu_here,
        rates=resolved.rates if same else None, num_micro_batches=batches, bandwidth=gpu.memory_bw_bytes_per_s,
    )  # fmt: skip


def _memory(
    terminal: Terminal, plan: Plan, device: str, output: Path | None, *, quick: bool, force: bool
) -> None:  # fmt: skip
    from ..profiling import memory as memory_run

    profile = memory_run.measure(terminal, plan, device, quick=quick)
    if output is not None:
        write_file(output, memory_run.profile_text(profile, today()), force=force)
        terminal.talk(f"profile: {output}")
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, **profile.to_dict()})
    terminal.show(memory_run.screen(profile, saved_as=str(output) if output else None))


def today() -> str:
    """The date of a profile."""
    from datetime import UTC, datetime

    return datetime.now(UTC).date().isoformat()


def _write(terminal: Terminal, profile: KernelProfile, output: Path, *, force: bool) -> None:
    from ...profiles.profilers.kernel_file import profile_text

    samples = _beside(output)
    text = profile_text(profile, today(), samples.name if samples else "")
    write_file(output, text, force=force)
    terminal.talk(f"profile: {output}, samples: {samples}")
