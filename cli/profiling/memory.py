"""`profile memory`: trains the layouts of a plan for a few steps each, and asks the GPU what it held."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .. import text
from ..console import Terminal, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan

STEPS = {True: 2, False: 4}  # quick or not; the optimizer's states are there from the second on
# Bytes of the tensors, bytes that the allocator reserves for them, and bytes in use on the device.
SIZES = ("allocated_bytes", "reserved_bytes", "device_bytes")
_COLUMNS = {"allocated_bytes": "allocated", "reserved_bytes": "reserved", "device_bytes": "in use"}


@dataclass(frozen=True)
class LayoutMemory:
    """Bytes of the fullest rank of a layout, by the names of SIZES."""

    layout_id: str
    measured: Mapping[str, float]  # a CPU knows those of tensors, and perhaps of the process, alone
    planned: Mapping[str, float]


@dataclass(frozen=True)
class MemoryOverheads:
    """Memory of a device that no tensor holds."""

    reserve_share: float  # that the allocator reserves on top of tensors, at the median
    largest_reserve_share: float
    context_bytes: float  # in use outside the allocator: context, kernels, NCCL, other programs


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """The memory of the layouts of a plan, measured and planned."""

    model: str
    gpu: str | None  # a measured CPU rank; None: a GPU, which the environment names
    environment: Mapping[str, object]  # of the report of a run
    layouts: Sequence[LayoutMemory]
    overheads: MemoryOverheads | None  # None: the system does not tell them

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        gpu = {} if self.gpu is None else {"gpu": self.gpu}
        return {
            "kind": "memory-profile", **gpu, "model": self.model, "environment": dict(self.environment),
            "layouts": [asdict(layout) for layout in self.layouts],
            "overheads": asdict(self.overheads) if self.overheads else {},
        }  # fmt: skip


def measure(terminal: Terminal, plan: Plan, device: str, *, quick: bool) -> MemoryProfile:
    """Every layout's bytes on its fullest rank, measured and planned, and the overheads that they tell."""
    from ...errors import InputError

    groups = plan.resolved["cluster"]["groups"]
    if sum(group["num_nodes"] for group in groups) > 1:
        hint = "plan for its GPUs: `--gpus 8`; on several nodes `launch --report` measures the same"
        raise InputError("`profile memory` trains on this machine alone, the plan is for several", hint=hint)
    environment: dict[str, object] = {}
    layouts = []
    with terminal.progress("training") as progress, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(plan.to_json(), encoding="utf-8")
        for done, candidate in enumerate(plan.candidates):
            progress(done, len(plan.candidates), candidate.layout_id)
            environment, peaks = _trained(terminal, path, candidate.choice, device, STEPS[quick])
            layouts.append(LayoutMemory(candidate.layout_id, peaks, _planned(candidate)))
    on_cpu = environment["device"] == "cpu"
    gpu = groups[0]["gpu"]
    return MemoryProfile(
        model=plan.resolved["model"]["name"], gpu=gpu["name"] if on_cpu and gpu.get("measured") else None,
        environment=environment, layouts=layouts, overheads=overheads(layouts, on_cpu=on_cpu),
    )  # fmt: skip


def _planned(candidate: Candidate) -> dict[str, float]:
    fullest = max(candidate.memory, key=lambda stage: stage.allocated_bytes)
    return {name: getattr(fullest, name) for name in SIZES}


def _trained(
    terminal: Terminal, path: Path, choice: int, device: str, steps: int
) -> tuple[dict[str, object], dict[str, int]]:
    """The place where one layout was trained, and the bytes of its fullest rank; on a CPU those of tensors only."""
    from ...planner.document.reading import load_plan
    from ...runtime import launcher
    from ...runtime.nodes import nodes_for
    from ...runtime.preparation import prepare
    from ...runtime.report import PEAKS, Recorder
    from ...runtime.settings import Settings

    settings = Settings(plan=str(path), choice=choice, steps=steps, device=device)
    job, notes = prepare(settings)
    nodes = nodes_for(load_plan(path), job, scaled=False, nnodes=1, nproc_per_node=None, node_rank=0,
                      master_addr=None, master_port=None)  # fmt: skip
    recorder = Recorder(job, notes)
    launcher.run(settings, nodes, recorder.add, terminal.verbose, terminal.talk)
    sizes = {size: max(peaks) for size, name in zip(SIZES, PEAKS, strict=True) if (peaks := recorder.peaks(name))}
    return recorder.document()["environment"], sizes


