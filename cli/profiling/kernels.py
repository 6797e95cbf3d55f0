"""`profile kernels` on a device that no catalogue knows: all that `plan` needs to price it, into one file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from .. import text
from ..console import Terminal, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...cost_models.problem import Problem
    from ...planner.request.load import Request
    from ...profiles.profilers.device_fit import InPlace
    from ...profiles.profilers.kernel_ranks import Ranks
    from ...profiles.profilers.kernels import Need
    from ...profiles.profilers.samples import Samples
    from ...runtime.rehearsal.layer_latency import Latency

TARGET = "meshwright"  # what trains on a CPU
PARAMETERS = 1 << 22  # of an update that is timed: past the caches of a CPU
TURNS = 3  # in which the parts of a model are timed one after the other: the machine may be slower in one of them
WHOLE_TURNS = 5  # of the whole model, which takes seconds only: what disturbs some of them may not show
BUSY = 0.9  # of its quota, that a rank gets where it is alone


def needs_of(request: Request, ranks: int) -> list[Need]:
    """The kernels of every sharding that a plan may choose."""
    from ...planner.request.resolve import unplaced
    from ...planner.search.shardings import shardings
    from ...profiles.profilers.kernels import needs

    problem, target = unplaced(request, ranks)
    return needs(problem, shardings(problem, target), PARAMETERS)


def measure(
    terminal: Terminal, request: Request, num_ranks: int, ranks: Ranks, where: Any, *, quick: bool,
    samples: Path | None, resume: bool,
) -> dict[str, Any]:  # fmt: skip
    """The document of a kernel profile with its `device`."""
    from ...planner.request.resolve import unplaced
    from ...profiles.profilers import device_fit, environment, kernel_profile, overlap, runners, timing
    from ...profiles.profilers.kernels import distinct, hardly_any
    from ...profiles.profilers.samples import Samples
    from ...runtime.rehearsal import custom_kernels

    problem, _ = unplaced(request, num_ranks)
    model, dtype = problem.model, request.workload.precision
    wanted = needs_of(request, num_ranks)
    name = ranks.devices[ranks.rank]
    about = {**environment.environment(where), "name": name}
    effort = timing.paced(timing.QUICK if quick else timing.FULL)
    if effort.pace is not None and effort.pace.achieved_share < BUSY * effort.pace.share:
        terminal.warn(f"this rank may take {effort.pace.share:.2f} of a core and got "
                      f"{effort.pace.achieved_share:.2f}: the machine has other work",
                      "alone its times are to be relied on")  # fmt: skip
    kept = Samples(samples, {**about, "dtype": dtype}, resume=resume)
    factories = custom_kernels.action_factories(model.activation, problem.workload.optimizer)
    own = runners.CustomKernels(factories, custom_kernels.WITH_FORWARD)
    kernels = list(distinct(wanted))
    calls = list(dict.fromkeys(map(hardly_any, kernels)))
    with terminal.progress("timing") as progress:
        latency = _latency(problem, where, effort, kept, ranks)
        measured = kernel_profile.measure([*calls, *kernels], dtype, where, effort, kept, progress, own, ranks)
    timed = device_fit.Timed(measured.spreads, latency)
    memory = environment.memory_bytes(where, int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks)))
    device = device_fit.device(timed, wanted, name=name, dtype=dtype, memory_bytes=memory)
    batches = [problem.workload.global_batch / (need.layout.dp * need.layout.micro_batch) for need in wanted]
    shown = kernel_profile.Measured({each: measured.spreads[each] for each in kernels if each in measured.spreads},
                                    measured.skipped)  # fmt: skip
    document = kernel_profile.document(shown, wanted, about, model=model.name, dtype=dtype, gpu=name, rates=None,
                                       num_micro_batches=batches)  # fmt: skip
    if (factors := _in_place(request, document, device, wanted, where, effort, kept, ranks)) is not None:
        device = device_fit.in_place(device, factors)
    beside = {"overlap": asdict(overlap.measure(where))} if len(ranks.devices) > 1 else {}
    return {**document, **beside, "device": device}


def _samples(key: str, kept: Samples, ranks: Ranks, time: Callable[[], list[float]]) -> list[float]:
    """Of `key`, those of all ranks of this device; as an earlier run kept them, if it did. All ranks must ask for the
    same; after a resume those that keep nothing have none."""
    from ...profiles.profilers.kernel_ranks import SAVED, TIME_IT

    if ranks.agree(SAVED if key in kept.by_key else TIME_IT) == TIME_IT:
        kept.add(key, ranks.of_this_device(time()))
    return kept.by_key.get(key, [])


def _latency(
    problem: Problem, where: Any, effort: Any, kept: Samples, ranks: Ranks
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """(forward, backward) seconds of layers that have hardly any data, of what they take more where they do more
    (`layer_latency.latencies`), and of a message at one of its ends."""
    from ...cost_models.quantities.element_bytes import activation_bytes
    from ...profiles.profilers import device_fit, messages, timing
    from ...runtime.rehearsal import layer_latency

    model, dtype = problem.model, problem.workload.precision

    in_turns = partial(timing.in_turns, device=where, effort=effort)
    turns = cache(lambda: [layer_latency.latencies(model, dtype, where, in_turns) for _ in range(TURNS)])
    found = dict[str, tuple[float, float]]()
    for name in layer_latency.parts_with_latency(model):
        if pairs := _samples(f"latency {name}", kept, ranks, partial(_flat, turns, name)):
            found[name] = device_fit.latency(pairs)
    if len(ranks.devices) > 1:
        num_bytes = int(problem.workload.seq_len * model.hidden * activation_bytes(problem.workload))
        share = effort.pace.share if effort.pace else 1.0
        if ends := _samples("latency message", kept, ranks, lambda: messages.seconds(num_bytes, share)):
            found["message"] = median(ends), median(ends)
    return found


def _flat(turns: Callable[[], list[dict[str, Latency]]], name: str) -> list[float]:
    """Forward, backward, forward, ... of every turn."""
    return [seconds for one in turns() for seconds in one[name]]


def _in_place(
    request: Request, document: Mapping[str, Any], device: Mapping[str, Any], wanted: list[Need], where: Any,
    effort: Any, kept: Samples, ranks: Ranks,
) -> InPlace | None:  # fmt: skip
    """What a whole model takes over what its parts are priced at, by the smallest and the largest micro-batch of a
    rank that has all of it: in the turn in which ranks were fastest, as what disturbs one only slows it. None where
    some part was not timed, or nobody trains it whole."""
    from ...planner.request.resolve import unplaced
    from ...profiles.profilers import device_fit, timing
    from ...runtime.rehearsal import layer_latency

    problem, _ = unplaced(request, 1)
    alone = [n.layout.micro_batch for n in wanted if n.layout.tp * n.layout.cp * n.layout.ep * n.layout.etp == 1]
    if problem.model.mtp_layers or not alone:
        return None
    sizes = list(dict.fromkeys((min(alone), max(alone))))
    makes = {size: partial(layer_latency.whole_model, problem.model, size, problem.workload.seq_len,
                           request.workload.precision, where) for size in sizes}  # fmt: skip

    @cache
    def turns() -> list[dict[int, float]]:
        return [{size: median(timing.sample(make, float("inf"), where, effort)) for size, make in makes.items()}
                for _ in range(WHOLE_TURNS)]  # fmt: skip

    def of_turns(size: int) -> list[float]:
        return [turn[size] for turn in turns()]

    measured = [_samples(f"whole model micro_batch={size}", kept, ranks, partial(of_turns, size)) for size in sizes]
    if not all(measured) or not {"gemm", "attention", "passes", "latency"} <= device.keys():
        return None
    both, work = ([_priced(request, {**document, "device": each}, size) for size in sizes]
                  for each in (device, device_fit.without_calls(device)))  # fmt: skip
    calls = [whole - part for whole, part in zip(both, work, strict=True)]
    best = [min(median(samples[turn::WHOLE_TURNS]) for turn in range(WHOLE_TURNS)) for samples in measured]
    return device_fit.InPlace.of(best, calls, work)


def _priced(request: Request, document: Mapping[str, Any], micro_batch: int) -> float:
    """Seconds of both passes of a micro-batch through the whole model, as `plan` prices them on the device."""
    from ...planner.api import evaluate
    from ...planner.request.load import changed_request
    from ...profiles.io.reader import read_document
    from ...profiles.profilers.kernel_file import profile_text

    profile = read_document("profile", text=profile_text(document, "2000-01-01", "")).data
    cluster = {"groups": [{"gpu": document["device"]["name"], "gpus_per_node": 1, "count": 1}], "profiles": [profile]}
    asked = changed_request(request, {("cluster",): cluster, ("workload", "global_batch"): micro_batch})
    (only,) = evaluate(asked, f"dp1-mbs{micro_batch}-z0-rnone-{request.workload.precision}").candidates
    return sum(term.seconds for term in only.terms if term.name != "optimizer")


def device_screen(document: Mapping[str, Any], saved_as: str | None) -> Iterator[RenderableType]:
    """The device as the planner prices it."""
    device = document["device"]
    yield ""
    yield f"{device['name']}, as `plan` prices it"
    rows = [("best product, GFLOP/s", text.significant(device.get("peak_flops_per_s", 0.0) / 1e9), "")]
    if "gemm" in device:
        rows.append(("products off their surface by (median)", text.share(device["residual"]), ""))
    if "attention" in device:
        rows.append(("attention, share of that", text.share(device["attention"]["forward_efficiency"]),
                     text.share(device["attention"]["backward_efficiency"])))  # fmt: skip
    for name, (forward, backward) in device["passes"].items():
        rows.append((f"{name}, GB/s", text.significant(forward / 1e9), text.significant(backward / 1e9)))
    for name, (forward, backward) in device["latency"].items():
        rows.append((f"{name} by itself, ms", text.significant(1e3 * forward), text.significant(1e3 * backward)))
    yield table("", "forward", "backward", rows=rows, right=("forward", "backward"))
    if "in_place" in device:
        factors = device["in_place"]
        yield text.wrapped(f"In a whole model, calls take {factors['calls']:.2f} times what they take by themselves "
                           f"and work {factors['work']:.2f} times; the numbers above are of the whole.")  # fmt: skip
    if beside := document.get("overlap"):
        yield text.wrapped(f"side by side: computing takes {beside['compute']:.2f} times as long, communicating "
                           f"{beside['communication']:.2f} times")  # fmt: skip
    if saved_as:
        yield text.wrapped(f"In a cluster file: `groups: [{{gpu: {device['name']}, gpus_per_node: 1, count: 1}}]` and "
                           f"`profiles: [{saved_as}]`")  # fmt: skip
