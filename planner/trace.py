"""What a candidate does over time: its pipeline simulated, as a trace for Perfetto or Chrome, or drawn as text.

The costs come from the tables that `step.price` reads (operations x rates), so that the closed form and the simulation
of a layout can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cost_models import collectives, schedule, step
from ..cost_models.collectives import Op
from ..cost_models.layouts import SCHEDULES, Layout, Layouts, parse
from ..cost_models.ledger import Groups, Ledger
from ..cost_models.schedule import Costs, Schedule, Timeline
from ..cost_models.schedule_orders import LETTERS, B, F, I, W
from ..cost_models.stages import EMBEDDING_COPY, EXTRA_KINDS, chunk_devices, split_rows
from .request import Request
from .resolve import Resolved, resolve
from .search.exhaustive import price_layouts

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Simulated:
    """A layout over time. extra_s: seconds of a step outside the pipeline (uneven lengths, tied embeddings,
    stragglers); closed_s: step seconds of the closed form."""

    layout: str
    timeline: Timeline
    extra_s: float
    closed_s: float

    @property
    def step_s(self) -> float:
        """Seconds of a step by simulation."""
        return self.timeline.makespan_s + self.extra_s


def simulated(found: Resolved, layout: Layout, sizes: Sequence[int] | None = None) -> Simulated:
    """The layout's step, simulated; `sizes`: layers of each chunk, where they are not as even as possible."""
    batch, estimate = price_layouts(found.problem, found.rates, Layouts.of([layout]))
    order, costs = candidate_costs(found, layout, sizes)
    outside = sum(float(estimate.terms[name][0]) for name in ("imbalance", "stragglers"))
    extra_s = float(step.tied_embedding_s(batch, found.rates)[0]) + outside
    extra_s += _contention_s(found, costs, float(estimate.terms["dp"][0]))
    return Simulated(str(layout), schedule.simulate(order, costs), extra_s, float(estimate.step_s[0]))


def _contention_s(found: Resolved, costs: Costs, exposed_s: float) -> float:
    """What hidden data-parallel communication slows compute by, as the closed form charges it; not simulated."""
    share = found.rates.stack.contention
    total = max(np.add(costs.reduce_s, costs.gather_s).tolist(), default=0.0)
    shown = (exposed_s - share * total) / (1.0 - share)
    return max(exposed_s - shown, 0.0)


def of_request(request: Request, layout_id: str) -> Simulated:
    """The simulated step of a layout of the plan for `request`. Raises InputError for an id that is none."""
    return simulated(resolve(request), parse(layout_id))


def candidate_costs(
    found: Resolved, layout: Layout, sizes: Sequence[int] | None = None
) -> tuple[Schedule, Costs]:
    """The schedule of a layout and its costs: stage sums of the tables, message seconds, data-parallel collectives."""
    batch, estimate = price_layouts(found.problem, found.rates, Layouts.of([layout]))
    m, name = round(float(batch.m[0])), SCHEDULES[layout.schedule]
    vpp = layout.vpp if layout.pp > 1 else 1
    order = schedule.make(name if layout.pp > 1 else "1f1b", layout.pp, m, vpp)
    rows, devices = chunk_rows(found, layout, sizes), np.array(_devices(layout))
    share = _shares(layout, rows, devices)
    tables, key, code = batch.tables, int(batch.key[0]), batch.codes[int(batch.code[0])]
    redo = tables.redo(*code).sum(axis=1)[:, key]
    forward, weight = rows @ tables.forward_s[:, key], rows @ tables.weight_s[:, key]
    backward = rows @ tables.backward_s[:, key] + share * (rows @ redo)
    per_batch = sum(float(estimate.terms[name][0]) for name in ("fsdp", "offload", "accumulate"))
    exposed = per_batch / m * layout.pp / len(devices)
    saved, kept = tables.saved(*code)[:, key], tables.saved(0, 0)[:, key]
    activations = share * (rows @ saved) + (1.0 - share) * (rows @ kept)
    hop = (float(step.hop_s(batch, found.rates)[0]),) * len(devices)
    reduce_s, gather_s = _data_parallel(found, batch, rows)
    return order, Costs(
        forward_s=tuple(forward.tolist()), weight_s=tuple(weight.tolist()),
        input_s=tuple((np.maximum(backward - weight, 0.0) + exposed).tolist()),
        forward_hop_s=hop, backward_hop_s=hop, reduce_s=tuple(reduce_s.tolist()), gather_s=tuple(gather_s.tolist()),
        buckets=round(float(batch.buckets[0])), gather_overlap=min(found.rates.stack.dp_gather_overlap, 1.0),
        overlap=min(found.rates.stack.dp_overlap, 1.0),
        optimizer_s=(float(estimate.terms["optimizer"][0]),) * layout.pp,
        activation_bytes=tuple(activations.tolist()), stash_bytes=tuple(activations.tolist()),
        static_bytes=_static_bytes(batch, rows, devices),
    )  # fmt: skip


