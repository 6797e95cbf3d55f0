"""`profile memory`: trains the layouts of a plan for a few steps each, and asks the GPU what it held."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import text
from ..console import Terminal, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.document.plan import Plan

STEPS = {True: 2, False: 4}  # quick or not; the optimizer's states are there from the second on
SIZES = ("allocated_bytes", "reserved_bytes", "device_bytes")


def measure(terminal: Terminal, plan: Plan, device: str, *, quick: bool) -> dict[str, Any]:
    """The document: every layout's bytes on its fullest rank, measured and planned, and what overheads they tell."""
    from ...errors import InputError

    groups = plan.resolved["cluster"]["groups"]
    if sum(group["num_nodes"] for group in groups) > 1:
        hint = "plan for its GPUs: `--gpus 8`; on several nodes `launch --report` tells the same"
        raise InputError("`profile memory` trains on this machine alone, the plan is for several", hint=hint)
    about: dict[str, Any] = {}
    layouts = []
    with terminal.progress("training") as progress, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(plan.to_json(), encoding="utf-8")
        for done, candidate in enumerate(plan.candidates):
            progress(done, len(plan.candidates), candidate.layout_id)
            about, peaks = _trained(terminal, path, candidate.choice, device, STEPS[quick])
            fullest = max(candidate.memory, key=lambda stage: stage.allocated_bytes)
            planned = {name: getattr(fullest, name) for name in SIZES}
            layouts.append({"layout_id": candidate.layout_id, "measured": peaks, "planned": planned})
    named = {"gpu": groups[0]["gpu"]["name"]} if groups[0]["gpu"].get("measured") and about["device"] == "cpu" else {}
    return {"kind": "memory-profile", **named, "model": plan.resolved["model"]["name"], "environment": about,
            "layouts": layouts, "overheads": overheads(layouts, on_cpu=about["device"] == "cpu")}  # fmt: skip


def _trained(
    terminal: Terminal, path: Path, choice: int, device: str, steps: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """Where one layout was trained, and the bytes of its fullest rank; a CPU knows those of tensors alone."""
    from ...planner.document.reading import load_plan
    from ...runtime import launcher
    from ...runtime.report import PEAKS, Recorder
    from ...runtime.settings import Settings, prepare

    settings = Settings(plan=str(path), choice=choice, steps=steps, device=device)
    job, notes = prepare(settings)
    nodes = launcher.nodes_for(load_plan(path), job, scaled=False, nnodes=1, nproc_per_node=None, node_rank=0,
                               master_addr=None, master_port=None)  # fmt: skip
    recorder = Recorder(job, notes)
    launcher.run(settings, nodes, recorder.add, terminal.verbose, terminal.talk)
    about = recorder.document()["environment"]
    found = {size: max(peaks) for size, name in zip(SIZES, PEAKS, strict=True) if (peaks := recorder.peaks(name))}
    return about, found


def overheads(layouts: Sequence[Mapping[str, Any]], *, on_cpu: bool = False) -> dict[str, float]:
    """What is on a GPU beside tensors: the share that its allocator reserves on top, at the median and at most, and
    what is in use outside the allocator (context, kernels, NCCL, other programs).

    on_cpu: a process gives back what it frees, so that nothing is reserved in proportion; all that it holds beside its
    tensors (libraries and their buffers, links to other ranks) is context, the most of all layouts."""
    found = [each["measured"] for each in layouts if "reserved_bytes" in each["measured"]]
    if not found:
        return {}
    if on_cpu:
        most = max(max(each["device_bytes"] - each["allocated_bytes"], 0.0) for each in found)
        return {"reserve_share": 0.0, "largest_reserve_share": 0.0, "context_bytes": most}
    shares = [each["reserved_bytes"] / each["allocated_bytes"] - 1.0 for each in found]
    beside = [each["device_bytes"] - each["reserved_bytes"] for each in found]
    return {"reserve_share": statistics.median(shares), "largest_reserve_share": max(shares),
            "context_bytes": statistics.median(beside)}  # fmt: skip


def dry_screen(plan: Plan, *, quick: bool) -> Iterator[RenderableType]:
    """What would be trained."""
    yield f"{STEPS[quick]} steps each of"
    rows = [(each.layout_id, text.gib(max(stage.device_bytes for stage in each.memory))) for each in plan.candidates]
    yield table("layout", "planned GiB", rows=rows, right=["planned GiB"])


def screen(document: Mapping[str, Any], *, saved_as: str | None) -> Iterator[RenderableType]:
    """A row per layout; below what it says of the planner's overheads."""
    about = document["environment"]
    yield f"memory of {document['model']} on {about['device']}, {about['world_size']} ranks, torch {about['torch']}"
    yield ""
    yield _layouts(document["layouts"])
    told = document["overheads"]
    yield ""
    if told:
        planned = document["layouts"][0]["planned"]
        counted = planned["reserved_bytes"] / planned["allocated_bytes"] - 1.0
        yield (f"reserved on top: {told['reserve_share']:.1%} (at most {told['largest_reserve_share']:.1%}); "
               f"the planner counts {counted:.1%}")  # fmt: skip
        beside = planned["device_bytes"] - planned["reserved_bytes"]
        yield f"in use beside: {text.gib(told['context_bytes'])} GiB; the planner counts {text.gib(beside)}"
    else:
        yield "This system tells what tensors held; what is reserved and in use beside them it does not."
    yield ""
    yield f"Saved: {saved_as}" if saved_as else "Next: add `-o memory.yaml` to keep this"


def _layouts(layouts: Sequence[Mapping[str, Any]]) -> RenderableType:
    shown = [size for size in SIZES if all(size in each["measured"] for each in layouts)]
    names = {"allocated_bytes": "allocated", "reserved_bytes": "reserved", "device_bytes": "in use"}
    columns = [word for size in shown for word in (f"{names[size]} GiB", f"planned{' ' * SIZES.index(size)}")]
    rows = []
    for each in layouts:
        pairs = [(each["measured"][size], each["planned"][size]) for size in shown]
        cells = [cell for a, b in pairs for cell in (text.significant(a / 2**30, 4), text.more(b / a - 1.0))]
        rows.append((each["layout_id"], *cells))
    return table("layout", *columns, rows=rows, right=columns)


def profile_text(document: Mapping[str, Any], date: str) -> str:
    """The document as YAML, every quantity with its unit."""
    lines = [f"# Memory of {document['model']}: what `meshwright profile memory` measured, and what was planned.",
             "kind: memory-profile", f"date: {date}"]  # fmt: skip
    lines += [f"gpu: {document['gpu']}"] if "gpu" in document else []
    lines += [f"model: {document['model']}", "environment:"]
    lines += [f'  {name}: "{value}"' for name, value in document["environment"].items()]
    if told := document["overheads"]:
        lines += ["overheads:", f"  reserve_share: {told['reserve_share']:.4g}",
                  f"  largest_reserve_share: {told['largest_reserve_share']:.4g}",
                  f"  context: {told['context_bytes'] / 2**20:.1f} MiB"]  # fmt: skip
    lines.append("layouts:")
    for each in document["layouts"]:
        lines.append(f'- layout: "{each["layout_id"]}"')
        for side in ("measured", "planned"):
            sizes = [f"{name.removesuffix('_bytes')}: {size / 2**20:.1f} MiB" for name, size in each[side].items()]
            lines.append(f"  {side}: {{{', '.join(sizes)}}}")
    return "\n".join(lines) + "\n"
