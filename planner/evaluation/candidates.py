"""From layouts to the candidates of a plan: priced in detail, stage by stage, with who can run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...cost_models.layouts import OPTIMIZER_ON_HOST, RECOMPUTE_MODES, Layout, Layouts
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.flops import model_flops, recomputed_flops, useful_flops
from ...cost_models.quantities.stages import EMBEDDING, recomputed_by_layout
from ...cost_models.step import reserved_memory, step
from ...profiles.rates.reference_devices import knows_generation
from ...profiles.stack.load import is_stack
from ..document.base import rounded
from ..document.candidate import Candidate
from ..request import headroom
from ..request.resolve import Resolved
from ..targets.registry import TARGETS, compared, runs_on_none
from . import intervals
from .interruptions import on_spot
from .intervals import regime_of
from .staged import Staged


def candidates(resolved: Resolved, staged: Sequence[Staged]) -> tuple[Candidate, ...]:
    """One candidate per layout and its stages, in the order given."""
    columns = Layouts.of([choice.layout for choice in staged])
    model, useful = model_flops(resolved.problem), useful_flops(resolved.problem)
    runs = {target.name: target.supports(columns, resolved.problem)[1]
            for target in compared(resolved.problem, resolved.target.name)}
    if resolved.cluster.gpu.plan_only:
        runs = {name: [runs_on_none(resolved.cluster.gpu.name)] * len(staged) for name in runs}
    trains = {name: next(iter(TARGETS[name].cannot_train(resolved.problem)), None) for name in runs}
    runs = {name: [reason or trains[name] for reason in reasons] for name, reasons in runs.items()}
    out = []
    for row, choice in enumerate(staged):
        layout = choice.layout
        partition = choice.custom_partition
        memory = _memory(choice)
        step_s = choice.step_s
        peak_flops = choice.peak_flops_per_s * step_s
        recomputed = None
        if partition and partition.recomputed:
            recomputed = choice.recomputed.sum(axis=0)[: resolved.problem.num_kinds + 1].tolist()  # with the tower
        fields: dict[str, Any] = {
            "choice": row + 1, "layout_id": choice.id, "layout": layout.as_dict(),
            "stages": _stages(choice), "step_s": step_s,
            "closed_form_s": choice.closed_s if choice.is_simulated else None,
            "terms": _terms(choice), "memory": memory, "mfu": useful / peak_flops,
            "hfu": (model + recomputed_flops(resolved.problem, layout, recomputed)) / peak_flops,
            **_interval(resolved, layout, step_s), "overflow_chance": _overflow_chance(resolved, memory),
            "tokens_per_s_per_gpu": resolved.workload.tokens_per_step / step_s / resolved.cluster.num_gpus,
            "targets": {name: reasons[row] or TARGETS[name].cannot_split(partition, resolved.model)
                        for name, reasons in runs.items()},
        }  # fmt: skip
        fields.update(money(resolved, step_s))
        out.append(Candidate.model_validate(rounded(fields)))
    return tuple(out)


def _overflow_chance(resolved: Resolved, memory: Sequence[Mapping[str, Any]]) -> float:
    """The share of published runs that needed more, over their prediction, than the fullest GPU leaves."""
    return headroom.overflow_chance(max(stage["device_bytes"] for stage in memory), resolved.cluster.memory_bytes)


def _interval(resolved: Resolved, layout: Layout, step_s: float) -> dict[str, float]:
    """The 90 % interval of the step time: wider where it rests on software or a device that no run or table knows."""
    of_user = not is_stack(resolved.stack.name)  # a file that calibration wrote
    known = of_user or intervals.is_known(resolved.stack.name)
    low, high = intervals.factors(
        regime_of(resolved.model, layout), known=known, narrow=intervals.is_narrow(resolved.workload.precision),
        measured=knows_generation(resolved.cluster.gpu),
    )  # fmt: skip
    return {"step_s_low": step_s * low, "step_s_high": step_s * high}


def money(resolved: Resolved, step_s: float) -> dict[str, float | None]:
    """Days, GPU-hours and dollars of the whole run, where the tokens and the price are known; on spot nodes with the
    time that interruptions cost."""
    expected = on_spot(resolved)
    tokens, price = resolved.workload.tokens_per_step, resolved.cluster.usd_per_hour
    if expected is not None:
        step_s /= expected.goodput
    per_mtoken = price * step_s / 3600 / tokens * 1e6 if price is not None else None
    if resolved.workload.total_tokens is None:
        return {"cost_usd_per_mtoken": per_mtoken}
    hours = resolved.workload.total_tokens / tokens * step_s / 3600
    return {
        "cost_usd_per_mtoken": per_mtoken, "days": hours / 24, "gpu_hours": hours * resolved.cluster.num_gpus,
        "cost_usd": price * hours if price is not None else None,
    }  # fmt: skip


def source_of(resolved: Resolved, layout: Layout, name: str) -> str:
    """The source of a term's seconds: the weakest of its parts. A collective rests on the network levels that its
    groups span, and on the share of it that the stack hides."""
    sources = resolved.rates.sources
    spans = {
        "tp": layout.tp, "cp": layout.tp * layout.cp, "ep": layout.ep * layout.etp,
        "unpaired": layout.ep * layout.etp, "comparison": layout.dp,
        "fsdp": layout.tp * layout.cp * layout.dp, "dp": layout.tp * layout.cp * layout.dp, "pp": layout.num_gpus,
    }  # fmt: skip
    if name == "optimizer" and layout.offload in OPTIMIZER_ON_HOST:
        return "assumed"
    if name == "rounding":
        return sources["memory"]
    if name not in spans:
        return sources[name]
    hides = name not in ("pp", "unpaired", "comparison") and getattr(resolved.stack, f"{name}_overlap") > 0
    inside = spans[name] <= resolved.cluster.levels[0].size
    depth = 0 if inside else len(resolved.cluster.levels) - 1
    return "assumed" if hides else sources[f"level {depth}"]


def _terms(staged: Staged) -> list[dict[str, Any]]:
    return [
        {
            "name": step.TERMS[name][0], "seconds": seconds, "exposed": True,
            "overlaps": [step.TERMS[other][0] for other in step.TERMS[name][1]],
            "source": source_of(staged.resolved, staged.layout, name),
        }
        for name, seconds in staged.terms.items()
        if seconds > 0
    ]  # fmt: skip


def _stages(staged: Staged) -> list[dict[str, Any]]:
    """The chunks of layers in the order of the model."""
    devices = staged.devices
    sizes = staged.partition.sizes
    recomputed = staged.partition.recomputed
    if recomputed is None:
        full = RECOMPUTE_MODES[staged.layout.recompute] == "full"
        layers = (staged.layout.recompute_layers or sum(sizes)) if full else 0
        recomputed = tuple(recomputed_by_layout(sizes, devices, layers))
    everywhere = staged.ledger.vocabulary is not None  # then all stages share embedding and head
    out, start = list[dict[str, Any]](), 0
    for index, (device, size) in enumerate(zip(devices, sizes, strict=True)):
        out.append({
            "stage": device, "chunk": devices[:index].count(device),
            "layers": [start, start + size - 1] if size else [], 
            "embedding": everywhere or bool(staged.rows[index, EMBEDDING]),
            "head": everywhere or index == len(devices) - 1, "gpu": staged.gpu_of(device),
            "recompute_layers": recomputed[index],
        })  # fmt: skip
        start += size
    return out


def _memory(staged: Staged) -> list[dict[str, Any]]:
    """Bytes of each stage."""
    ledger = staged.ledger
    memory = DeviceMemory(staged.ledger)
    rates = staged.resolved.rates
    context = float(reserved_memory.fixed_bytes(ledger, rates)[0])
    out = []
    for stage in range(ledger.num_profiles):
        buffers = {name: float(num_bytes[0]) for name, num_bytes in memory.with_separate_graphs(stage).items()}
        reserved = float(reserved_memory.reserved_bytes(memory, rates, stage)[0])
        out.append({
            "stage": stage, **{f"{name}_bytes": num_bytes for name, num_bytes in buffers.items()},
            "allocated_bytes": sum(buffers.values()), "reserved_bytes": reserved, "context_bytes": context,
            "device_bytes": reserved + context, "host_bytes": float(memory.host_bytes(stage)[0]),
        })  # fmt: skip
    return out
