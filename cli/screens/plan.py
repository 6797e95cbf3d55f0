"""The screens, as lists of parts (text and tables) made from the JSON form of a plan. No arithmetic beyond sums.

A part that is text is printed as it is; tables go at their natural width (`console.print_part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import text
from ..console import bar, table
from .heterogeneous import group_parts, rooms
from .layers import layer_lines
from .placement import order_lines

if TYPE_CHECKING:
    from rich.table import Table

    Part = str | Table

Json = Mapping[str, Any]

_BAR_CELLS = 25
_MOST_TERMS = 10
_MOST_STAGES = 5
_TOTALS = ("allocated_bytes", "reserved_bytes", "device_bytes")


def plan_screen(plan: Json, *, unicode: bool, saved_as: str | None = None) -> list[Part]:
    """What `meshwright plan` prints: the layouts, where the time of the first goes, how sure that is."""
    best = plan["candidates"][0]
    order = order_lines(best)
    return [
        header(plan),
        space_line(plan),
        "",
        candidates_table(plan["candidates"], plan["request"]["workload"].get("objective", "step")),
        "",
        *([stages_line(best), ""] if "-x" in best["layout_id"] and not best.get("layerwise") else []),
        *(part for part in [*layer_lines(plan["candidates"], capacity(plan)), ""] if layered(plan)),
        *([*groups, ""] if (groups := group_parts(plan, best)) else []),
        f"Where the {step_text(best)} of layout 1 go",
        terms_table(best, unicode=unicode),
        "",
        *([*order, ""] if order else []),
        *closing_lines(plan),
        f"Next: meshwright explain {saved_as}" if saved_as else "Next: add `-o plan.json` to keep this plan",
    ]


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


def candidates_table(candidates: Sequence[Json], objective: str = "step") -> Table:
    """A row per layout; the last column compares what was minimised with the first row."""
    places = text.decimals([candidate["step_s"] for candidate in candidates])
    aims = [peak_bytes(candidate) if objective == "memory" else candidate["step_s"] for candidate in candidates]
    costs = [candidate["cost_usd_per_mtoken"] for candidate in candidates]
    by_cost = objective == "cost" and None not in costs
    rows = [
        (
            str(candidate["choice"]),
            candidate["layout_id"],
            text.fixed(candidate["step_s"], places),
            text.percent(candidate["mfu"]),
            text.significant(cost) if by_cost else text.fixed(candidate["tokens_per_s_per_gpu"], 0),
            text.gib(peak_bytes(candidate)),
            "best" if candidate is candidates[0] else text.more(aim / aims[0] - 1),
        )
        for candidate, aim, cost in zip(candidates, aims, costs, strict=True)
    ]
    columns = ("#", "layout", "step s", "MFU %", "USD/Mtoken" if by_cost else "tok/s/GPU", "mem GiB")
    return table(*columns, "", rows=rows, right=columns[2:])


def peak_bytes(candidate: Json) -> float:
    """What the fullest GPU holds."""
    return max(float(stage["device_bytes"]) for stage in candidate["memory"])


def terms_table(candidate: Json, *, unicode: bool) -> Table:
    """The exposed terms, longest first, with bars as shares of the step; short ones drawn together."""
    terms = sorted((t for t in candidate["terms"] if t["exposed"]), key=lambda t: -t["seconds"])
    step_s = candidate["step_s"]
    places = text.decimals([step_s])
    rows = [
        (
            f"  {term['name']}",
            text.fixed(term["seconds"], places),
            bar(term["seconds"] / step_s, _BAR_CELLS, unicode=unicode),
            term["source"],
        )
        for term in terms[:_MOST_TERMS]
        if float(text.fixed(term["seconds"], places).replace(",", ""))
    ]
    rest = terms[len(rows) :]
    seconds = text.fixed(sum(term["seconds"] for term in rest), places)
    if float(seconds.replace(",", "")):
        rows.append((f"  {len(rest)} more", seconds, "", text.listed(sorted({term["source"] for term in rest}))))
    return headless(rows, numbers=(1,))


def stages_line(candidate: Json) -> str:
    """`Layers of the stages of layout 1: 3+3+4, 3+3+3 (2), ..`: chunk by chunk; recomputed ones in brackets."""
    stages = [_stage_text(rows) for rows in chunks_by_stage(candidate).values()]
    number = candidate["choice"]
    return text.wrapped(f"Layers on the {len(stages)} stages of layout {number}: {', '.join(stages)}", "  ")


def _stage_text(chunks: Sequence[Json]) -> str:
    redone = sum(chunk["recompute_layers"] for chunk in chunks)
    sizes = "+".join(str(num_layers(chunk)) for chunk in chunks)
    return f"{sizes} ({redone} recomputed)" if redone else sizes


def num_layers(chunk: Json) -> int:
    """Layers of a chunk."""
    return chunk["layers"][-1] - chunk["layers"][0] + 1 if chunk["layers"] else 0


def chunks_by_stage(candidate: Json) -> dict[int, list[Json]]:
    """The chunks of each stage, in the order of the model."""
    out: dict[int, list[Json]] = {}
    for chunk in sorted(candidate["stages"], key=lambda chunk: int(chunk["stage"])):
        out.setdefault(chunk["stage"], []).append(chunk)
    return out


def headless(rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> Table:
    """A table without a header; `numbers`: indices of the columns to align on the right."""
    names = [f"column {index}" for index in range(max((len(row) for row in rows), default=1))]
    result = table(*names, rows=rows, right=[names[index] for index in numbers if index < len(names)])
    result.show_header = False
    return result


def step_text(candidate: Json) -> str:
    return f"{text.significant(candidate['step_s'])} s"


def closing_lines(plan: Json) -> list[Part]:
    """How much of the time rests on measurements, which layouts the model cannot tell apart, what the search proved."""
    best = plan["candidates"][0]
    lines = [sources_line(best), *interval_lines(best), *tie_lines(plan), certificate_line(plan)]
    return [*lines, *outside_lines(plan), *technique_lines(plan), *run_lines(plan, best), ""]


def outside_lines(plan: Json) -> list[str]:
    """A faster layout of other software."""
    outside = plan.get("outside") or {}
    if not outside.get("targets"):
        return []
    gain, who = 1 - outside["step_s"] / plan["candidates"][0]["step_s"], outside["targets"][0]
    return [text.wrapped(f"{outside['layout_id']} on {who} would be {text.percent(gain)} % faster: `--target {who}`.")]


def technique_lines(plan: Json) -> list[Part]:
    """What the sets of allowed techniques give, best first; then those that cannot be, with the reason."""
    rows, reasons = technique_rows(plan)
    if not rows and not reasons:
        return []
    indented = [(f"  {name}", *more) for name, *more in rows]
    found = table("  techniques", "best", "layout", rows=indented, right=("best",))
    return ["", found, *([""] if reasons else []), *(text.wrapped(reason, "  ") for reason in reasons)]


def technique_rows(plan: Json) -> tuple[list[tuple[str, str, str]], list[str]]:
    """(techniques, value, layout) of every set that was left to the search, and a sentence for those that cannot be."""
    in_bytes = plan["resolved"]["workload"].get("objective") == "memory"
    rows: list[tuple[str, str, str]] = []
    refused: dict[str, list[str]] = {}
    for each in plan.get("technique_choices", []):
        name = " + ".join(each["names"]) or "none"
        if each["why"]:
            refused.setdefault(each["why"].splitlines()[0], []).append(name)
        else:
            value = f"{text.gib(each['value'])} GiB" if in_bytes else f"{text.significant(each['value'])} s"
            rows.append((name, value, each["layout_id"]))
    return rows, [f"Not {text.listed(names, 'or')}: {why}" for why, names in refused.items()]


def run_lines(plan: Json, candidate: Json) -> list[str]:
    """Days, GPU-hours and cost of the whole run, where its tokens are given."""
    tokens = plan["resolved"]["workload"].get("total_tokens")
    if not tokens or candidate.get("days") is None:
        return []
    line = f"{text.count(tokens)} tokens take {text.significant(candidate['days'])} days"
    if candidate.get("gpu_hours") is not None:
        line += f", {text.count(candidate['gpu_hours'])} GPU-hours"
    if candidate.get("cost_usd") is not None:
        line += f", {text.count(candidate['cost_usd'])} USD"
    return [f"{line}."]


def sources_line(candidate: Json) -> str:
    shares: dict[str, float] = {}
    for term in candidate["terms"]:
        if term["exposed"]:
            shares[term["source"]] = shares.get(term["source"], 0.0) + term["seconds"] / candidate["step_s"]
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return text.wrapped("Sources of this time: " + ", ".join(f"{text.share(part)} {name}" for name, part in ordered))


def interval_lines(candidate: Json) -> list[str]:
    """Where nine of ten published runs of this kind lie."""
    low, high = candidate.get("step_s_low"), candidate.get("step_s_high")
    if low is None or high is None:
        return []
    return [f"90 % interval of its step: {text.significant(low)} to {text.significant(high)} s"]


def tie_lines(plan: Json) -> list[str]:
    """Layouts that the model cannot tell apart from the first."""
    best, lead = plan["candidates"][0], plan.get("ranking_lead")
    ties = [c for c in plan["candidates"][1:] if lead and c["step_s"] <= best["step_s"] * (1 + lead)]
    if not ties or plan["request"]["workload"].get("objective") == "memory":
        return []
    numbers = text.listed([str(c["choice"]) for c in (best, *ties)])
    line = f"Layouts {numbers} are nearer to each other than the model tells apart ({text.percent(lead)} %): try them."
    return [text.wrapped(line)]


def certificate_line(plan: Json) -> str:
    certificate = plan["certificate"]
    better = {"memory": "smaller", "cost": "cheaper"}.get(plan["request"]["workload"].get("objective", ""), "faster")
    if certificate.get("stopped"):
        return f"The search was stopped ({certificate['stopped']}): a {better} layout may exist."
    if certificate["proven"]:
        return f"Proven: no other layout of this space is {better} by this model."
    if certificate["gap"] is None:
        return "Not searched: this is the layout that was asked for."
    placed = plan["candidates"][0]["placement"].get("order") is not None
    any_of = "any order of the nodes" if placed else "any split of its layers over the stages"
    any_of = "any way to use the groups of nodes and any split" if plan.get("ways") else any_of
    if layered(plan):
        any_of = "any choice of a strategy for every layer"
    return text.wrapped(
        f"Proven to {text.percent(certificate['gap'])} %: no layout of this space, in {any_of}, is {better} by "
        "more than that by this model."
    )


def layered(plan: Json) -> bool:
    """Whether a layout of the plan gives layers strategies of their own."""
    return any(candidate.get("layerwise") for candidate in plan["candidates"])


def memory_screen(plan: Json, candidate: Json) -> list[Part]:
    """Buffers by name, a column per group of equal stages."""
    groups = _stage_groups(candidate["memory"], rooms(candidate, capacity(plan)))
    return [
        header(plan),
        f"{candidate['layout_id']}: GiB per GPU, by pipeline stage",
        "",
        memory_table(groups),
        *([f"{len(groups)} different stages; the fullest are shown, `--json` has all"]
          if len(groups) > _MOST_STAGES else []),
    ]  # fmt: skip


def memory_table(groups: list[tuple[list[int], Json]]) -> Table:
    """Rows are buffers, columns are groups of stages that hold the same bytes."""
    if len(groups) > _MOST_STAGES:
        fullest = sorted(groups, key=lambda group: -group[1]["device_bytes"])[:_MOST_STAGES]
        groups = [group for group in groups if group in fullest]
    apart = (*_TOTALS, "context_bytes", "host_bytes")
    names = [name for name in groups[0][1] if name.endswith("_bytes") and name not in apart]
    shown = [name for name in names if any(stage[name] for _, stage in groups)]
    rows = [[text.words(name), *(text.gib(stage[name]) for _, stage in groups)] for name in shown]
    for name in ("allocated_bytes", "reserved_bytes", "context_bytes", "device_bytes"):
        rows.append([text.words(name), *(text.gib(stage[name]) for _, stage in groups)])
    rows.append(["may use", *(text.gib(stage["room"]) for _, stage in groups)])
    if any(stage.get("host_bytes") for _, stage in groups):
        rows.append(["host memory", *(text.gib(stage["host_bytes"]) for _, stage in groups)])
    columns = [f"stage {text.ranges(numbers)}" for numbers, _ in groups]
    return table("buffer", *columns, rows=rows, right=columns)


def _stage_groups(stages: Sequence[Json], rooms: Sequence[float]) -> list[tuple[list[int], Json]]:
    """Stages that hold the same bytes and may use as many (`room`)."""
    groups: dict[tuple[Any, ...], tuple[list[int], Json]] = {}
    for stage, room in zip(stages, rooms, strict=True):
        key = (room, *(value for name, value in stage.items() if name != "stage"))
        groups.setdefault(key, ([], {**stage, "room": room}))[0].append(stage["stage"])
    return list(groups.values())


def capacity(plan: Json) -> float:
    """What a layout that takes all GPUs for alike may use of each."""
    return float(plan["resolved"]["memory_bytes"])


def shown(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value) or "-"
    return text.significant(value) if isinstance(value, float) else str(value)
