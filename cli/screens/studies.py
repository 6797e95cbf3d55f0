"""The screens of the scaling, generation and reliability studies, made from the JSON form of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .sweep import best
from .what_if import change_lines, footnotes

if TYPE_CHECKING:
    from .parts import Json, Part



def scaling_screen(result: Json, header: str) -> list[Part]:
    """A line per number of GPUs."""
    batch = result["mode"] == "weak"
    shown = [best(point) for point in result["points"]]
    places = text.decimals([each["step_s"] for each in shown if each])
    rows = []
    for point, each, efficiency in zip(result["points"], shown, result["efficiency"], strict=True):
        row = [f"{int(point['values']['gpus']):,}"]
        row += [f"{int(point['values']['workload.global_batch']):,}"] if batch else []
        row += [text.fixed(each["step_s"] if each else None, places)]
        row += [text.fixed(each["tokens_per_s"] if each else None, 0), text.percent(efficiency)]
        mark = " <- plan" if point["values"]["gpus"] == result["axes"][0]["now"] else ""
        rows.append([*row, (each["layout_id"] if each else "nothing fits") + mark])
    columns = ["GPUs", *(["batch"] if batch else []), "step s", "tokens/s", "efficiency %", "best layout"]
    what = "the batch grows with the GPUs" if batch else "the same step on more GPUs"
    key = "Efficiency: tokens per second and GPU, over those of the smallest number of GPUs that runs."
    return [header, *change_lines(result["changes"]), f"{result['mode'].title()} scaling: {what}", "",
            table(*columns, rows=rows, right=columns[:-1]), "", text.wrapped(key), ""]  # fmt: skip


def generations_screen(result: Json, header: str) -> list[Part]:
    """A line per accelerator."""
    shown = [best(point) for point in result["points"]]
    places = text.decimals([each["step_s"] for each in shown if each])
    priced = any(each and each["usd_per_ttoken"] is not None for each in shown)
    rows = []
    for point, each, node, speedup in zip(result["points"], shown, result["nodes"], result["speedup"], strict=True):
        row = [node, text.fixed(each["step_s"] if each else None, places)]
        row.append("-" if speedup is None else f"x{text.significant(speedup)}")
        row += [text.fixed(each["usd_per_ttoken"] if each else None, 0)] if priced else []
        row.append(text.significant(each["mwh_per_ttoken"]) if each else "-")
        mark = " <- plan" if point["values"]["gpu"] == result["axes"][0]["now"] else ""
        rows.append([*row, (each["layout_id"] if each else "nothing fits") + mark])
    columns = ["nodes", "step s", "speed", *(["USD/Ttoken"] if priced else []), "MWh/Ttoken", "best layout"]
    key = "As many GPUs of each, in the nodes they are usually built into; precision and batch stay."
    return [header, *change_lines(result["changes"]), "",
            table(*columns, rows=rows, right=columns[1:-1]), "", text.wrapped(key), *footnotes(shown), ""]  # fmt: skip


def reliability_screen(result: Json, header: str) -> list[Part]:
    """A line per number of GPUs, and what it rests on."""
    rows = [
        [f"{row['num_gpus']:,}", text.duration(row["mtbf_s"]), text.duration(row["checkpoint_s"]),
         text.duration(row["interval_s"]), text.percent(row["goodput"]),
         "<- plan" if row["num_gpus"] == result["now"] else ""]
        for row in result["rows"]
    ]  # fmt: skip
    columns = ["GPUs", "fails every", "checkpoint", "best interval", "goodput %"]
    here = next((row for row in result["rows"] if row["num_gpus"] == result["now"]), None)
    lines: list[Part] = [header, *change_lines(result["changes"]), ""]
    lines += [table(*columns, "", rows=rows, right=columns), ""]
    if here is not None:
        kept = text.fixed(result["tokens_per_s"] * here["goodput"], 0)
        speed = f"{text.fixed(result['tokens_per_s'], 0)} tokens/s of {result['layout_id']}"
        lines.append(text.wrapped(f"Of {speed}, {kept} are left after failures and checkpoints."))
    lines += ["", f"Rests on a checkpoint of {text.gib(result['checkpoint_bytes'])} GiB, and on"]
    for each in result["assumptions"]:
        shown = text.duration(each["value"]) if each["dimension"] == "s" else text.quantity(each["value"], "B/s")
        lines.append(text.wrapped(f"  {each['name']} {shown}: {each['source']}", "    "))
    return [*lines, "`--assume name=value` changes them.", ""]
