"""The page of the explorer: its choices and sliders, around the answers of a Session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import text
from ..catalogues import known
from ..pages.templates import render
from ..screens.facts import Facts

if TYPE_CHECKING:
    from .session import Session

_PRECISIONS = ("bf16", "fp8", "fp4", "fp16", "fp32")
_FACTORS = tuple(2 ** (step / 4) for step in range(-8, 9))  # a quarter to four times
_POWERS = range(32)


@dataclass(frozen=True)
class Picked:
    """A choice among names. The first is what the plan has."""

    path: str
    label: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Slid:
    """A slider: what is sent for each place of it, and the place where it stands."""

    path: str
    label: str
    values: tuple[str, ...]
    words: tuple[str, ...]  # beside the slider at each place
    now: int


def form(session: Session) -> str:
    """The whole document."""
    plan, exploration = session.exploration.plan, session.exploration
    facts = Facts.of(plan)
    work, group = facts.work, facts.groups[0]
    num_gpus = sum(nodes.num_nodes * nodes.gpus_per_node for nodes in facts.groups)
    node = str(plan.resolved["cluster"]["groups"][0]["node"])
    picks = [
        Picked("model", "Model", (facts.model, *known("models"))),
        Picked("cluster", "Node", (node, *known("clusters"))),
        Picked("workload.precision", "Precision", (work.precision, *_PRECISIONS)),
    ]
    sizes = [
        _numbers("gpus", "GPUs", num_gpus, group.gpus_per_node, 2**15),
        _numbers("workload.global_batch", "Sequences per step", work.global_batch, 1, 2**15),
        _numbers("workload.seq_len", "Tokens per sequence", work.seq_len, 512, 2**20),
    ]
    knobs = [Slid(knob.path, knob.label, tuple(f"x{factor:.6g}" for factor in _FACTORS),
                  tuple(f"x{text.plain(factor)}" for factor in _FACTORS), _FACTORS.index(1.0))
             for knob in exploration.knobs(exploration.changed(()))]  # fmt: skip
    return render("explore.html", title=f"Explore {facts.model}", picks=picks, sizes=sizes, knobs=knobs)


def _numbers(path: str, label: str, now: int, least: int, most: int) -> Slid:
    """Powers of two times the least, and the number of the plan."""
    values = sorted({now, *(least << power for power in _POWERS if least << power <= most)})
    return Slid(path, label, tuple(map(str, values)), tuple(f"{value:,}" for value in values), values.index(now))
