"""The screens of the scaling, generation and reliability studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .what_if import change_lines, footnotes, kilo_dollars

if TYPE_CHECKING:
    from ...planner.studies.assumed import Assumption
    from ...planner.studies.base import Point
    from ...planner.studies.conversion import Conversion
    from ...planner.studies.faults import Faults
    from ...planner.studies.generations import Generations
    from ...planner.studies.gossip import GossipStudy
    from ...planner.studies.network_cost import NetworkCost
    from ...planner.studies.pricing import Priced
    from ...planner.studies.reliability import Reliability
    from ...planner.studies.scaling import Scaling
    from ...planner.studies.step_law import StepLaw
    from .parts import Part

_MOST_LINKS = 20  # on a screen


def scaling_screen(result: Scaling, header: str) -> list[Part]:
    """A line per number of GPUs."""
    by_batch = result.mode == "weak"
    places = _places(result.points)
    rows = []
    for point, efficiency in zip(result.points, result.efficiency, strict=True):
        best = point.best
        row = [f"{int(point.values['gpus']):,}"]
        row += [f"{int(point.values['workload.global_batch']):,}"] if by_batch else []
        row += [text.fixed(best.step_s if best else None, places)]
        row += [text.fixed(best.tokens_per_s if best else None, 0), text.percent(efficiency)]
        rows.append([*row, _layout(best, is_plan=point.values["gpus"] == result.axes[0].now)])
    columns = ["GPUs", *(["batch"] if by_batch else []), "step s", "tokens/s", "efficiency %", "best layout"]
    what = "the batch grows with the GPUs" if by_batch else "the same step on more GPUs"
    key = "Efficiency: tokens per second and GPU, over those of the smallest number of GPUs that runs."
    return [header, *change_lines(result.changes), f"{result.mode.title()} scaling: {what}", "",
            table(*columns, rows=rows, right=columns[:-1]), "", text.wrapped(key), ""]  # fmt: skip


def generations_screen(result: Generations, header: str) -> list[Part]:
    """A line per accelerator."""
    shown = [point.best for point in result.points]
    places = _places(result.points)
    by_cost = any(best and best.usd_per_ttoken is not None for best in shown)
    rows = []
    for point, best, node, speedup in zip(result.points, shown, result.nodes, result.speedup, strict=True):
        row = [node, text.fixed(best.step_s if best else None, places)]
        row.append("-" if speedup is None else f"x{text.significant(speedup)}")
        row += [kilo_dollars(best)] if by_cost else []
        row.append(text.significant(best.mwh_per_ttoken) if best else "-")
        rows.append([*row, _layout(best, is_plan=point.values["gpu"] == result.axes[0].now)])
    columns = ["nodes", "step s", "speed", *(["kUSD"] if by_cost else []), "MWh", "best layout"]
    key = ("As many GPUs of each, in the nodes they are usually built into; precision and batch stay. "
           f"{'kUSD (thousand dollars) and ' if by_cost else ''}MWh are per trillion tokens.")  # fmt: skip
    return [header, *change_lines(result.changes), "",
            table(*columns, rows=rows, right=columns[1:-1]), "", text.wrapped(key), *footnotes(shown), ""]  # fmt: skip


def _places(points: tuple[Point, ...]) -> int:
    """Decimal places of step seconds."""
    return text.decimals([point.best.step_s for point in points if point.best])


def _layout(best: Priced | None, *, is_plan: bool) -> str:
    return (best.layout_id if best else "nothing fits") + (" <- plan" if is_plan else "")


def reliability_screen(result: Reliability, header: str) -> list[Part]:
    """A line per number of GPUs, and what it rests on."""
    rows = [
        [f"{row.num_gpus:,}", text.duration(row.mtbf_s), text.duration(row.checkpoint_s),
         text.duration(row.interval_s), text.percent(row.goodput), "<- plan" if row.num_gpus == result.now else ""]
        for row in result.rows
    ]  # fmt: skip
    columns = ["GPUs", "fails every", "checkpoint", "best interval", "goodput %"]
    here = next((row for row in result.rows if row.num_gpus == result.now), None)
    lines: list[Part] = [header, *change_lines(result.changes), ""]
    lines += [table(*columns, "", rows=rows, right=columns), ""]
    if here is not None:
        remaining = text.fixed(result.tokens_per_s * here.goodput, 0)
        speed = f"{text.fixed(result.tokens_per_s, 0)} tokens/s of {result.layout_id}"
        lines.append(text.wrapped(f"Of {speed}, {remaining} are left after failures and checkpoints."))
    lines += ["", f"Rests on a checkpoint of {text.gib(result.checkpoint_bytes)} GiB, and on"]
    return [*lines, *_assumption_lines(result.assumptions)]


def faults_screen(result: Faults, header: str) -> list[Part]:
    """A line per remedy, and what they rest on."""
    rows = [
        [remedy.name, text.duration(remedy.stops_s), text.duration(remedy.redone_s), text.percent(remedy.kept),
         text.duration(remedy.lost_s_per_day),
         "-" if remedy.usd_per_day is None else f"{remedy.usd_per_day:,.0f}", text.percent(remedy.goodput),
         text.fixed(result.tokens_per_s * remedy.goodput, 0)]
        for remedy in result.remedies
    ]  # fmt: skip
    columns = ["remedy", "stops", "work lost", "kept %", "lost a day", "USD lost", "goodput %", "tokens/s"]
    fails = (f"{result.num_gpus:,} GPUs fail every {text.duration(result.mtbf_s)}. A checkpoint of "
             f"{text.duration(result.checkpoint_s)} is written every {text.duration(result.interval_s)}.")  # fmt: skip
    key = ("restart, c4: from the checkpoint, on spare GPUs; c4 finds the faulty node early. torchft: without the "
           "replica, elaswave: with all GPUs that are left, until the repair.")  # fmt: skip
    return [header, *change_lines(result.changes), "", table(*columns, rows=rows, right=columns[1:]), "",
            text.wrapped(fails), text.wrapped(key), "", "Rests on",
            *_assumption_lines(result.assumptions)]  # fmt: skip


def network_cost_screen(result: NetworkCost, header: str) -> list[Part]:
    """A line per network, and the share that the second one saves."""
    rows = [
        [network.name, str(network.tiers), f"{network.switches:,}", f"{network.transceivers:,}",
         "-" if network.usd is None else f"{network.usd:,.0f}",
         "-" if network.watts is None else text.fixed(network.watts / 1e3, 1)]
        for network in result.networks
    ]  # fmt: skip
    columns = ["network", "tiers", "switches", "transceivers", "USD", "kW"]
    first, last = result.networks
    pairs = [("switches", first.switches, last.switches), ("transceivers", first.transceivers, last.transceivers),
             ("cost", first.usd, last.usd), ("power", first.watts, last.watts)]  # fmt: skip
    saved = [f"{text.percent(1 - after / before)} % of the {name}"
             for name, before, after in pairs if before and after and after < before]  # fmt: skip
    key = (f"{result.domain} rails, one per GPU that the fastest link joins, save "
           f"{', '.join(saved) or 'nothing: they need as many switches'}.")  # fmt: skip
    return [header, *change_lines(result.changes), "", table(*columns, rows=rows, right=columns[1:]), "",
            text.wrapped(f"{result.ports:,} ports, one per GPU. {key}"), "", "Rests on",
            *_assumption_lines(result.assumptions)]  # fmt: skip


def step_law_screen(result: StepLaw, header: str) -> list[Part]:
    """A line per batch, under the law's rate."""
    rows = [
        [row.name, f"{row.sequences:,}", text.significant(row.tokens / 1e6), f"{row.steps:,.0f}",
         text.fixed(row.held.step_s, 3) if row.held.runs else "-",
         text.duration(row.steps * row.held.step_s) if row.held.runs else row.held.problems[0]]
        for row in result.rows
    ]  # fmt: skip
    columns = ["batch", "sequences", "M tokens", "steps", "step s", "run"]
    law = (f"By the step law (arXiv 2503.04715) {text.significant(result.parameters / 1e9)} B parameters "
           f"without the vocabulary and {text.significant(result.tokens / 1e9)} B tokens want a learning rate of "
           f"{result.learning_rate:.2e} and {text.significant(result.batch_tokens / 1e6)} M per step.")  # fmt: skip
    return [header, *change_lines(result.changes), "", text.wrapped(law), "", table(*columns, rows=rows,
            right=columns[1:]), ""]  # fmt: skip