def overheads(layouts: Sequence[LayoutMemory], *, on_cpu: bool = False) -> MemoryOverheads | None:
    """The overheads that the layouts tell: shares and context at their medians.

    on_cpu: a process gives back what it frees, so that nothing is reserved in proportion; all that it holds beside its
    tensors (libraries and their buffers, links to other ranks) is context, the most of all layouts."""
    measured = [layout.measured for layout in layouts if "reserved_bytes" in layout.measured]
    if not measured:
        return None
    if on_cpu:
        most = max(max(sizes["device_bytes"] - sizes["allocated_bytes"], 0.0) for sizes in measured)
        return MemoryOverheads(0.0, 0.0, most)
    shares = [sizes["reserved_bytes"] / sizes["allocated_bytes"] - 1.0 for sizes in measured]
    contexts = [sizes["device_bytes"] - sizes["reserved_bytes"] for sizes in measured]
    return MemoryOverheads(statistics.median(shares), max(shares), statistics.median(contexts))


def dry_screen(plan: Plan, *, quick: bool) -> Iterator[RenderableType]:
    """The layouts that would be trained."""
    yield f"{STEPS[quick]} steps each of"
    rows = [(candidate.layout_id, text.gib(candidate.device_bytes)) for candidate in plan.candidates]
    yield table("layout", "planned GiB", rows=rows, right=["planned GiB"])


def screen(profile: MemoryProfile, *, saved_as: str | None) -> Iterator[RenderableType]:
    """A row per layout; below what it says of the planner's overheads."""
    about = profile.environment
    yield f"memory of {profile.model} on {about['device']}, {about['world_size']} ranks, torch {about['torch']}"
    yield ""
    yield _layouts_table(profile.layouts)
    yield ""
    if profile.overheads is not None:
        yield from _overheads(profile.overheads, profile.layouts[0].planned)
    else:
        yield "This system reports the bytes of tensors, and neither those reserved nor those in use beside them."
    yield ""
    yield f"Saved: {saved_as}" if saved_as else "Next: add `-o memory.yaml` to keep this"


def _overheads(measured: MemoryOverheads, planned: Mapping[str, float]) -> Iterator[str]:
    counted = planned["reserved_bytes"] / planned["allocated_bytes"] - 1.0
    yield (f"reserved on top: {measured.reserve_share:.1%} (at most {measured.largest_reserve_share:.1%}); "
           f"the planner counts {counted:.1%}")  # fmt: skip
    context = planned["device_bytes"] - planned["reserved_bytes"]
    yield f"in use beside: {text.gib(measured.context_bytes)} GiB; the planner counts {text.gib(context)}"


def _layouts_table(layouts: Sequence[LayoutMemory]) -> RenderableType:
    shown = [size for size in SIZES if all(size in layout.measured for layout in layouts)]
    # Blanks keep the names of columns apart.
    columns = [word for size in shown for word in (f"{_COLUMNS[size]} GiB", f"planned{' ' * SIZES.index(size)}")]
    rows = []
    for layout in layouts:
        cells = []
        for size in shown:
            measured, planned = layout.measured[size], layout.planned[size]
            cells += [text.significant(measured / text.GIB, 4), text.more(planned / measured - 1.0)]
        rows.append((layout.layout_id, *cells))
    return table("layout", *columns, rows=rows, right=columns)


def profile_text(profile: MemoryProfile, date: str) -> str:
    """The profile as YAML, every quantity with its unit."""
    lines = [f"# Memory of {profile.model}: what `meshwright profile memory` measured, and what was planned.",
             "kind: memory-profile", f"date: {date}"]  # fmt: skip
    lines += [f"gpu: {profile.gpu}"] if profile.gpu is not None else []
    lines += [f"model: {profile.model}", "environment:"]
    lines += [f'  {name}: "{value}"' for name, value in profile.environment.items()]
    if (measured := profile.overheads) is not None:
        lines += ["overheads:", f"  reserve_share: {measured.reserve_share:.4g}",
                  f"  largest_reserve_share: {measured.largest_reserve_share:.4g}",
                  f"  context: {measured.context_bytes / 2**20:.1f} MiB"]  # fmt: skip
    lines.append("layouts:")
    for layout in profile.layouts:
        lines.append(f'- layout: "{layout.layout_id}"')
        for side, sizes in (("measured", layout.measured), ("planned", layout.planned)):
            cells = [f"{name.removesuffix('_bytes')}: {size / 2**20:.1f} MiB" for name, size in sizes.items()]
            lines.append(f"  {side}: {{{', '.join(cells)}}}")
    return "\n".join(lines) + "\n"
