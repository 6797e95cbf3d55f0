"""The outlook of a training run: days, tokens per day, GPU-hours, energy and money, out of the plan alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...cost_models.units import DAY_S, HOUR_S
from ..document.candidate import Candidate
from ..document.plan import Plan


@dataclass(frozen=True)
class Outlook:
    """Time, tokens and cost of the whole run where its tokens are given, else of one day."""

    whole_run: bool
    tokens: float  # of the run, or of a day
    days: float
    tokens_per_day: float
    gpu_hours: float
    usd_per_gpu_hour: float | None  # None: some node has no price
    price_of: str  # whose price that is; empty without one
    spot: Mapping[str, float] | None  # on spot nodes: fields of Goodput; the numbers above then hold with interruptions
    mwh: float | None  # of the GPUs at their board power, without hosts, network and cooling; None: not known of all

    @property
    def usd(self) -> float | None:
        return None if self.usd_per_gpu_hour is None else self.gpu_hours * self.usd_per_gpu_hour


def outlook(plan: Plan, candidate: Candidate) -> Outlook:
    """The outlook of a layout of the plan."""
    groups = _used(plan.resolved["cluster"]["groups"], candidate)
    num_gpus = sum(_num_gpus(group) for group in groups)
    spot = plan.resolved.get("spot")
    tokens_per_day = candidate.tokens_per_s_per_gpu * num_gpus * DAY_S * (spot["goodput"] if spot else 1.0)
    run_tokens = plan.resolved["workload"].get("total_tokens")
    days = run_tokens / tokens_per_day if run_tokens else 1.0
    gpu_hours = days * num_gpus * DAY_S / HOUR_S
    price, price_of = price_per_hour(groups)
    powers = [group["gpu"].get("tdp_w") for group in groups]
    watts = sum(power * _num_gpus(group) for power, group in zip(powers, groups, strict=True)) if all(powers) else None
    return Outlook(
        whole_run=bool(run_tokens), tokens=float(run_tokens or tokens_per_day), days=days,
        tokens_per_day=tokens_per_day, gpu_hours=gpu_hours,
        usd_per_gpu_hour=None if price is None else price / num_gpus, price_of=price_of, spot=spot,
        mwh=None if watts is None else watts * days * DAY_S / HOUR_S / 1e6,
    )  # fmt: skip


def price_per_hour(groups: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
    """(dollars per hour of all nodes, whose prices they are); (None, "") where a node has none, and no rented one has
    its GPU."""
    total, sources = 0.0, list[str]()
    for group in groups:
        price, rent = group.get("price_usd_per_node_hour"), group.get("rent")
        if price is not None:
            total += price * group["num_nodes"]
            unconfirmed = ", unconfirmed" if "price" in group.get("unconfirmed", ()) else ""
            sources.append(f"price of {group['node']}{unconfirmed}")
        elif rent is not None:
            total += rent["usd_per_gpu_hour"] * _num_gpus(group)
            sources.append(rent["source"])
        else:
            return None, ""
    return total, "; ".join(dict.fromkeys(sources))


def _used(groups: Sequence[Mapping[str, Any]], candidate: Candidate) -> list[Mapping[str, Any]]:
    """The groups of nodes that the layout runs on, with as many nodes as it uses: others may do something else."""
    if candidate.spread is None:
        return list(groups)
    gpus = Counter[int]()
    for use in candidate.spread.islands:
        gpus[use.group] += use.num_gpus
    return [{**groups[at], "num_nodes": number / groups[at]["gpus_per_node"]} for at, number in sorted(gpus.items())]


def _num_gpus(group: Mapping[str, Any]) -> int:
    return round(float(group["num_nodes"] * group["gpus_per_node"]))
