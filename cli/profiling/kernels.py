"""`profile kernels` on a device that no catalogue knows: all that `plan` needs to price it, into one file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from .. import text
from ..console import Terminal, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...cost_models.problem import Problem
    from ...planner.request.load import Request
    from ...profiles.profilers.device_fit import InPlace
    from ...profiles.profilers.kernel_ranks import Ranks
    from ...profiles.profilers.kernel_results import DeviceRates, KernelProfile
    from ...profiles.profilers.kernels import Need
    from ...profiles.profilers.samples import Samples
    from ...profiles.profilers.timing import Device, Effort
    from ...runtime.rehearsal.layer_latency import Latency

TARGET = "meshwright"  # what trains on a CPU
PARAMETERS = 1 << 22  # of an update that is timed: past the caches of a CPU
TURNS = 3  # in which the parts of a model are timed one after the other: the machine may be slower in one of them
WHOLE_TURNS = 5  # of the whole model, which takes seconds only: what disturbs some of them may not show
BUSY = 0.9  # of its quota, that a rank gets where it is alone


@dataclass(frozen=True)
class Session:
    """One run of the profiler on this rank."""

    request: Request
    problem: Problem  # of the request, on as many ranks as there are
    needs: list[Need]  # kernels of every layout that a plan may choose
    ranks: Ranks
    device: Device
    effort: Effort
    samples: Samples  # those that were taken, also by an interrupted run that this one resumes

    def seconds(self, key: str, measure: Callable[[], list[float]]) -> list[float]:
        """Samples of `key` of all ranks of this device, from the file if an earlier run saved them. All ranks must ask
        for the same key. After a resume, ranks that save nothing have no samples."""
        from ...profiles.profilers.kernel_ranks import SAVED, TIME_IT

        if self.ranks.agree(SAVED if key in self.samples.by_key else TIME_IT) == TIME_IT:
            self.samples.add(key, self.ranks.of_this_device(measure()))
        return self.samples.by_key.get(key, [])


def needs_of(request: Request, ranks: int) -> list[Need]:
    """The kernels of every sharding that a plan may choose."""
    from ...planner.request.resolve import unplaced
    from ...planner.search.shardings import shardings
    from ...profiles.profilers.kernels import needs

    problem, target = unplaced(request, ranks)
    return needs(problem, shardings(problem, target), PARAMETERS)


def measure(
    terminal: Terminal, request: Request, num_ranks: int, ranks: Ranks, device: Device, *, quick: bool,
    samples: Path | None, resume: bool,
) -> KernelProfile:  # fmt: skip
    """The kernel profile with its `device`."""
    from ...planner.request.resolve import unplaced
    from ...profiles.profilers import environment, overlap, timing
    from ...profiles.profilers.samples import Samples

    problem, _ = unplaced(request, num_ranks)
    about = {**environment.environment(device), "name": ranks.devices[ranks.rank]}
    effort = timing.paced(timing.QUICK if quick else timing.FULL)
    _warn_of_other_work(terminal, effort)
    saved = Samples(samples, {**about, "dtype": request.workload.precision}, resume=resume)
    session = Session(request, problem, needs_of(request, num_ranks), ranks, device, effort, saved)
    profile = _timed(terminal, session, about, num_ranks)
    if (factors := _in_place(session, profile)) is not None:
        from ...profiles.profilers import device_fit

        profile = replace(profile, device=device_fit.in_place(device_of(profile), factors))
    return replace(profile, overlap=asdict(overlap.measure(device)) if len(ranks.devices) > 1 else None)


def _warn_of_other_work(terminal: Terminal, effort: Effort) -> None:
    pace = effort.pace
    if pace is not None and pace.achieved_share < BUSY * pace.share:
        terminal.warn(f"this rank may take {pace.share:.2f} of a core and got {pace.achieved_share:.2f}: the machine "
                      "has other work", "alone its times are to be relied on")  # fmt: skip


def _timed(terminal: Terminal, session: Session, about: dict[str, str], num_ranks: int) -> KernelProfile:
    """Every kernel by itself, and the device that its times make."""
    from ...profiles.profilers import device_fit, environment, kernel_profile, runners
    from ...profiles.profilers.kernels import distinct, hardly_any
    from ...runtime.rehearsal import custom_kernels

    problem, needs = session.problem, session.needs
    dtype, name = session.request.workload.precision, about["name"]
    factories = custom_kernels.action_factories(problem.model.activation, problem.workload.optimizer)
    custom = runners.CustomKernels(factories, custom_kernels.WITH_FORWARD)
    kernels = list(distinct(needs))
    calls = list(dict.fromkeys(map(hardly_any, kernels)))
    with terminal.progress("timing") as progress:
        latency, message_bytes_per_s = _latency(session)
        measured = kernel_profile.measure([*calls, *kernels], dtype, session.device, session.effort, session.samples,
                                          progress, custom, session.ranks)  # fmt: skip
    memory = environment.memory_bytes(session.device, int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks)))
    timed = device_fit.Timed(measured.spreads, latency, message_bytes_per_s)
    rates = device_fit.device(timed, needs, name=name, dtype=dtype, memory_bytes=memory)
    batches = [problem.workload.global_batch / (need.layout.dp * need.layout.micro_batch) for need in needs]
    # The calls alone serve the fit only.
    shown = {kernel: measured.spreads[kernel] for kernel in kernels if kernel in measured.spreads}
    profile = kernel_profile.profile_of(kernel_profile.Measured(shown, measured.skipped), needs, about,
                                        model=problem.model.name, dtype=dtype, gpu=name, rates=None,
                                        num_micro_batches=batches)  # fmt: skip
    return replace(profile, device=rates)


def device_of(profile: KernelProfile) -> DeviceRates:
    """The device of a profile. Raises ValueError for a profile of a catalogued GPU, which has none."""
    if profile.device is None:
        raise ValueError("the profile describes no device")
    return profile.device


def _latency(session: Session) -> tuple[dict[str, tuple[float, float]], float]:
    """(forward, backward) seconds of layers that have hardly any data, of what they take more where they do more
    (`layer_latency.latencies`), and of a message at one of its ends; bytes/s of that message."""
    from ...cost_models.quantities.element_bytes import activation_bytes
    from ...profiles.profilers import device_fit, messages, timing
    from ...runtime.rehearsal import layer_latency

    problem, effort = session.problem, session.effort
    model, dtype = problem.model, problem.workload.precision
    in_turns = partial(timing.in_turns, device=session.device, effort=effort)

    @cache  # all parts are timed in the same turns
    def turns() -> list[dict[str, Latency]]:
        return [layer_latency.latencies(model, dtype, session.device, in_turns) for _ in range(TURNS)]

    latency = dict[str, tuple[float, float]]()
    for name in layer_latency.parts_with_latency(model):
        if pairs := session.seconds(f"latency {name}", partial(_flat, turns, name)):
            latency[name] = device_fit.latency(pairs)
    bytes_per_s = math.inf
    if len(session.ranks.devices) > 1:
        num_bytes = int(problem.workload.seq_len * model.hidden * activation_bytes(problem.workload))
        share = timing.share_of_a_core()
        if ends := session.seconds("message ends", lambda: messages.ends(num_bytes, share)):
            call_s, bytes_per_s = messages.line(ends, num_bytes)
            latency["message"] = (max(call_s, device_fit.NO_TIME),) * 2
    return latency, bytes_per_s


def _flat(turns: Callable[[], list[dict[str, Latency]]], name: str) -> list[float]:
    """Forward, backward, forward, ... of every turn."""
    return [seconds for turn in turns() for seconds in turn[name]]


def _in_place(session: Session, profile: KernelProfile) -> InPlace | None:
    """Factors of a whole model over the prices of its parts, by the smallest and the largest micro-batch of a rank that
    has all of it. The turn in which ranks were fastest counts, because a disturbance only slows a rank. None where some
    part was not timed, or no layout has the whole model on a rank."""
    from ...planner.request.resolve import unplaced
    from ...profiles.profilers import device_fit

    problem, _ = unplaced(session.request, 1)
    whole = [need.layout.micro_batch for need in session.needs
             if need.layout.tp * need.layout.cp * need.layout.ep * need.layout.etp == 1]  # fmt: skip
    if problem.model.mtp_layers or not whole:
        return None
    sizes = list(dict.fromkeys((min(whole), max(whole))))
    measured = _whole_model(session, problem, sizes)
    device = device_of(profile)
    if not all(measured) or device.gemm is None or device.attention is None:
        return None
    alone = device_fit.without_calls(device)
    priced = [_priced(session.request, profile, size) for size in sizes]
    work = [_priced(session.request, replace(profile, device=alone), size) for size in sizes]
    calls = [both - part for both, part in zip(priced, work, strict=True)]
    best = [min(median(samples[turn::WHOLE_TURNS]) for turn in range(WHOLE_TURNS)) for samples in measured]
    return device_fit.InPlace.of(best, calls, work)


def _whole_model(session: Session, problem: Problem, sizes: list[int]) -> list[list[float]]:
    """Samples of both passes of the whole model by each size of micro-batch, in turns."""
    from ...profiles.profilers import timing
    from ...runtime.rehearsal import layer_latency

    device, effort = session.device, session.effort
    seq_len, precision = problem.workload.seq_len, session.request.workload.precision
    actions = {size: partial(layer_latency.whole_model, problem.model, size, seq_len, precision, device)
               for size in sizes}  # fmt: skip

    @cache  # both sizes are timed in the same turns
    def turns() -> list[dict[int, float]]:
        return [{size: median(timing.sample(make, float("inf"), device, effort)) for size, make in actions.items()}
                for _ in range(WHOLE_TURNS)]  # fmt: skip

    def of_turns(size: int) -> list[float]:
        return [turn[size] for turn in turns()]

    return [session.seconds(f"whole model micro_batch={size}", partial(of_turns, size)) for size in sizes]


def _priced(request: Request, profile: KernelProfile, micro_batch: int) -> float:
    """Seconds of both passes of a micro-batch through the whole model, as `plan` prices them on the device."""
    from ...planner.api import evaluate
    from ...planner.request.load import changed_request
    from ...profiles.io.reader import read_document
    from ...profiles.profilers.kernel_file import profile_text

    facts = read_document("profile", text=profile_text(profile, "2000-01-01", "")).data
    cluster = {"groups": [{"gpu": device_of(profile).name, "gpus_per_node": 1, "count": 1}], "profiles": [facts]}
    single = changed_request(request, {("cluster",): cluster, ("workload", "global_batch"): micro_batch})
    (only,) = evaluate(single, f"dp1-mbs{micro_batch}-z0-rnone-{request.workload.precision}").candidates
    return sum(term.seconds for term in only.terms if term.name != "optimizer")


def device_screen(profile: KernelProfile, saved_as: str | None) -> Iterator[RenderableType]:
    """The device as the planner prices it."""
    device = device_of(profile)
    yield ""
    yield f"{device.name}, as `plan` prices it"
    yield _device_table(device)
    if device.in_place is not None:
        factors = device.in_place
        yield text.wrapped(f"In a whole model, calls take {factors['calls']:.2f} times what they take by themselves "
                           f"and work {factors['work']:.2f} times; the numbers above are of the whole.")  # fmt: skip
    if (overlap := profile.overlap) is not None:
        yield text.wrapped(f"side by side: computing takes {overlap['compute']:.2f} times as long, communicating "
                           f"{overlap['communication']:.2f} times")  # fmt: skip
    if saved_as:
        yield text.wrapped(f"In a cluster file: `groups: [{{gpu: {device.name}, gpus_per_node: 1, count: 1}}]` and "
                           f"`profiles: [{saved_as}]`")  # fmt: skip


def _device_table(device: DeviceRates) -> RenderableType:
    rows = [("best product, GFLOP/s", text.significant((device.peak_flops_per_s or 0.0) / 1e9), "")]
    if device.residual is not None:
        rows.append(("products off their surface by (median)", text.share(device.residual), ""))
    if device.attention is not None:
        rows.append(("attention, share of that", text.share(device.attention["forward_efficiency"]),
                     text.share(device.attention["backward_efficiency"])))  # fmt: skip
    for name, (forward, backward) in device.passes.items():
        rows.append((f"{name}, GB/s", text.significant(forward / 1e9), text.significant(backward / 1e9)))
    for name, (forward, backward) in device.latency.items():
        rows.append((f"{name} by itself, ms", text.significant(1e3 * forward), text.significant(1e3 * backward)))
    return table("", "forward", "backward", rows=rows, right=("forward", "backward"))