def chunk_rows(found: Resolved, layout: Layout, sizes: Sequence[int] | None = None) -> Array:
    """[chunk, kind] layers of each chunk, with embedding, head and MTP: the rows of `stages.split_rows`, by chunk.

    sizes: layers of each chunk in the order of the model, where they are not as even as possible.
    """
    problem, devices = found.problem, _devices(layout)
    rows = split_rows(problem.pattern, problem.num_kinds, problem.edges, len(devices), 1, "1f1b", sizes)
    if devices[0] == devices[-1]:
        rows[-1, EMBEDDING_COPY] = 0.0
    return rows


def _devices(layout: Layout) -> list[int]:
    """Device of each chunk."""
    return chunk_devices(layout.pp, layout.vpp if layout.pp > 1 else 1, SCHEDULES[layout.schedule])


def _on_devices(values: Array, devices: NDArray[np.int64]) -> Array:
    """Sums over the chunks of each device."""
    out = np.zeros((int(devices.max()) + 1, *values.shape[1:]))
    np.add.at(out, devices, values)
    return out


def _shares(layout: Layout, rows: Array, devices: NDArray[np.int64]) -> Array:
    """[chunk] share of its device's layers under recompute (`Ledger.share`)."""
    layers = _on_devices(rows[:, :-EXTRA_KINDS].sum(axis=1), devices)
    if not layout.recompute_layers:
        return np.ones(len(devices))
    return np.asarray(np.minimum(layout.recompute_layers / np.maximum(layers, 1.0), 1.0)[devices])


def _static_bytes(batch: Ledger, rows: Array, devices: NDArray[np.int64]) -> tuple[float, ...]:
    """[device] bytes of all buffers but the activations of micro-batches in flight."""
    counts, out = batch.splits.counts[int(batch.split[0])], []
    for row in _on_devices(rows, devices):
        j = int(np.argmin(np.abs(counts - row).sum(axis=1)))  # the profile of the device; with own sizes the nearest
        out.append(sum(float(value[0]) for name, value in batch.memory(j).items() if name != "activations"))
    return tuple(out)


def _seconds(found: Resolved, op: Op, size: int, stride: int, num_bytes: Array, calls: float) -> Array:
    """[chunk] seconds of a collective of `num_bytes` in `calls` pieces."""
    curve = collectives.curve(found.rates.collectives, found.rates.levels, op, np.array([size]), np.array([stride]))
    return np.where(num_bytes > 0, collectives.seconds(curve, num_bytes / calls, calls), 0.0)



def _data_parallel(found: Resolved, batch: Ledger, rows: Array) -> tuple[Array, Array]:
    """[chunk] seconds to reduce the gradients and to gather the weights of each chunk, as in `step`."""
    states = found.problem.state_bytes
    reduce_s, gather_s = np.zeros((2, len(rows)))
    calls = max(float(batch.buckets[0]) * int(batch.layouts["pp"][0]) / len(rows), 1.0)
    parts: list[tuple[str, Groups]] = [("trained_dense", batch.dense_groups), ("trained_experts", batch.expert_groups)]
    for name, groups in parts[: 1 + found.model.is_moe]:
        trained = rows @ batch.tables.parameters[name][:, int(batch.key[0])]
        shard, stride = int(groups.shard[0]), int(groups.shard_stride[0])
        gradient, weight = trained * states.gradient, trained * states.weight
        if batch.reduces_once[0]:
            reduce_s += _seconds(found, "reduce_scatter", shard, stride, gradient, calls)
        reduce_s += _seconds(found, "all_reduce", int(groups.replicate[0]), int(groups.replicate_stride[0]),
                             gradient / shard, calls)  # fmt: skip
        if batch.gathers_once[0]:
            one_by_one = found.stack.dp_gather == "broadcasts"
            op: Op = "broadcast" if one_by_one else "all_gather"
            gather_s += _seconds(found, op, shard, stride, weight, float(shard) if one_by_one else calls)
    return reduce_s, gather_s


_NAMES = {F: "forward", B: "backward", I: "backward, inputs", W: "backward, weights"}
_COLORS = {F: "good", B: "thread_state_running", I: "thread_state_runnable", W: "yellow"}


def chrome_trace(one: Simulated) -> str:
    """The step as a JSON document for ui.perfetto.dev or chrome://tracing: a process per stage, microseconds."""
    events = [*_names(one.timeline), *_operations(one.timeline), *_messages(one.timeline), *_memory(one.timeline)]
    other = {"layout": one.layout, "step_s": float(f"{one.step_s:.9g}"), "closed_form_s": float(f"{one.closed_s:.9g}")}
    return json.dumps({"displayTimeUnit": "ms", "otherData": other, "traceEvents": events}) + "\n"


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for d in range(timeline.schedule.num_devices):
        yield {"ph": "M", "pid": d, "tid": 0, "name": "process_name", "args": {"name": f"stage {d}"}}
        for tid, text in enumerate(("compute", "gradients", "optimizer")):
            yield {"ph": "M", "pid": d, "tid": tid, "name": "thread_name", "args": {"name": text}}


