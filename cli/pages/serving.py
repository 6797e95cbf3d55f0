"""The report on a serving plan as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import text
from ..screens import serving_explain, serving_plan
from ..screens.header import space_line
from .templates import on_one_line, render

if TYPE_CHECKING:
    from ...planner.document.serving_plan import ServingCandidate, ServingPlan, ServingPool
    from ...planner.explain.serving import ServingExplanation

_WIDTH, _HEIGHT = 1000, 260  # of a chart, in units of its view box
_LEFT, _BOTTOM, _TOP = 70, 30, 10  # margins with labels
_HIGHEST = 2.0  # times a promise: above it a curve leaves the chart


@dataclass(frozen=True)
class Mark:
    """A line across a chart with its label; position in units of the view box."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """A latency against the load."""

    title: str
    path: str  # points of a polyline
    loads: tuple[Mark, ...]  # vertical: the axis
    levels: tuple[Mark, ...]  # horizontal: the axis
    promise: Mark | None
    asked: Mark | None


@dataclass(frozen=True)
class Segment:
    """A part of a GPU's memory; width in %."""

    kind: str
    width: float
    num_bytes: float


def serving_page(plan: ServingPlan, explanation: ServingExplanation) -> str:
    """The whole document."""
    candidate, work = plan.candidate(explanation.choice), plan.request["workload"]
    load, proof = serving_explain.asked_load(plan) or candidate.largest_load, plan.certificate
    charts = [_chart(title, [(point.load, getattr(point, f"{name}_s")) for point in explanation.curve], work[name],
                     load, candidate) for name, title in (("ttft", "Time to first token"),
                                                          ("tpot", "Time per output token"))]  # fmt: skip
    kinds = "weights", serving_plan.room_name(plan), "buffers and what the engine leaves free"
    return render(
        "serving.html", plan=plan, candidate=candidate, title=f"{plan.resolved['model']['name']}: "
        f"{candidate.deployment_id}", header=_lines(serving_plan.header(plan)),
        why=serving_explain.why_lines(plan, candidate, explanation), tiles=list(_tiles(candidate, work["percentile"])),
        deployments=_deployments(plan), rivals=serving_explain.rival_lines(explanation.rivals),
        parts_title=serving_explain.parts_title(plan, candidate),
        parts=serving_explain.part_cells(candidate, explanation), charts=charts, percentile=work["percentile"],
        effects=serving_explain.effect_cells(candidate, explanation), pools=_pools(candidate),
        memory=[(serving_plan.ROLES[pool.role], pool.cache_sequences, _memory(kinds, pool,
                 _device_bytes(plan, pool.site))) for pool in candidate.pools],
        kinds=kinds, disaggregated=_lines(serving_plan.separation(plan)),
        space=on_one_line(space_line(proof.space, stopped=bool(proof.stopped), noun="deployments")),
        constants=sorted(plan.resolved.get("constants", {}).items()), size=(_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP),
    )  # fmt: skip


def _lines(parts: Sequence[object]) -> list[str]:
    return [line for part in parts if isinstance(part, str) and (line := on_one_line(part))]


def _tiles(candidate: ServingCandidate, percentile: float) -> Iterator[tuple[str, str, str]]:
    """(name, number, note)."""
    unit = serving_explain.unit(candidate)
    yield "GPUs", str(candidate.gpus), text.listed([f"{pool.gpus} {pool.gpu}" for pool in candidate.pools])
    yield ("carries", f"{text.significant(candidate.largest_load)}{unit}",
           f"{text.significant(candidate.goodput_per_gpu)}{unit} per GPU")  # fmt: skip
    for name, promised, mean in (("TTFT", candidate.ttft_promised_s, candidate.ttft_s),
                                 ("TPOT", candidate.tpot_promised_s, candidate.tpot_s)):  # fmt: skip
        yield f"{name}, p{percentile:g}", text.duration(promised), f"mean {text.duration(mean)}"
    rent = "no price is known" if candidate.usd_per_hour is None else f"{candidate.usd_per_hour:g} USD per hour"
    yield "per million tokens", f"{text.significant(candidate.usd_per_mtoken)} USD", rent


def _deployments(plan: ServingPlan) -> tuple[list[str], list[list[str]]]:
    """(columns, rows)."""
    promised, latencies = serving_plan.promised_columns(plan.candidates)
    return ["#", "deployment", "GPUs", *promised, "carries", "USD/Mtoken"], [
        [str(it.choice), it.deployment_id, str(it.gpus), *both, text.significant(it.largest_load),
         text.significant(it.usd_per_mtoken)] for it, both in zip(plan.candidates, latencies, strict=True)]  # fmt: skip


def _pools(candidate: ServingCandidate) -> tuple[list[str], list[list[str]]]:
    """(columns, rows)."""
    columns = ["pool", "nodes", "instances", "GPUs of one", "GPU", "tp", "pp", "attention dp", "ep",
               "chunk tokens", "sequences at most", "weights", "KV cache"]  # fmt: skip
    return columns, [[serving_plan.ROLES[it.role], it.site, str(it.instances), str(it.gpus // it.instances), it.gpu,
                      str(it.tp), str(it.pp), str(it.attention_dp), str(it.ep), f"{it.chunk_tokens:,}",
                      str(it.max_sequences), it.weights, it.kv_cache] for it in candidate.pools]  # fmt: skip


def _device_bytes(plan: ServingPlan, site: str) -> float:
    """Memory of a GPU on these nodes."""
    cluster = plan.resolved["cluster"]
    group = next((island["group"] for island in cluster.get("islands", ()) if island["name"] == site), 0)
    return float(cluster["groups"][group]["gpu"]["memory_bytes"])


def _memory(kinds: Sequence[str], pool: ServingPool, whole: float) -> list[Segment]:
    numbers = (pool.weights_bytes, pool.cache_bytes, max(whole - pool.weights_bytes - pool.cache_bytes, 0.0))
    return [Segment(kind, 100 * number / whole, number) for kind, number in zip(kinds, numbers, strict=True)]


def _chart(
    title: str, points: Sequence[tuple[float, float]], promise: float | None, load: float, candidate: ServingCandidate
) -> Chart:  # fmt: skip
    """points: (load, seconds)."""
    right, highest = _round_up(max(at for at, _ in points)), max(seconds for _, seconds in points)
    top = _round_up(min(highest, promise * _HIGHEST) if promise else highest)

    def across(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT) * value / right

    def up(seconds: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * min(seconds / top, 1.0)

    unit = serving_explain.unit(candidate)
    asked = Mark(across(load), f"{text.significant(load)}{unit}")
    inside = [(at, seconds) for at, seconds in points if seconds <= top]
    return Chart(
        title=title, path=" ".join(f"{across(at):.1f},{up(seconds):.1f}" for at, seconds in inside),
        loads=tuple(Mark(across(right * k / 4), f"{text.significant(right * k / 4)}{unit}") for k in range(1, 5)),
        levels=tuple(Mark(up(top * k / 4), text.duration(top * k / 4)) for k in range(1, 5)),
        promise=Mark(up(promise), f"promised: {text.duration(promise)}") if promise else None,
        asked=asked if load <= right else None,
    )  # fmt: skip


def _round_up(value: float) -> float:
    """The next number of 1, 2, 4, 5, 8 times a power of ten."""
    power = 10.0 ** len(str(int(value))) if value >= 1 else 1.0
    while power / 10 >= value:
        power /= 10
    return next(step * power / 10 for step in (1, 2, 4, 5, 8, 10) if step * power / 10 >= value * (1 - 1e-9))
