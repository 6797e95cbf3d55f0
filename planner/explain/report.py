"""The parts of a report beyond the plan itself: its pipeline over time, where its ranks sit, what binds it, and
where every number comes from."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import InputError
from ...profiles.io import registry
from ...profiles.rates.device_rates import surfaces_for
from ...profiles.rates.link_rates import collective_rates, with_measured
from ...profiles.stack.rates import overheads
from ..document.plan import Plan
from ..evaluation.staged import Staged
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from ..studies.base import Part
from ..studies.pricing import HeldLayout, Priced, of_candidate
from ..studies.sensitivity import Sensitivity
from ..studies.what_if import chosen, refuse_groups, what_if
from .pipeline_chart import PipelineChart, pipeline_chart
from .price_grid import PriceGrid, price_grid
from .rank_map import RankMap, rank_map

_USED = ("peak", "memory", "sms", "tdp", "link", "pcie", "nics", "fabric", "intra", "host_memory", "price",
         "gpus_per_node", "host_memory_bandwidth", "domain")  # fmt: skip


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
    rank_map: RankMap
    sensitivity: Sensitivity
    price_grid: PriceGrid
    facts: tuple[Fact, ...]
    warnings: tuple[str, ...]


def report(plan: Plan, choice: int = 1) -> Report:
    """The report on layout `choice`. Raises InputError if the plan has no such layout, or names what is not there."""
    candidate, resolved = chosen(plan, choice), resolve(request_from_dict(plan.request))
    refuse_groups(candidate, "a report")
    held = HeldLayout(candidate.to_layout(), candidate.partition)
    study = what_if(plan, study="sensitivity", choice=choice)
    if not isinstance(study, Sensitivity):
        raise InputError("the study of sensitivity gave something else")
    return Report(
        choice=choice, priced=of_candidate(resolved, candidate),
        pipeline=pipeline_chart(Staged.of(resolved, held.layout, held.partition, simulate=True)),
        rank_map=rank_map(resolved.cluster, held.layout, candidate.placement), sensitivity=study,
        price_grid=price_grid(resolved, held), facts=tuple(facts(resolved)), warnings=study.warnings,
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

