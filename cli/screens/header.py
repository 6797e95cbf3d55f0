"""The lines at the top of a screen: model, cluster and work of a plan, and how many layouts were searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text
from .facts import Facts

if TYPE_CHECKING:
    from ...planner.document.certificate import SpaceCount
    from ...planner.document.plan import Plan
    from ...planner.studies.tradeoffs import GpuCountsResult
    from .facts import Work


def header(result: Plan | GpuCountsResult) -> str:
    """`llama-3-70b on 32 x 8 h100-sxm-80gb, 1,024 x 8,192 tokens per step, bf16`."""
    facts = Facts.of(result)
    work = facts.work
    line = f"{facts.model} on {cluster_text(facts)}, {work_text(work)}"
    if work.lora_rank is not None:
        line += f", LoRA rank {work.lora_rank} on {work.base_dtype}"
    elif work.trains_layers:
        line += f", last {work.trains_layers} layers"
    if work.expert_capacity_factor is not None:
        line += f", expert capacity {work.expert_capacity_factor:g}"
    if work.reference:
        line += ", frozen reference"
    if work.reward_model:
        line += ", reward model"
    if work.source:
        line += f", {work.source}"
    if work.images:
        line += f", {work.images}"
    return text.wrapped(line)


def cluster_text(facts: Facts) -> str:
    """`32 x 8 h100-sxm-80gb`, groups joined by `+`."""
    return " + ".join(f"{group.num_nodes} x {group.gpus_per_node} {group.gpu}" for group in facts.groups)


def work_text(work: Work) -> str:
    """`1,024 x 8,192 tokens per step, bf16`."""
    return f"{work.global_batch:,} x {work.seq_len:,} tokens per step, {work.precision}"


def space_line(space: SpaceCount, *, stopped: bool, noun: str = "layouts") -> str:
    """`4,212 layouts: 3,105 invalid, 846 out of memory, 261 priced`: the numbers add up to the first."""
    parts = [
        (sum(space.ruled_out.values()), "ruled out"),
        (space.dominated, "dominated"),
        (space.out_of_memory, "out of memory"),
        (space.bounded, "bounded away"),
        (space.priced, "priced"),
        (space.unvisited if stopped else 0, "not reached"),
    ]
    counted = ", ".join(f"{text.count(number)} {word}" for number, word in parts if number)
    return text.wrapped(f"{text.count(space.total)} {noun}: {counted}")
