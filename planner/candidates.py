"""From layouts to the candidates of a plan: priced in detail, stage by stage, with who can run them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cost_models import ledger, step
from ..cost_models.flops import model_flops, recomputed_flops
from ..cost_models.layouts import OFFLOADS, RECOMPUTE_MODES, SCHEDULES, Layout, Layouts
from ..cost_models.stages import chunk_devices, chunk_sizes, split_rows
from ..profiles.stacks import is_stack
from . import intervals
from .emitters.registry import TARGETS
from .plan import Candidate, rounded
from .published_case import regime_of
from .resolve import Resolved
from .search.exhaustive import price_layouts


def candidates(found: Resolved, layouts: list[Layout]) -> tuple[Candidate, ...]:
    """One candidate per layout, in the order given."""
    columns = Layouts.of(layouts)
    batch, estimate = price_layouts(found.problem, found.rates, columns)
    model = model_flops(found.problem)
    runs = {name: target.supports(columns, found.problem)[1] for name, target in TARGETS.items() if name != "any"}
    if found.cluster.gpu.plan_only:
        runs = {name: [f"no target runs on {found.cluster.gpu.name}"] * len(layouts) for name in runs}
    out = []
    for row, layout in enumerate(layouts):
        step_s = float(estimate.step_s[row])
        peak = found.rates.peak_flops_per_s * found.cluster.num_gpus * step_s
        tokens = found.workload.tokens_per_step
        fields: dict[str, Any] = {
            "choice": row + 1, "layout_id": str(layout), "layout": layout.as_dict(),
            "stages": _stages(found, layout), "step_s": step_s, "terms": _terms(found, estimate, row, layout),
            "memory": _memory(found, batch, row, layout),
            "mfu": model / peak, "hfu": (model + recomputed_flops(found.problem, layout)) / peak,
            **_interval(found, layout, step_s),
            "tokens_per_s_per_gpu": tokens / step_s / found.cluster.num_gpus,
            "targets": {name: reasons[row] for name, reasons in runs.items()},
        }  # fmt: skip
        fields.update(_money(found, step_s))
        out.append(Candidate.model_validate(rounded(fields)))
    return tuple(out)


def _interval(found: Resolved, layout: Layout, step_s: float) -> dict[str, float]:
    """The 90 % interval of the step time: narrower where the software was calibrated on runs of it."""
    known = intervals.is_known(found.stack.name) or not is_stack(found.stack.name)  # else it is a file of the user
    low, high = intervals.factors(regime_of(found.model, layout), known=known)
    return {"step_s_low": step_s * low, "step_s_high": step_s * high}


def _money(found: Resolved, step_s: float) -> dict[str, float | None]:
    """Days, GPU-hours and dollars of the whole run, where the tokens and the price are known."""
    tokens, price = found.workload.tokens_per_step, found.cluster.usd_per_hour
    per_mtoken = price * step_s / 3600 / tokens * 1e6 if price is not None else None
    if found.workload.total_tokens is None:
        return {"cost_usd_per_mtoken": per_mtoken}
    hours = found.workload.total_tokens / tokens * step_s / 3600
    return {
        "cost_usd_per_mtoken": per_mtoken, "days": hours / 24, "gpu_hours": hours * found.cluster.num_gpus,
        "cost_usd": price * hours if price is not None else None,
    }  # fmt: skip


def _source(found: Resolved, layout: Layout, name: str) -> str:
    """Where a term's seconds come from: the weakest of its parts. A collective rests on the levels that its groups
    span, and on the share that the stack says is hidden."""
    sources = found.rates.sources
    spans = {
        "tp": layout.tp, "cp": layout.tp * layout.cp, "ep": layout.ep * layout.etp,
        "fsdp": layout.tp * layout.cp * layout.dp, "dp": layout.tp * layout.cp * layout.dp, "pp": layout.num_gpus,
    }  # fmt: skip
    if name == "optimizer" and "opt" in OFFLOADS[layout.offload].split("+"):
        return "assumed"
    if name not in spans:
        return sources.get(name, "formula")
    hides = name != "pp" and getattr(found.stack, f"{name}_overlap") > 0
    inside = spans[name] <= found.cluster.levels[0].size
    depth = 0 if inside else len(found.cluster.levels) - 1
    return "assumed" if hides else sources[f"level {depth}"]


def _terms(found: Resolved, estimate: step.Estimate, row: int, layout: Layout) -> list[dict[str, Any]]:
    return [
        {
            "name": step.TERMS[name][0], "seconds": float(seconds[row]), "exposed": True,
            "overlaps": [step.TERMS[other][0] for other in step.TERMS[name][1]], "source": _source(found, layout, name),
        }
        for name, seconds in estimate.terms.items()
        if seconds[row] > 0
    ]  # fmt: skip


def _stages(found: Resolved, layout: Layout) -> list[dict[str, Any]]:
    """The chunks of layers in the order of the model."""
    model = found.model
    devices = chunk_devices(layout.pp, layout.vpp if layout.pp > 1 else 1, SCHEDULES[layout.schedule])
    sizes = chunk_sizes(model.num_layers, len(devices))
    full = RECOMPUTE_MODES[layout.recompute] == "full"
    out, start = [], 0
    left = dict.fromkeys(range(layout.pp), layout.recompute_layers or model.num_layers)  # of a stage, first chunk first
    for index, (device, size) in enumerate(zip(devices, sizes, strict=True)):
        redone = min(size, left[device]) if full else 0
        left[device] -= redone
        out.append({
            "stage": device, "chunk": devices[:index].count(device),
            "layers": [start, start + size - 1] if size else [],
            "embedding": index == 0, "head": index == len(devices) - 1, "gpu": found.cluster.gpu.name,
            "recompute_layers": redone,
        })  # fmt: skip
        start += size
    return out


def _memory(found: Resolved, batch: ledger.Ledger, row: int, layout: Layout) -> list[dict[str, Any]]:
    """Bytes per stage: each stage has the profile with its own layers."""
    over = found.rates.overheads
    context = float(step.fixed_bytes(batch, found.rates)[row])
    profiles = [{name: float(held[row]) for name, held in batch.memory(j).items()} for j in range(batch.num_profiles)]
    split = int(batch.split[row])
    counts, first = batch.splits.counts[split], batch.splits.first[split]
    problem = found.problem
    rows = split_rows(problem.pattern, problem.num_kinds, problem.edges, layout.pp,
                      layout.vpp if layout.pp > 1 else 1, SCHEDULES[layout.schedule])  # fmt: skip
    out = []
    for stage, layers in enumerate(rows):
        j = int(np.flatnonzero((counts == layers).all(axis=1))[0])
        buffers = dict(profiles[j])
        if stage != first[j]:
            buffers["activations"] = batch.activations_on(j, row, stage)
        allocated = sum(buffers.values())
        reserved = allocated * (1 + over.reserve_share)
        out.append({
            "stage": stage, **{f"{name}_bytes": value for name, value in buffers.items()}, "allocated_bytes": allocated,
            "reserved_bytes": reserved, "context_bytes": context, "device_bytes": reserved + context,
            "host_bytes": batch.host_bytes_on(j, row, stage),
        })  # fmt: skip
    return out
