"""What the stages of a pipeline hold and do, and why: the part of `explain` that is about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.table import Table

    from .parts import Json

_WORTH_SAYING = 0.02  # above the mean stage
_DIFFERS = 0.01  # the simulation from the closed form


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


def stages_table(candidate: Json, loads: Json | None) -> Table:
    """A row per run of equal stages: layers of their chunks, how many are recomputed, milliseconds of a micro-batch,
    memory, and what else they hold."""
    groups: list[tuple[list[int], tuple[str, ...]]] = []
    memory = {int(each["stage"]): each for each in candidate["memory"]}
    for stage, chunks in chunks_by_stage(candidate).items():
        sizes = [num_layers(chunk) for chunk in chunks]
        ends = [name for name in ("embedding", "head") if any(chunk.get(name) for chunk in chunks)]
        redone = sum(chunk.get("recompute_layers", 0) for chunk in chunks)
        done = (text.significant(1e3 * loads["stage_s"][stage]),) if loads else ()
        held = text.gib(memory[stage]["device_bytes"]) if stage in memory else ""
        row = ("+".join(map(str, sizes)), str(sum(sizes)), str(redone), *done, held, " and ".join(ends))
        if groups and groups[-1][1] == row:
            groups[-1][0].append(stage)
        else:
            groups.append(([stage], row))
    names = ["  stage", "chunks", "layers", "recomputed", *(["ms"] if loads else []), "GiB", ""]
    rows = [(f"  {text.ranges(stages)}", *row) for stages, row in groups]
    return table(*names, rows=rows, right=names[2:-1])


def why_these_stages(candidate: Json, loads: Json) -> list[str]:
    """Sentences: what embedding and head are worth, what even stages would take, what these do."""
    head, embedding = (text.fixed(loads[f"{end}_layers"], 1) for end in ("head", "embedding"))
    worth = f"the head is worth {head} layers and the embedding {embedding}"
    lines = [f"ms: forward and backward of one micro-batch. In time, {worth}."]
    lines.append(_spread(loads["redistribution"]) if "redistribution" in loads else "")
    lines.append(_own_against_even(candidate, loads) if "-x" in candidate["layout_id"] else _even(candidate, loads))
    closed = candidate.get("closed_form_s") or candidate["step_s"]
    if loads["simulated"] and abs(loads["step_s"] / closed - 1) > _DIFFERS:
        simulated, by_form = text.significant(loads["step_s"]), text.significant(closed)
        lines.append(f"Simulated operation by operation, a step takes {simulated} s; the closed form says {by_form} s.")
    return [text.wrapped(line, "  ") for line in lines if line]


def _spread(found: Json) -> str:
    """Vocabulary parallelism against the same layout without it, and against its layers redistributed."""
    ways = [("even_", "with even stages")]
    if found["own_layers"]:
        layers = text.listed(_shortened(found["own_layers"]))
        ways.append(("own_", f"with layers redistributed (`--stages own`: {layers})"))
    took = [f"{text.significant(found[f'{way}step_s'])} s {words}" for way, words in ways]
    held = text.listed([text.gib(found[f"{way}last_bytes"]) for way, _ in ways])
    these = f"{text.significant(found['step_s'])} s per step, {text.gib(found['last_bytes'])} GiB on the last stage"
    others = f"the same layout takes {text.listed(took)}, and its last stage holds {held} GiB"
    return f"Embedding and head are over all stages: {these}. With both on its ends, {others}. All simulated."


def _own_against_even(candidate: Json, loads: Json) -> str:
    alike = (any(chunk["recompute_layers"] for chunk in candidate["stages"]) and " that all recompute alike") or ""
    layers = text.listed([str(number) for number in _shortened(loads["even_layers"])])
    even = f"Even stages{alike} ({layers} layers): {_slowest(loads['even_stage_s'])}, "
    even += f"{text.significant(loads['even_step_s'])} s per step, simulated"
    if loads["even_device_bytes"] > loads["memory_bytes"]:
        even += f", and {text.gib(loads['even_device_bytes'])} GiB of {text.gib(loads['memory_bytes'])} do not fit"
    return f"{even}. These: {_slowest(loads['stage_s'])}, {text.significant(loads['step_s'])} s."


def _even(candidate: Json, loads: Json) -> str:
    stage_s = loads["stage_s"]
    if max(stage_s) < (1 + _WORTH_SAYING) * sum(stage_s) / len(stage_s):
        return ""
    better = " `plan --stages own` places the layers by time and memory."
    tried = candidate.get("closed_form_s") is not None or not loads["can_split"]
    return f"The stages are even: {_slowest(stage_s)}.{'' if tried else better}"


def _slowest(stage_s: list[float]) -> str:
    """`stage 3 takes 23 % longer than the mean one`."""
    longest, mean = max(stage_s), sum(stage_s) / len(stage_s)
    return f"stage {stage_s.index(longest)} takes {text.percent(longest / mean - 1)} % longer than the mean one"


def _shortened(layers: list[int]) -> list[str]:
    """Of many stages, how often each number of layers comes."""
    if len(layers) <= 4:
        return [str(number) for number in layers]
    return [f"{layers.count(number)} x {number}" for number in sorted(set(layers))]
