"""The lines at the top of a screen: model, cluster and work of a plan, and how many layouts were searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text

if TYPE_CHECKING:
    from .parts import Json


def header(plan: Json) -> str:
    """`llama-3-70b on 32 x 8 h100-sxm-80gb, 1,024 x 8,192 tokens per step, bf16`."""
    work = plan["resolved"]["workload"]
    line = f"{plan['resolved']['model']['name']} on {cluster_text(plan)}, "
    line += f"{work['global_batch']:,} x {work['seq_len']:,} tokens per step, {work['precision']}"
    lora = work.get("lora")
    if lora:
        line += f", LoRA rank {lora['rank']} on {lora['base_dtype']}"
    elif work.get("trains_layers"):
        line += f", last {work['trains_layers']} layers"
    factor = plan["request"]["workload"].get("expert_capacity_factor")
    if factor is not None:
        line += f", expert capacity {factor:g}"
    return text.wrapped(line)


def cluster_text(plan: Json) -> str:
    """`32 x 8 h100-sxm-80gb`, groups joined by `+`."""
    groups = plan["resolved"]["cluster"]["groups"]
    return " + ".join(f"{group['num_nodes']} x {group['gpus_per_node']} {group['gpu']['name']}" for group in groups)


def space_line(plan: Json) -> str:
    """`4,212 layouts: 3,105 invalid, 846 out of memory, 261 priced`: the numbers add up to the first."""
    space = plan["certificate"]["space"]
    parts = [
        (sum(space["ruled_out"].values()), "ruled out"),
        (space["dominated"], "dominated"),
        (space["out_of_memory"], "out of memory"),
        (space["bounded"], "bounded away"),
        (space["priced"], "priced"),
        (space["unvisited"] if plan["certificate"].get("stopped") else 0, "not reached"),
    ]
    counted = ", ".join(f"{text.count(number)} {word}" for number, word in parts if number)
    return text.wrapped(f"{text.count(space['total'])} layouts: {counted}")
