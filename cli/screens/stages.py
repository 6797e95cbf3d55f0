"""The stages of a pipeline: layers, load and reasons. A part of the screen of `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.table import Table

    from ...planner.document.candidate import Candidate, Chunk
    from ...planner.document.plan import Plan
    from ...planner.explain.redistribution import Redistribution
    from ...planner.explain.stage_loads import StageLoads

_UNEVEN = 0.02  # share of the mean stage above which the slowest one is named
_DIFFERS = 0.01  # relative difference of the simulation from the closed form that is named


def stages_line(candidate: Candidate) -> str:
    """`Layers of the stages of layout 1: 3+3+4, 3+3+3 (2), ..`: chunk by chunk; recomputed ones in brackets."""
    stages = [_stage_text(chunks) for chunks in chunks_by_stage(candidate).values()]
    number = candidate.choice
    return text.wrapped(f"Layers on the {len(stages)} stages of layout {number}: {', '.join(stages)}", "  ")


def tried_lines(plan: Plan) -> list[str]:
    """The reach of a list whose layers are placed: the bound of the search is that of its first layout alone."""
    if not plan.places_layers or len(plan.candidates) < 2:
        return []
    return [text.wrapped("Layouts from 2 on are the best of those whose layers were placed. With other recomputation "
                         "or micro-batches, their pipelines may be faster than listed.", "  ")]  # fmt: skip


def placing_lines(plan: Plan) -> list[str]:
    """Advice where stages have unlike numbers of layers, and the planner could place them for the target."""
    from ...planner.targets.registry import target

    best, work, clusters = plan.best, plan.resolved["workload"], plan.resolved["cluster"]["groups"]
    if plan.request.get("stages") or best.layerwise or best.placement.order is not None or len(clusters) > 1:
        return []
    if work.get("techniques") or work.get("objective") == "memory":
        return []
    layers = [sum(map(num_layers, chunks)) for chunks in chunks_by_stage(best).values()]
    uneven = max(layers) >= (1 + _UNEVEN) * sum(layers) / len(layers)
    if not uneven or target(str(plan.resolved["target"])).stages == "even":
        return []
    return [text.wrapped(f"The {len(layers)} stages of layout 1 hold {min(layers)} to {max(layers)} layers: `--stages "
                         "own` places them by time and memory.", "  ")]  # fmt: skip


def _stage_text(chunks: Sequence[Chunk]) -> str:
    recomputed = sum(chunk.recompute_layers for chunk in chunks)
    sizes = "+".join(str(num_layers(chunk)) for chunk in chunks)
    return f"{sizes} ({recomputed} recomputed)" if recomputed else sizes


def num_layers(chunk: Chunk) -> int:
    """Layers of a chunk."""
    return chunk.layers[-1] - chunk.layers[0] + 1 if chunk.layers else 0


def chunks_by_stage(candidate: Candidate) -> dict[int, list[Chunk]]:
    """The chunks of each stage, in the order of the model."""
    by_stage: dict[int, list[Chunk]] = {}
    for chunk in sorted(candidate.stages, key=lambda chunk: chunk.stage):
        by_stage.setdefault(chunk.stage, []).append(chunk)
    return by_stage


def stages_table(
    candidate: Candidate, loads: StageLoads | None, *, has_tower: bool = False, encoder_layers: int = 0
) -> Table:
    """A row per run of equal stages: layers of their chunks, how many are recomputed, milliseconds of a micro-batch,
    memory, and what else they hold."""
    groups: list[tuple[list[int], tuple[str, ...]]] = []
    memory = {stage.stage: stage for stage in candidate.memory}
    for stage, chunks in chunks_by_stage(candidate).items():
        sizes = [num_layers(chunk) for chunk in chunks]
        ends = [name for name in ("embedding", "head") if any(getattr(chunk, name) for chunk in chunks)]
        ends = ["vision tower", *ends] if has_tower and "embedding" in ends else ends
        ends = [*_stacks(chunks, encoder_layers), *ends] if encoder_layers else ends
        recomputed = sum(chunk.recompute_layers for chunk in chunks)
        milliseconds = (text.significant(1e3 * loads.stage_s[stage]),) if loads else ()
        needed = text.gib(memory[stage].device_bytes) if stage in memory else ""
        layers = ("+".join(map(str, sizes)), str(sum(sizes)), str(recomputed))
        row = (*layers, *milliseconds, needed, text.listed(ends))
        if groups and groups[-1][1] == row:
            groups[-1][0].append(stage)
        else:
            groups.append(([stage], row))
    names = ["  stage", "chunks", "layers", "recomputed", *(["ms"] if loads else []), "GiB", ""]
    rows = [(f"  {text.ranges(stages)}", *row) for stages, row in groups]
    return table(*names, rows=rows, right=names[2:-1])


def _stacks(chunks: list[Chunk], encoder_layers: int) -> list[str]:
    """The stacks whose layers the chunks of a stage hold."""
    layers = [layer for chunk in chunks if chunk.layers for layer in chunk.layers]
    held = {"encoder": any(layer < encoder_layers for layer in layers),
            "decoder": any(layer >= encoder_layers for layer in layers)}  # fmt: skip
    return [stack for stack, holds in held.items() if holds]


def why_these_stages(
    candidate: Candidate, loads: StageLoads, redistribution: Redistribution | None = None, *,
    has_tower: bool = False, placed: bool = False,
) -> list[str]:  # fmt: skip
    """Sentences: what embedding and head are worth, what even stages would take, what these do.

    placed: whether the request left the layers of every stage to the planner.
    """
    head, embedding = text.fixed(loads.head_layers, 1), text.fixed(loads.embedding_layers, 1)
    first = "the embedding with the vision tower" if has_tower else "the embedding"
    worth = f"the head is worth {head} layers and {first} {embedding}"
    lines = [f"ms: forward and backward of one micro-batch. In time, {worth}."]
    if len(loads.stage_s) == 1:
        return [text.wrapped(lines[0], "  ")]
    if redistribution is not None:
        lines.append(_over_all_stages(redistribution))
    if _is_custom(candidate, loads):
        lines.append(_custom_against_even(candidate, loads))
    else:
        lines.append(_even(loads, tried=placed))
    if loads.simulated and abs(loads.step_s / candidate.closed_s - 1) > _DIFFERS:
        simulated, closed = text.significant(loads.step_s), text.significant(candidate.closed_s)
        lines.append(f"Simulated operation by operation, a step takes {simulated} s; by the closed form {closed} s.")
    return [text.wrapped(line, "  ") for line in lines if line]


def _over_all_stages(spread: Redistribution) -> str:
    """Vocabulary parallelism against the same layout without it, and against its layers redistributed."""
    took = [f"{text.significant(spread.even_step_s)} s with even stages"]
    needed = [text.gib(spread.even_last_bytes)]
    if spread.own_layers:
        layers = text.listed(_shortened(spread.own_layers))
        took.append(
            f"{text.significant(spread.own_step_s)} s with layers redistributed (`--stages own`: {layers})"
        )
        needed.append(text.gib(spread.own_last_bytes))
    these = f"{text.significant(spread.step_s)} s per step, {text.gib(spread.last_bytes)} GiB on the last stage"
    others = f"the same layout takes {text.listed(took)}, and its last stage holds {text.listed(needed)} GiB"
    return f"Embedding and head are over all stages: {these}. With both on its ends, {others}. All simulated."


def _is_custom(candidate: Candidate, loads: StageLoads) -> bool:
    """Whether the stages differ from even ones: beside a vision tower, even ones have an id of their own, too."""
    by_stage = chunks_by_stage(candidate).values()
    layers = tuple(sum(num_layers(chunk) for chunk in chunks) for chunks in by_stage)
    partition = candidate.partition
    return partition is not None and (partition.recomputed is not None or layers != loads.even_layers)


def _custom_against_even(candidate: Candidate, loads: StageLoads) -> str:
    recomputes = any(chunk.recompute_layers for chunk in candidate.stages)
    layers = text.listed([str(number) for number in _shortened(loads.even_layers)])
    even = f"Even stages{' that all recompute alike' if recomputes else ''} ({layers} layers): "
    even += f"{_slowest(loads.even_stage_s)}, {text.significant(loads.even_step_s)} s per step, simulated"
    if loads.even_device_bytes > loads.memory_bytes:
        even += f", and {text.gib(loads.even_device_bytes)} GiB of {text.gib(loads.memory_bytes)} do not fit"
    return f"{even}. These: {_slowest(loads.stage_s)}, {text.significant(loads.step_s)} s."


def _even(loads: StageLoads, *, tried: bool) -> str:
    """The longest of even stages, with advice where `plan` can place their layers and was not asked to."""
    stage_s = loads.stage_s
    if max(stage_s) < (1 + _UNEVEN) * sum(stage_s) / len(stage_s):
        return ""
    better = " `plan --stages own` places the layers by time and memory." if loads.can_split and not tried else ""
    return f"The stages are even: {_slowest(stage_s)}.{better}"


def _slowest(stage_s: Sequence[float]) -> str:
    """`stage 3 takes 23 % longer than the mean one`."""
    longest, mean = max(stage_s), sum(stage_s) / len(stage_s)
    return f"stage {stage_s.index(longest)} takes {text.percent(longest / mean - 1)} % longer than the mean one"


def _shortened(layers: Sequence[int]) -> list[str]:
    """The layers of each stage; of many stages, the count of each number of layers."""
    if len(layers) <= 4:
        return [str(number) for number in layers]
    return [f"{layers.count(number)} x {number}" for number in sorted(set(layers))]