def _operations(timeline: Timeline) -> Iterator[dict[str, Any]]:
    s, start, end = timeline.schedule, timeline.start_s.tolist(), timeline.end_s.tolist()
    kinds, chunks, owner = s.kind.tolist(), s.chunk.tolist(), s.device_of_op.tolist()
    for op, micro_batch in enumerate(s.micro_batch.tolist()):
        yield {
            "ph": "X", "pid": owner[op], "tid": 0, "ts": _us(start[op]), "dur": _us(end[op] - start[op]),
            "name": f"{LETTERS[kinds[op]]}{micro_batch}", "cat": _NAMES[kinds[op]], "cname": _COLORS[kinds[op]],
            "args": {"chunk": chunks[op], "micro_batch": micro_batch},
        }  # fmt: skip
    for chunk, begin in enumerate(timeline.reduce_start_s.tolist()):
        if (took := float(timeline.reduce_end_s[chunk]) - begin) > 0 and any(timeline.costs.reduce_s):
            yield {"ph": "X", "pid": int(s.device[chunk]), "tid": 1, "ts": _us(begin), "dur": _us(took),
                   "name": f"reduce gradients of chunk {chunk}", "cat": "data parallel"}  # fmt: skip
    for d, took in enumerate(timeline.costs.optimizer_s):
        if took > 0:
            yield {"ph": "X", "pid": d, "tid": 2, "ts": _us(float(timeline.device_end_s[d]) - took), "dur": _us(took),
                   "name": "optimizer", "cat": "optimizer"}  # fmt: skip


def _messages(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """An arrow per message, from the end of the sender's operation to the reader's start."""
    s, work = timeline.schedule, timeline.work
    for op in np.flatnonzero(work.lag > 0).tolist():
        sender = int(work.dep[op])
        both = {"cat": "message", "name": f"{_us(float(work.lag[op]))} us", "id": op, "tid": 0}
        yield {"ph": "s", "pid": int(s.device_of_op[sender]), "ts": _us(float(timeline.end_s[sender])), **both}
        yield {"ph": "f", "bp": "e", "pid": int(s.device_of_op[op]), "ts": _us(float(timeline.start_s[op])), **both}


def _memory(timeline: Timeline) -> Iterator[dict[str, Any]]:
    for d in range(timeline.schedule.num_devices):
        times, held = timeline.memory(d)
        changed = np.flatnonzero(np.diff(held, prepend=-1.0))
        for at in changed.tolist():
            yield {"ph": "C", "pid": d, "tid": 0, "ts": _us(float(times[at])), "name": "memory",
                   "args": {"GiB": round(float(held[at]) / 2**30, 4)}}  # fmt: skip


def draw(timeline: Timeline, width: int = 80) -> list[str]:
    """The pipeline as text: a row per stage, a letter per moment (the operation that takes most of it; `.` idle).

    A step with too many operations for the width shows its first and its last part, on one scale.
    """
    s, start, end = timeline.schedule, timeline.start_s, timeline.end_s
    label = len(f"stage {s.num_devices - 1} ")
    cells, total = max(width - label, 20), float(end.max(initial=0.0))
    usual = float(np.median(timeline.work.dur[timeline.work.dur > 0])) if (timeline.work.dur > 0).any() else 1.0
    whole = total <= usual * cells
    shown = total if whole else usual * cells
    windows = [(0.0, total)] if whole else [(0.0, shown * 0.5), (total - shown * 0.5, total)]
    columns = cells if whole else (cells - 5) // 2
    lines = []
    for d in range(s.num_devices):
        ops = slice(int(s.first[d]), int(s.first[d + 1]))
        parts = [_cells(start[ops], end[ops], s.kind[ops], low, high, columns) for low, high in windows]
        lines.append(f"stage {d}".ljust(label) + " ... ".join(parts))
    idle = 1.0 - timeline.busy_s / max(timeline.makespan_s, 1e-300)
    lines.append("F forward, B backward (I, W: of inputs, of weights), . idle")
    lines.append(f"{s.num_micro_batches} micro-batches, {timeline.makespan_s:.4g} s, stages idle "
                 f"{100 * idle.min():.1f} to {100 * idle.max():.1f} %")  # fmt: skip
    return lines


def _cells(start: Array, end: Array, kind: NDArray[np.int64], low: float, high: float, columns: int) -> str:
    """Letters of one window: per column the kind that covers most of it."""
    edges = np.linspace(low, high, columns + 1)
    covered = np.zeros((5, columns))
    for letter in range(4):
        mine = kind == letter
        busy = np.concatenate([[0.0], np.cumsum((end - start)[mine])])
        times = np.stack([start[mine], end[mine]], axis=1).ravel()
        steps = np.stack([busy[:-1], busy[1:]], axis=1).ravel()
        if len(times):
            covered[letter] = np.diff(np.interp(edges, times, steps, left=0.0, right=busy[-1]))
    covered[4] = np.diff(edges) - covered[:4].sum(axis=0)
    return "".join((LETTERS + ".")[i] for i in np.argmax(covered, axis=0))
