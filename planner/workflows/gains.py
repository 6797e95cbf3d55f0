"""Gains of searched placements over one symmetric layout, beside those that ReaLHF measured of its own search.

The weak scaling in the README of openpsi-project/ReaLHF@be75fce9: PPO of LLaMA models that grow with the GPUs; the
policy, the critic or both grow, the other has 7B. The script that drew it (visualize_weak_scaling,
deleted in b1b6b74b) has 2^17 tokens a step: 128 sequences of 1,024 tokens, 896 of them generated; PPO has 4
mini-batches. The throughput of the heuristic is that of the slowest of several trials, and that of the search of the
fastest (auto_ppo_parselog, deleted in b1b6b74b). Both placements are priced as ReaLHF ran then, by `realhf.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..accuracy.row import RowReader
from ..request.reinforcement import RlRequest
from ..targets.post_training.core import PLAIN
from .graph import graph_of
from .meshes import Mesh, sub_meshes
from .prices import Prices
from .problem import RlProblem
from .realhf import GPU, PARTS_ALONE, one_layout, software
from .resolve import rl_problem_of
from .search import PlacementSearch

_SIZES = ("llama-2-7b", "llama-2-13b", "codellama-34b", "llama-2-70b")
_SEQUENCES, _TOKENS, _GENERATED, _UPDATES = 128, 1024, 896, 4
SEARCHED, HEURISTIC = "ReaL", "ReaL-Heuristic"


@dataclass(frozen=True, slots=True, kw_only=True)
class GainCase:
    """A measured throughput of ReaLHF. scaled: actor, critic or both, the models that grow with the GPUs."""

    id: str
    group: str  # runs of the same models on the same GPUs
    searched: bool
    gpus: int
    scaled: str
    throughput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RlGain:
    """The step of one symmetric layout over that of the searched placement."""

    first: str  # the row of the heuristic
    second: str
    gain: float
    measured_gain: float


def read_gain_row(row: RowReader) -> GainCase | None:
    """The run of a row of ReaLHF; None for other rows."""
    parts, throughput = str(row.get("group")).split("-"), row.number("measured", "throughput_pflop_per_s")
    if row.get("system") not in (SEARCHED, HEURISTIC) or parts[:2] != ["real", "scale"] or throughput is None:
        return None
    case = GainCase(
        id=row.text("id"), group=row.text("group"), searched=row.get("system") == SEARCHED, scaled=parts[2],
        gpus=row.whole("num_gpus"), throughput=throughput,
    )  # fmt: skip
    return case if case.gpus in _gpus(case.scaled) else None


def gains(cases: Sequence[GainCase]) -> list[RlGain]:
    """The gain of every searched run beside the heuristic of its group."""
    heuristics = {case.group: case for case in cases if not case.searched}
    pairs = [(heuristics[case.group], case) for case in cases if case.searched and case.group in heuristics]
    return [RlGain(first=heuristic.id, second=case.id, gain=_gain(case),
                   measured_gain=case.throughput / heuristic.throughput) for heuristic, case in pairs]  # fmt: skip


def _gpus(scaled: str) -> list[int]:
    """GPUs by size of the model that grows."""
    return [(16 if scaled == "both" else 8) * 2**size for size in range(len(_SIZES))]


def _gain(case: GainCase) -> float:
    rl = question_for(case)
    best = search_for(rl).run()
    heuristic = search_for(replace(rl, fixed=one_layout(case.gpus))).together()
    return heuristic.step_s / best.step_s if heuristic is not None and best is not None else float("nan")


def search_for(rl: RlProblem) -> PlacementSearch:
    """The search over all placements, by the prices of ReaLHF."""
    meshes = sub_meshes(Mesh(0, rl.cluster.num_gpus), rl.cluster.gpus_per_node)
    prices = Prices(rl).under(PARTS_ALONE)
    return PlacementSearch(prices, graph_of(rl.work), meshes, rl.resolved.budget_bytes)


def question_for(case: GainCase) -> RlProblem:
    """The step that was measured."""
    grown = _SIZES[_gpus(case.scaled).index(case.gpus)]
    policy, critic = (grown if case.scaled in (name, "both") else _SIZES[0] for name in ("actor", "critic"))
    request = RlRequest.model_validate({"model": policy, "gpu": GPU, "gpus": case.gpus, "workload": {
        "kind": "rl", "algorithm": "ppo", "prompts": _SEQUENCES, "input": _TOKENS - _GENERATED,
        # All answers are equally long: lengths of a mean, a 90th percentile and an end one token apart.
        "output": _GENERATED - 1, "output_p90": _GENERATED, "output_max": _GENERATED + 1,
        "updates": _UPDATES, "critic": critic, "reward": critic, "old_logprobs": False,
    }})  # fmt: skip
    return replace(rl_problem_of(request)[0], software=software(_SEQUENCES, _TOKENS, _UPDATES), switches=PLAIN)
