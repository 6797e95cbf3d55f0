"""The report on a plan of post-training as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from .. import text
from ..screens import rl_plan as screen
from .templates import on_one_line, render

if TYPE_CHECKING:
    from ...planner.document.rl_plan import RlCall, RlCandidate, RlPlan

_LEFT, _WIDTH = 80, 920  # margin with the numbers of GPUs, and the timeline, in units of its view box
_BAND = (24, 160)  # least and greatest height of GPUs that run the same calls
_PER_GPU = 4.0  # units of height of a GPU between these
_TICKS = 4
_LETTER = 8.0  # units of width of a letter in a block


@dataclass(frozen=True)
class Block:
    """A call on a band of GPUs. Positions in units of the view box."""

    color: int
    left: float
    width: float
    label: str  # empty where the block is too narrow for it
    title: str


@dataclass(frozen=True)
class Band:
    """Neighbouring GPUs that run the same calls."""

    name: str
    top: float
    height: float
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Segment:
    """A part of a GPU's memory; width in %."""

    color: int
    width: float
    title: str
    stays: bool  # a model that lies there while another one runs


def post_training_page(plan: RlPlan, choice: int) -> str:
    """The whole document."""
    candidate = plan.candidate(choice)
    bands = _bands(candidate)
    columns = ["call", "model", "GPUs", "from s", "to s", "weights move s", "layout"]
    calls = [[it.name, it.model, _gpus(it), text.significant(it.start_s), text.significant(it.end_s),
              text.significant(it.moves_s), screen.layout_text(it)] for it in candidate.calls]  # fmt: skip
    placements = [[str(it.choice), it.placement_id, str(it.lag), text.significant(it.step_s),
                   text.significant(it.tokens_per_s_per_gpu), text.percent(it.idle)] for it in plan.candidates]
    return render(
        "post_training.html", plan=plan, candidate=candidate, chosen=choice,
        title=f"{plan.resolved['models']['policy']['name']}: {candidate.placement_id}",
        header=_lines(screen.header(plan)), why=_lines(screen.reasons(candidate)), tiles=_tiles(candidate),
        placements=(["#", "placement", "lag", "step s", "tok/s/GPU", "idle %"], placements), calls=(columns, calls),
        bands=bands, names=[it.name for it in candidate.calls], size=(_LEFT + _WIDTH, bands[-1].top + bands[-1].height),
        ticks=[(_LEFT + _WIDTH * k / _TICKS, text.duration(candidate.step_s * k / _TICKS))
               for k in range(1, _TICKS + 1)], memory=_memory(plan, candidate), proof=_lines(screen.proof(plan)),
    )  # fmt: skip


def _lines(parts: Sequence[object]) -> list[str]:
    return [line for part in parts if isinstance(part, str) and (line := on_one_line(part))]


def _gpus(call: RlCall) -> str:
    return f"{call.first_gpu}-{call.first_gpu + call.gpus - 1}"


def _tiles(candidate: RlCandidate) -> list[tuple[str, str, str]]:
    """(name, number, note)."""
    lag = candidate.lag
    age = f"answers up to {lag} step{'s' * (lag > 1)} old" if lag else "all calls take turns"
    return [
        ("step", text.duration(candidate.step_s), age),
        ("tokens", f"{text.significant(candidate.tokens_per_s_per_gpu)}/s per GPU", "of prompts and answers"),
        ("GPUs", f"{candidate.training_gpus} train", f"{candidate.rollout_gpus} generate"),
        ("idle", f"{text.percent(candidate.idle)} %", "of GPU seconds without a call"),
        ("binds", screen.BINDS[candidate.binds], ""),
    ]  # fmt: skip


def _bands(candidate: RlCandidate) -> list[Band]:
    """From the first GPU on, without a gap."""
    edges = sorted({edge for call in candidate.calls for edge in (call.first_gpu, call.first_gpu + call.gpus)})
    out, top = list[Band](), 0.0
    for first, end in pairwise(edges):
        height = min(max(_PER_GPU * (end - first), _BAND[0]), _BAND[1])
        blocks = tuple(_block(candidate, color, call) for color, call in enumerate(candidate.calls)
                       if call.first_gpu <= first < call.first_gpu + call.gpus)
        out.append(Band(f"{first}-{end - 1}", top, height, blocks))
        top += height
    return out


def _block(candidate: RlCandidate, color: int, call: RlCall) -> Block:
    left, right = (_LEFT + _WIDTH * at / candidate.step_s for at in (call.start_s, call.end_s))
    title = f"{call.name}: {text.duration(call.start_s)} to {text.duration(call.end_s)}, {screen.layout_text(call)}"
    label = call.name if _LETTER * len(call.name) < right - left else ""
    return Block(color, left, right - left, label, title)


def _memory(plan: RlPlan, candidate: RlCandidate) -> list[tuple[str, str, list[Segment]]]:
    """(call, GiB, parts) of a GPU while each call runs: its own bytes, and models that stay."""
    colors = {call.name: color for color, call in enumerate(candidate.calls)}
    # The last call of a role is the one that trains it, if any does.
    homes: dict[str, str] = {call.role: call.name for call in candidate.calls if call.kind != "generate"}
    device = max(float(group["gpu"]["memory_bytes"]) for group in plan.resolved["cluster"]["groups"])
    out = []
    for call in candidate.calls:
        own = f"{call.name}: {text.gib(call.peak_bytes)} GiB"
        parts = [Segment(colors[call.name], 100 * call.peak_bytes / device, own, stays=False)]
        for role, number in call.resident_bytes.items():
            title = f"{role} stays: {text.gib(number)} GiB"
            parts.append(Segment(colors[homes[role]], 100 * number / device, title, stays=True))
        held = call.peak_bytes + sum(call.resident_bytes.values())
        out.append((call.name, f"{text.gib(held)} of {text.gib(device)} GiB", parts))
    return out
