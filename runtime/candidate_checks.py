"""Layouts of hand-edited plans, held against their GPUs, batch, stages and placement. No torch here."""

from __future__ import annotations

from ..cost_models.degrees import sequence_parts
from ..cost_models.layouts import Layout, Layouts
from ..cost_models.quantities.stages import devices_of
from ..cost_models.specs.model import ModelSpec
from ..cost_models.specs.workload import Workload
from ..errors import FieldProblem, InputError
from ..planner.document.candidate import Candidate, Chunk
from ..planner.document.plan import Plan


def check_candidate(
    candidate: Candidate, layout: Layout, model: ModelSpec, workload: Workload, plan: Plan, name: str
) -> None:
    """Problems of a hand-edited plan: GPUs, batch, stages and placement must fit together."""
    where, problems = f"candidates.{candidate.choice - 1}", []

    def wrong(field: str, text: str) -> None:
        problems.append(FieldProblem(text, file=name, field=field, hint="the file was edited; plan again"))

    groups = plan.resolved.get("cluster", {}).get("groups", ())
    gpus = sum(int(group["num_nodes"]) * int(group["gpus_per_node"]) for group in groups)
    if candidate.spread is not None:  # perhaps on some groups of the cluster only
        gpus = candidate.spread.num_gpus
    if gpus and gpus != layout.num_gpus:
        wrong(f"{where}.layout", f"uses {layout.num_gpus} GPUs, the cluster has {gpus}")
    if workload.global_batch % (layout.dp * layout.micro_batch):
        wrong(f"{where}.layout.micro_batch", f"dp {layout.dp} x {layout.micro_batch} does not divide the global batch")
    chunks, parts = (int(column[0]) for column in sequence_parts(Layouts.of([layout])))
    if workload.seq_len % parts:
        split = f"cp {layout.cp} makes {chunks} chunks, each in {parts // chunks} parts: {parts} do not divide"
        wrong(f"{where}.layout.cp", f"{split} the {workload.seq_len} tokens of a sequence")
    if layout.dp % layout.shard:
        wrong(f"{where}.layout.shard", f"{layout.shard} does not divide dp {layout.dp}")
    for reason in _stage_problems(candidate.stages, layout, model):
        wrong(f"{where}.stages", reason)
    nodes = sum(int(group["num_nodes"]) for group in groups)
    if candidate.spread is None and nodes and (misfit := candidate.placement.problem(layout.num_gpus, nodes)):
        wrong(f"{where}.placement.{misfit[0]}", misfit[1])
    if problems:
        raise InputError.of(problems)


def _stage_problems(chunks: tuple[Chunk, ...], layout: Layout, model: ModelSpec) -> list[str]:
    devices = devices_of(layout)
    if [chunk.stage for chunk in chunks] != devices:
        return [f"must be on the stages {devices} of the schedule, one chunk after the other"]
    problems, following = [], 0
    for index, chunk in enumerate(chunks):
        if chunk.layers and chunk.layers[0] != following:
            problems.append(f"chunk {index} must start with layer {following}, not {chunk.layers[0]}")
        following = chunk.layers[-1] + 1 if chunk.layers else following
        if chunk.embedding != (index == 0) or chunk.head != (index == len(chunks) - 1):
            problems.append(f"chunk {index}: the embedding belongs to the first chunk and the head to the last")
    taps, first = model.tower.deepstack if model.tower is not None else 0, chunks[0].layers
    if len(chunks) > 1 and taps and (not first or first[-1] + 1 < taps):
        problems.append(f"chunk 0: the vision tower adds to the first {taps} layers, which stay with it")
    if following != model.num_layers:
        problems.append(f"hold {following} layers, the model has {model.num_layers}")
    return problems
