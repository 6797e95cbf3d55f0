"""`profile kernels` on a device that no catalogue knows: all that `plan` needs to price it, into one file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import text
from .console import Terminal, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..planner.request import Request
    from ..profiles.profilers.kernel_ranks import Ranks
    from ..profiles.profilers.kernels import Need
    from ..profiles.profilers.samples import Samples

TARGET = "meshwright"  # what trains on a CPU
PARAMETERS = 1 << 22  # of an update that is timed: past the caches of a CPU
BUSY = 0.9  # of its quota, that a rank gets where it is alone


def needs_of(request: Request, ranks: int) -> list[Need]:
    """The kernels of every sharding that a plan may choose."""
    from ..planner.resolve import unplaced
    from ..planner.shardings import shardings
    from ..profiles.profilers.kernels import needs

    problem, target = unplaced(request, ranks)
    return needs(problem, shardings(problem, target), PARAMETERS)


def measure(
    terminal: Terminal, request: Request, num_ranks: int, ranks: Ranks, where: Any, *, quick: bool,
    samples: Path | None, resume: bool,
) -> dict[str, Any]:  # fmt: skip
    """The document of a kernel profile with its `device`."""
    from ..planner.resolve import unplaced
    from ..profiles.profilers import device_fit, environment, kernel_profile, overlap, runners, timing
    from ..profiles.profilers.kernels import distinct, hardly_any
    from ..profiles.profilers.samples import Samples
    from ..runtime import own_kernels

    problem, _ = unplaced(request, num_ranks)
    model, dtype = problem.model, request.workload.precision
    wanted = needs_of(request, num_ranks)
    name = ranks.devices[ranks.rank]
    about = {**environment.environment(where), "name": name}
    effort = timing.paced(timing.QUICK if quick else timing.FULL)
    if effort.pace is not None and effort.pace.found < BUSY * effort.pace.share:
        terminal.warn(f"this rank may take {effort.pace.share:.2f} of a core and got {effort.pace.found:.2f}: the "
                      "machine has other work", "alone its times are to be relied on")  # fmt: skip
    kept = Samples(samples, {**about, "dtype": dtype}, resume=resume)
    own = runners.Own(own_kernels.makers(model.activation, problem.workload.optimizer), own_kernels.WITH_FORWARD)
    kernels = list(distinct(wanted))
    calls = list(dict.fromkeys(map(hardly_any, kernels)))
    with terminal.progress("timing") as progress:
        latency = _latency(model, dtype, where, effort, kept)
        measured = kernel_profile.measure([*calls, *kernels], dtype, where, effort, kept, progress, own, ranks)
    timed = device_fit.Timed(measured.spreads, latency)
    memory = environment.memory_bytes(where, int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks)))
    device = device_fit.device(timed, wanted, name=name, dtype=dtype, memory_bytes=memory)
    batches = [problem.workload.global_batch / (need.layout.dp * need.layout.micro_batch) for need in wanted]
    shown = kernel_profile.Measured({each: measured.spreads[each] for each in kernels if each in measured.spreads},
                                    measured.skipped)  # fmt: skip
    document = kernel_profile.document(shown, wanted, about, model=model.name, dtype=dtype, gpu=name, rates=None,
                                       num_micro_batches=batches)  # fmt: skip
    if (factor := _in_place(request, document, device, wanted, where, effort, kept, ranks)) is not None:
        device = device_fit.in_place(device, factor)
    beside = {"overlap": asdict(overlap.measure(where))} if len(ranks.devices) > 1 else {}
    return {**document, **beside, "device": device}


def _latency(
    model: Any, dtype: str, where: Any, effort: Any, kept: Samples
) -> dict[str, tuple[float, float]]:  # fmt: skip
    """(forward, backward) seconds of layers that have hardly any data; `kept` has them already after a resume."""
    from ..profiles.profilers import timing
    from ..profiles.profilers.samples import Spread
    from ..runtime import own_kernels

    before = {key.removeprefix("latency "): values for key, values in kept.found.items() if key.startswith("latency ")}
    if before:
        return {name: (values[0], values[1]) for name, values in before.items()}

    def seconds(action: Any) -> float:
        return Spread.of(timing.sample(lambda: action, float("inf"), where, effort)).median

    found = own_kernels.latencies(model, dtype, where, seconds)
    for name, one in found.items():
        kept.add(f"latency {name}", [one.forward, one.backward])
    return {name: (one.forward, one.backward) for name, one in found.items()}


def _in_place(
    request: Request, document: Mapping[str, Any], device: Mapping[str, Any], wanted: list[Need], where: Any,
    effort: Any, kept: Samples, ranks: Ranks,
) -> float | None:  # fmt: skip
    """What a whole model takes over what its parts are priced at, over the smallest and the largest micro-batch of a
    rank that has all of it; None where some part was not timed, or nobody trains it whole."""
    from ..planner.resolve import unplaced
    from ..profiles.profilers import timing
    from ..profiles.profilers.samples import Spread
    from ..runtime import own_kernels

    problem, _ = unplaced(request, 1)
    alone = [n.layout.micro_batch for n in wanted if n.layout.tp * n.layout.cp * n.layout.ep * n.layout.etp == 1]
    if problem.model.mtp_layers or not alone or not {"gemm", "attention", "passes", "latency"} <= device.keys():
        return None
    measured_s = priced_s = 0.0
    for size in dict.fromkeys((min(alone), max(alone))):
        key = f"whole model micro_batch={size}"
        if key not in kept.found:
            make = partial(own_kernels.whole, problem.model, size, problem.workload.seq_len,
                           request.workload.precision, where)  # fmt: skip
            ranks.agree("")
            kept.add(key, timing.sample(make, float("inf"), where, effort))
        measured_s += Spread.of(kept.found[key]).median
        priced_s += _priced(request, {**document, "device": device}, size)
    return measured_s / priced_s


def _priced(request: Request, document: Mapping[str, Any], micro_batch: int) -> float:
    """Seconds of both passes of a micro-batch through the whole model, as `plan` prices them on the device."""
    from ..planner.api import evaluate
    from ..planner.request import changed_request
    from ..profiles.profilers.kernel_file import profile_text
    from ..profiles.reader import read_document

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
        yield text.wrapped(f"All of the model at once takes {device['in_place']:.2f} times what its parts take by "
                           "themselves; the numbers above are of all at once.")  # fmt: skip
    if beside := document.get("overlap"):
        yield text.wrapped(f"side by side: computing takes {beside['compute']:.2f} times as long, communicating "
                           f"{beside['communication']:.2f} times")  # fmt: skip
    if saved_as:
        yield text.wrapped(f"In a cluster file: `groups: [{{gpu: {device['name']}, gpus_per_node: 1, count: 1}}]` and "
                           f"`profiles: [{saved_as}]`")  # fmt: skip
