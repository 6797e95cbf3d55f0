"""Faults: the time that a run loses in a day, by what is done when a GPU fails.

A failure of a run with a mean time M between failures costs the work since the last checkpoint, half an interval in
the mean, and the time until training goes on. By Daly (interruptions.py) a share exp(-r/M) is left of a run that loses
no work and recovers in r. A run that goes on with fewer GPUs has r/M of them away at a time, in the mean, where r is
the time of a repair (Little 1961, Operations Research 9, 383).

- C4 (Dong et al. 2024, arXiv 2406.04594): who is late in collectives shows the faulty node within minutes.
- torchft: the replica with the fault is left out until it is repaired.
- ElasWave (arXiv 2510.00606): layers and micro-batches move to the GPUs that remain, states come from copies in the
  memory of neighbours, and communicators are changed in place.
"""

from __future__ import annotations

import math

from ...cost_models import units
from ...cost_models.units import DAY_S, HOUR_S
from ...errors import InputError
from ..evaluation.interruptions import ASSUMED, DIMENSIONS, checkpoint_bytes, goodput, run_mtbf_s
from .assumed import Assumption, assumptions
from .base import Part, Question, Result
from .pricing import price_held

_ASSUMED = {
    "gpu_mtbf": ASSUMED["gpu_mtbf"],
    "write_bandwidth": ASSUMED["write_bandwidth"],
    # Ten minutes since pytorch#110947; its other backends keep 30.
    "detect": ("10 min", "the timeout of NCCL's process groups in torch, after which a run that hangs ends"),
    "diagnose": ("2 min", "assumed: delays of collectives compared every minute, as C4 does"),
    "restart": ASSUMED["restart"],
    "edit": ("1 s", "communicators changed in place (ElasWave, arXiv 2510.00606, abstract)"),
    "repair": ("24 h", "assumed: until the node is back or another has taken its place"),
    "lost_gpus": ("", "the GPUs of a node"),
    "interval": ("", "the best one"),
}
_DIMENSIONS: dict[str, units.Dimension] = {**DIMENSIONS, "lost_gpus": "count"}


class Remedy(Part):
    """A way to go on after a failure."""

    name: str
    stops_s: float  # from the failure until training goes on
    redone_s: float  # of work that is lost
    kept: float  # share of the speed until the repair
    goodput: float  # share of the time that makes progress, in [0, 1]
    lost_s_per_day: float
    usd_per_day: float | None = None  # of GPUs in the lost time; None: no price is known

    def at_price(self, usd_per_hour: float | None) -> Remedy:
        """The remedy where the cluster costs so much."""
        usd = None if usd_per_hour is None else self.lost_s_per_day / HOUR_S * usd_per_hour
        return self.model_copy(update={"usd_per_day": usd})


class Faults(Result):
    """Remedies in the order of what they lose."""

    num_gpus: int
    mtbf_s: float  # of the run
    checkpoint_s: float  # seconds that a checkpoint stops training
    interval_s: float  # between checkpoints
    tokens_per_s: float  # without failures
    remedies: tuple[Remedy, ...]
    assumptions: tuple[Assumption, ...]

    @property
    def table(self) -> tuple[Remedy, ...]:
        return self.remedies


def run(question: Question) -> Faults:
    """Raises UnknownNameError and InputError as `assumptions` does, and InputError where more GPUs fail than there are
    or where no work is done between two failures."""
    base, assumed = question.base, assumptions(question, _ASSUMED, _DIMENSIONS, optional=("lost_gpus", "interval"))
    value = {assumption.name: assumption.value for assumption in assumed}
    num_gpus, num_bytes = base.cluster.num_gpus, checkpoint_bytes(base)
    lost = value.get("lost_gpus", float(base.cluster.gpus_per_node))
    if lost != int(lost) or not lost < num_gpus:
        limit = f"must be a whole number below the {num_gpus} GPUs of the plan"
        raise InputError(f"--assume lost_gpus: {limit}, is {lost:g}",
                         hint="how many GPUs are away after a failure: those of a node")  # fmt: skip
    nodes = max(num_gpus / base.cluster.gpus_per_node, 1.0)
    mtbf_s, written_s = run_mtbf_s(base, num_gpus, value["gpu_mtbf"]), num_bytes / nodes / value["write_bandwidth"]
    interval_s = value.get("interval")

    def restarted(name: str, stops_s: float) -> Remedy:
        """From the last checkpoint, on GPUs that stand by."""
        expected = goodput(mtbf_s, written_s, stops_s, interval_s)
        return _remedy(name, stops_s, expected.interval_s / 2, 1.0, expected.goodput)

    def continued(name: str, stops_s: float, kept: float) -> Remedy:
        """Going on with the GPUs that remain, without checkpoints, until the repair."""
        slower = min((1 - kept) * value["repair"] / mtbf_s, 1.0)
        return _remedy(name, stops_s, 0.0, kept, math.exp(-stops_s / mtbf_s) * (1 - slower))

    remedies = [restarted("restart", value["detect"] + value["restart"]),
                restarted("c4", value["diagnose"] + value["restart"])]  # fmt: skip
    replicas = question.layout.layout.dp
    if replicas > 1:
        away = math.ceil(lost / (num_gpus / replicas))  # replicas that have one of these GPUs
        remedies.append(continued("torchft", value["diagnose"] + value["edit"], max(1 - away / replicas, 0.0)))
    moved_s = num_bytes * lost / num_gpus / base.rates.levels[-1].bw_bytes_per_s
    remedies.append(continued("elaswave", value["diagnose"] + value["edit"] + moved_s, 1 - lost / num_gpus))
    best = goodput(mtbf_s, written_s, value["detect"] + value["restart"], interval_s)
    remedies = [remedy.at_price(base.cluster.usd_per_hour) for remedy in remedies]
    return Faults(
        **question.common_fields("faults"), num_gpus=num_gpus, mtbf_s=mtbf_s, checkpoint_s=written_s,
        interval_s=best.interval_s, tokens_per_s=price_held(question.layout, [base])[0].tokens_per_s,
        remedies=tuple(sorted(remedies, key=lambda remedy: remedy.lost_s_per_day)), assumptions=assumed,
    )  # fmt: skip


def _remedy(name: str, stops_s: float, redone_s: float, kept: float, share: float) -> Remedy:
    return Remedy(name=name, stops_s=stops_s, redone_s=redone_s, kept=kept, goodput=share,
                  lost_s_per_day=(1 - share) * DAY_S)  # fmt: skip
