"""What a report on a plan holds beyond the plan itself: its pipeline over time, where its ranks sit, what binds it, and
where every number comes from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...cost_models.layouts import Layout
from ...cost_models.schedules.orders import LETTERS
from ...cost_models.schedules.simulator import Timeline
from ...errors import InputError
from ...profiles.io import registry
from ...profiles.rates.device_rates import surfaces_for
from ...profiles.rates.link_rates import collective_rates, with_measured
from ...profiles.stack.rates import overheads
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..evaluation.staged import Staged
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from ..studies.base import Part
from ..studies.pricing import Priced, of_candidate
from ..studies.sensitivity import Sensitivity
from ..studies.what_if import chosen, refuse_groups, what_if

_MOST_OPERATIONS = 2400  # drawn; a longer step shows its begin and its end
_USED = ("peak", "memory", "sms", "tdp", "link", "pcie", "nics", "fabric", "intra", "host_memory", "price",
         "gpus_per_node", "host_memory_bandwidth", "domain")  # fmt: skip


class Operation(Part):
    """One block of the picture: seconds, and its letter (F forward, B backward, I and W its two halves)."""

    stage: int
    start_s: float
    end_s: float
    letter: str
    chunk: int
    micro_batch: int


class Window(Part):
    """A part of the step that is drawn."""

    start_s: float
    end_s: float
    operations: tuple[Operation, ...]


class PipelineChart(Part):
    """The step as simulated. idle: share of the makespan, per stage."""

    step_s: float
    closed_form_s: float
    makespan_s: float
    num_stages: int
    num_micro_batches: int
    idle: tuple[float, ...]
    windows: tuple[Window, ...]


class Seat(Part):
    """A GPU of the first node: its rank and coordinates along the axes."""

    rank: int
    tp: int
    cp: int
    dp: int
    pp: int


class StageSeats(Part):
    """Ranks and nodes [first, last] of a pipeline stage."""

    stage: int
    ranks: tuple[int, int]
    nodes: tuple[int, int]


class Fact(Part):
    """A number behind the plan, as its file states it."""

    of: str
    name: str
    value: str
    source: str
    confirmed: bool = True


class Report(Part):
    """See the module."""

    choice: int
    priced: Priced
    pipeline: PipelineChart | None
    seats: tuple[Seat, ...]
    stages: tuple[StageSeats, ...]
    sensitivity: Sensitivity
    facts: tuple[Fact, ...]
    warnings: tuple[str, ...]


def report(plan: Plan, choice: int = 1) -> Report:
    """The report on layout `choice`. Raises InputError if the plan has no such layout, or names what is not there."""
    candidate, resolved = chosen(plan, choice), resolve(request_from_dict(plan.request))
    refuse_groups(candidate, "a report")
    layout = candidate.to_layout()
    study = what_if(plan, study="sensitivity", choice=choice)
    if not isinstance(study, Sensitivity):
        raise InputError("the study of sensitivity gave something else")
    return Report(
        choice=choice, priced=of_candidate(resolved, candidate), pipeline=_pipeline(resolved, candidate),
        seats=_seats(resolved, layout), stages=_stages(resolved, layout), sensitivity=study,
        facts=tuple(facts(resolved)), warnings=study.warnings,
    )  # fmt: skip


def _pipeline(resolved: Resolved, candidate: Candidate) -> PipelineChart | None:
    """The simulated step; None where it is not simulated (`Staged.is_simulated`)."""
    staged = Staged.of(resolved, candidate.to_layout(), candidate.partition, simulate=True)
    if not staged.is_simulated:
        return None
    timeline = staged.timeline
    idle = 1.0 - timeline.busy_s / max(timeline.makespan_s, 1e-300)
    return PipelineChart(
        step_s=staged.step_s, closed_form_s=staged.closed_s, makespan_s=timeline.makespan_s,
        num_stages=staged.layout.pp, num_micro_batches=timeline.schedule.num_micro_batches, idle=tuple(idle.tolist()),
        windows=tuple(_windows(timeline)),
    )  # fmt: skip


def _windows(timeline: Timeline) -> Iterator[Window]:
    """The whole step, or as much of its begin and its end as has few enough operations to be told apart."""
    total, count = float(timeline.end_s.max(initial=0.0)), len(timeline.start_s)
    if count <= _MOST_OPERATIONS:
        spans = [(0.0, total)]
    else:
        part = total * _MOST_OPERATIONS / count / 2
        spans = [(0.0, part), (total - part, total)]
    s = timeline.schedule
    for low, high in spans:
        inside = np.flatnonzero((timeline.end_s > low) & (timeline.start_s < high))
        yield Window(start_s=low, end_s=high, operations=tuple(
            Operation(stage=int(s.device_of_op[op]), start_s=max(float(timeline.start_s[op]), low),
                      end_s=min(float(timeline.end_s[op]), high), letter=LETTERS[int(s.kind[op])],
                      chunk=int(s.chunk[op]), micro_batch=int(s.micro_batch[op]))
            for op in inside.tolist()))  # fmt: skip


def _seats(resolved: Resolved, layout: Layout) -> tuple[Seat, ...]:
    """The GPUs of the first node; ranks run along tp first, then cp, dp and pp."""
    out = []
    for rank in range(min(resolved.cluster.gpus_per_node, layout.num_gpus)):
        rest, tp = divmod(rank, layout.tp)
        rest, cp = divmod(rest, layout.cp)
        pp, dp = divmod(rest, layout.dp)
        out.append(Seat(rank=rank, tp=tp, cp=cp, dp=dp, pp=pp))
    return tuple(out)


def _stages(resolved: Resolved, layout: Layout) -> tuple[StageSeats, ...]:
    per_stage, node = layout.num_gpus // layout.pp, resolved.cluster.gpus_per_node
    return tuple(
        StageSeats(stage=stage, ranks=(stage * per_stage, (stage + 1) * per_stage - 1),
                   nodes=(stage * per_stage // node, ((stage + 1) * per_stage - 1) // node))
        for stage in range(layout.pp)
    )  # fmt: skip


def facts(resolved: Resolved) -> Iterator[Fact]:
    """Every number of hardware and software behind the plan, with its source."""
    for kind, names in (("GPU", [group.gpu.name for group in resolved.cluster.groups]),
                        ("node", [group.node for group in resolved.cluster.groups])):  # fmt: skip
        for name in dict.fromkeys(names):
            yield from _of_file(kind, name)
    fabric = with_measured(collective_rates(), resolved.cluster.collectives)
    for level in resolved.cluster.levels:
        rates = fabric.level(level.kind, 0 if level is resolved.cluster.levels[0] else 1)
        bandwidth = f"{level.bw_bytes_per_s / 1e9:.4g} GB/s per GPU, {level.latency_s * 1e6:.3g} us"
        yield Fact(of=f"links: {level.name}", name=level.kind, value=bandwidth, source=level.source)
        yield Fact(of=f"links: {level.name}", name="efficiencies of collectives", value="", source=rates.source)
    device = surfaces_for(resolved.cluster.gpu)
    yield Fact(of="efficiencies", name="matrix products", value="", source=device.provenance)
    yield Fact(of="efficiencies", name="attention", value="", source=device.attention_provenance)
    for name, source in device.sources.items():
        yield Fact(of="efficiencies", name=name.replace("_", " "), value="", source=source)
    for name, source in resolved.stack.sources.items():
        value = getattr(resolved.stack, name)
        yield Fact(of=f"software: {resolved.stack.name}", name=name, value=f"{value}", source=source)
    beside = overheads()
    reserve = f"{beside.context_bytes / 2**30:.3g} GiB context, {beside.reserve_share:.1%} reserve"
    yield Fact(of="memory", name="outside of tensors", value=reserve, source=beside.source)


def _of_file(kind: str, name: str) -> Iterator[Fact]:
    """The facts of a catalogued accelerator or node; one that the request describes has none but what was given."""
    path = registry.gpu_file(name) if kind == "GPU" else registry.node_file(name)
    if path is None:
        yield Fact(of=f"{kind} {name}", name="", value="", source="as the request gives it")
        return
    stated = registry.gpu_facts(name) if kind == "GPU" else registry.node_facts(name)
    for field, fact in stated.items():
        if field.partition(".")[0] not in _USED or "source" not in fact:
            continue
        yield Fact(of=f"{kind} {name}", name=field, value=str(fact.get("value", "")), source=str(fact["source"]),
                   confirmed=fact.get("confirmed") is not False)  # fmt: skip