def conversion_screen(result: Conversion, header: str) -> list[Part]:
    """A line per way to gather what is sent."""
    rows = [[way.name, *(text.duration(seconds) for seconds in (way.gather_s, way.message_s, way.total_s))]
            for way in result.ways]  # fmt: skip
    columns = ["gathered by", "gathering", "messages", "together"]
    of_all = f"The fullest GPU of {result.to} gets {text.quantity(result.received_bytes, 'B')} of weights and states"
    cut = (f"{text.quantity(result.cut_bytes, 'B')} of them in {result.runs:,.0f} runs, of "
           f"{result.run_bytes:,.0f} bytes at the shortest") if result.runs else "no matrix is cut in its rows"
    return [header, *change_lines(result.changes), "", text.wrapped(f"{of_all}: {cut}."), "",
            table(*columns, rows=rows, right=columns[1:]), ""]  # fmt: skip


def gossip_screen(result: GossipStudy, header: str) -> list[Part]:
    """A line per graph, and the rates of its links."""
    rows = [
        [row.name, text.significant(row.exchanges), text.significant(row.busiest), text.significant(row.chi_1),
         text.significant(row.chi_2), text.fixed(row.held.step_s, 3) if row.held.runs else row.held.problems[0]]
        for row in result.rows
    ]  # fmt: skip
    columns = ["graph", "exchanges", "busiest", "chi 1", "chi 2", "step s"]
    links = [[link.link, text.significant(link.equal), text.significant(link.best)]
             for link in result.links[:_MOST_LINKS]]  # fmt: skip
    more = len(result.links) - len(links)
    return [header, *change_lines(result.changes), "", table(*columns, rows=rows, right=columns[1:]), "",
            text.wrapped(f"Exchanges per step of the mean of {len(result.replicas)} replicas, and per link:"), "",
            table("link", "equal", "best", rows=links, right=["equal", "best"]),
            *([f"and {more} more (`--json`)"] if more else []), ""]  # fmt: skip


def _assumption_lines(assumptions: Sequence[Assumption]) -> list[Part]:
    lines: list[Part] = []
    for assumption in assumptions:
        value, dimension = assumption.value, assumption.dimension
        shown = text.duration(value) if dimension == "s" else text.quantity(value, dimension)
        lines.append(text.wrapped(f"  {assumption.name} {shown}: {assumption.source}", "    "))
    return [*lines, "`--assume name=value` changes them.", ""]
