"""The screen of a plan of post-training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from .. import text
from ..console import table
from .header import space_line
from .parts import headless

if TYPE_CHECKING:
    from ...planner.document.rl_plan import RlCall, RlCandidate, RlPlan
    from .parts import Part

_COLUMNS = 56  # of the timeline
_LEAST_GAP = 0.0005  # that prints as more than 0.0 %
BINDS = {"generation": "generation", "training": "training", "scoring": "scoring of the answers",
         "moves": "weights that move", "controller": "the controller (data, rewards, logs)"}  # fmt: skip


def screen(plan: RlPlan, chosen: RlCandidate, saved_as: str | None) -> list[Part]:
    """The placements, then one of them: its calls, when each runs on which GPUs, what binds, the proof."""
    lines = [*header(plan), "", _candidates(plan), "", *explanation(chosen), "", *reasons(chosen), *factors(plan),
             *proof(plan)]  # fmt: skip
    return [*lines, "", _next(saved_as)]


def explanation(chosen: RlCandidate) -> list[Part]:
    """Calls of a placement, and when each runs on which GPUs."""
    return [f"Placement {chosen.choice}: {chosen.placement_id}", _calls(chosen), "", *timeline(chosen)]


def memory(chosen: RlCandidate) -> list[Part]:
    """Bytes of a GPU in every call, by what lies there."""
    roles = sorted({role for call in chosen.calls for role in call.resident_bytes})
    rows = [(f"  {call.name}", f"{call.first_gpu}-{call.first_gpu + call.gpus - 1}", text.significant(call.start_s),
             text.significant(call.end_s), text.gib(call.peak_bytes),
             *(text.gib(call.resident_bytes.get(role, 0.0)) for role in roles)) for call in chosen.calls]  # fmt: skip
    names = ("from s", "to s", "its own", *roles)
    return ["GiB of a GPU: the call's own, and other models that stay", table("  call", "GPUs", *names, rows=rows,
                                                                             right=names)]  # fmt: skip


def header(plan: RlPlan) -> list[Part]:
    """The request, and the lengths of answers."""
    work, resolved = plan.request["workload"], plan.resolved
    groups = resolved["cluster"]["groups"]
    nodes = " + ".join(f"{group['num_nodes']} x {group['gpus_per_node']} {group['gpu']['name']}" for group in groups)
    lengths = resolved["answers"]
    generated, per_step = generates(plan.best), lengths["per_step"]
    frameworks = f"{resolved['trainer']} and {resolved['engine']}" if generated else resolved["trainer"]
    if target := plan.request["target"]:
        frameworks += f" in {target}"
    samples = per_step // work["prompts"]
    number = f"{work['prompts']:,} x {samples} answers" if generated else f"{work['prompts']:,} pairs"
    first = f"{work['algorithm']} of {resolved['models']['policy']['name']} on {nodes}, {frameworks}; {number} a step"
    second = (f"{'Answers' if generated else 'Given answers'}: {lengths['mean']:,.0f} tokens in the mean, 90 % up to "
              f"{lengths['p90']:,.0f}, the longest of {per_step:,} has {lengths['longest']:,.0f}")  # fmt: skip
    return [text.wrapped(first), text.wrapped(second)]


def generates(chosen: RlCandidate) -> bool:
    """Whether a call of the step generates answers."""
    return any(call.kind == "generate" for call in chosen.calls)


def _candidates(plan: RlPlan) -> Part:
    rows = [(str(it.choice), it.placement_id, str(it.lag), text.significant(it.step_s),
             text.significant(it.tokens_per_s_per_gpu), text.percent(it.idle)) for it in plan.candidates]  # fmt: skip
    names = ("lag", "step s", "tok/s/GPU", "idle %")
    return table("#", "placement", *names, rows=rows, right=names)


def _calls(chosen: RlCandidate) -> Part:
    rows = [(f"  {call.name}", f"{call.first_gpu}-{call.first_gpu + call.gpus - 1}", text.significant(_seconds(call)),
             text.gib(call.peak_bytes + sum(call.resident_bytes.values())), layout_text(call))
            for call in chosen.calls]  # fmt: skip
    return table("  call", "GPUs", "s", "mem GiB", "layout", rows=rows, right=("s", "mem GiB"))


def _seconds(call: RlCall) -> float:
    return call.end_s - call.start_s


def layout_text(call: RlCall) -> str:
    """The layout of a call: that of training, or the instances of the engine."""
    engine = call.engine
    if engine is None and call.rank_tokens:
        return f"{call.layout_id}, answers on {_ranks(call.degrees)}, {call.rank_tokens:,} tokens on each"
    if engine is None:
        return call.layout_id or ""
    degrees = [f"tp{engine.tp}", *(f"{name}{value}" for name, value in (
        ("pp", engine.pp), ("dp", engine.attention_dp), ("ep", engine.ep)) if value > 1)]  # fmt: skip
    return f"{engine.instances} x {'-'.join(degrees)}, {engine.cache_sequences:,} sequences each"


def _ranks(degrees: Sequence[int]) -> str:
    """`1, 2 or 4 ranks`."""
    *most, last = map(str, degrees)
    return f"{', '.join(most)} or {last} ranks" if most else f"{last} rank{'s' * (degrees[-1] > 1)}"


def timeline(chosen: RlCandidate) -> list[Part]:
    """Calls over GPUs: a row for GPUs that run the same calls, a column for a share of the step."""
    edges = sorted({edge for call in chosen.calls for edge in (call.first_gpu, call.first_gpu + call.gpus)})
    letters = dict(zip([call.name for call in chosen.calls], "ABCDEFGHIJ", strict=False))
    rows = []
    for first, end in pairwise(edges):
        calls = [it for it in chosen.calls if it.first_gpu <= first < it.first_gpu + it.gpus]
        cells = ["."] * _COLUMNS
        for name, start, stop in _columns(calls, chosen.step_s):
            cells[start:stop] = letters[name] * (stop - start)
        rows.append((f"  {first}-{end - 1}", "".join(cells)))
    legend = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    idle = "idle, new weights, data" if generates(chosen) else "idle"
    return [headless(rows), text.wrapped(f"  {legend}, . {idle}; {text.significant(chosen.step_s)} s")]


def _columns(calls: Sequence[RlCall], step_s: float) -> list[tuple[str, int, int]]:
    """First column of each call on a GPU, and the one after its last: one at least, for which others give way."""
    drawn, free = list[tuple[str, int, int]](), 0
    for call in sorted(calls, key=lambda it: (it.start_s, it.end_s)):
        start, stop = (round(at / step_s * _COLUMNS) for at in (call.start_s, call.end_s))
        start = max(start, free)
        free = max(stop, start + 1)
        drawn.append((call.name, start, free))
    end = _COLUMNS
    for index, (name, start, stop) in reversed(list(enumerate(drawn))):
        stop = min(stop, end)
        end = min(start, stop - 1)
        drawn[index] = name, end, stop
    return drawn


def reasons(chosen: RlCandidate) -> list[Part]:
    """The call that binds, the moves of weights, and the division of the GPUs."""
    moved = chosen.sync_s + sum(call.moves_s for call in chosen.calls)
    beyond = (f", {text.duration(chosen.sync_s)} of them to the engine, and "
              f"{text.duration(chosen.controller_s)} into data, rewards and logs, as in NeMo-RL")  # fmt: skip
    lines: list[Part] = [text.wrapped(
        f"{BINDS[chosen.binds].capitalize()} binds; {text.duration(moved)} go into weights that move"
        f"{beyond if generates(chosen) else ''}.")]  # fmt: skip
    if chosen.lag:
        lines.append(text.wrapped(
            f"{chosen.training_gpus} GPUs train and {chosen.rollout_gpus} generate; answers are up to {chosen.lag} "
            f"step{'s' * (chosen.lag > 1)} older than the weights that train on them."))  # fmt: skip
    return lines


def factors(plan: RlPlan) -> list[Part]:
    """Times that calls take longer than tuned runs, and the framework whose steps show it."""
    given, target = plan.resolved.get("factors"), plan.request["target"]
    if given is None:
        return []
    copies = given.get("copies")
    slow = f", and copies to the host {copies:.1f} times as long as over their link" if copies else ""
    others = "" if target == "nemo-rl" else f", assumed of {target or 'other frameworks'}"
    return [text.wrapped(f"Training takes {given['training']:.2f} times as long as in tuned runs{slow}: fitted to "
                         f"steps of NeMo-RL{others}.")]  # fmt: skip


def proof(plan: RlPlan) -> list[Part]:
    """The counts of all placements, and the distance of the best from the bound."""
    certificate = plan.certificate
    most = f"more than {text.percent(certificate.gap)} % faster" if certificate.gap >= _LEAST_GAP else "faster"
    target = plan.request["target"]
    space = f"that {target} runs" if target else "of this space"
    proven = f"Proven by this model's prices: no other placement {space} is {most}."
    if not certificate.proven:
        gap = text.percent(certificate.gap)
        proven = f"The search stopped early: another placement may be up to {gap} % faster."
    stopped = certificate.space.unvisited > 0
    return [space_line(certificate.space, stopped=stopped, noun="placements"), text.wrapped(proven)]


def _next(saved_as: str | None) -> str:
    return f"Next: meshwright explain {saved_as}" if saved_as else "Next: add `-o plan.json` to keep this plan"
