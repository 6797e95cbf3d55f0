"""The network's parts: switches and transceivers of a fat tree and of rails without a spine, their price and power.

A fat tree of t tiers of switches with k ports joins 2 (k/2)^t ports at full bisection by (2t - 1)/k switches and 2t
transceivers per port (Al-Fares et al. 2008, SIGCOMM). A rail-only network (arXiv 2307.12169) has a tree of its own for
the GPUs of each rank in their domain of fast links, and nothing between these trees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...cost_models import units
from ...errors import InputError
from .assumed import Assumption, assumptions
from .base import Part, Question, Result

_ASSUMED = {
    "switch_ports": ("64", "ports of a switch: NDR and 800G switches of one chip have as many"),
    "switch_price": ("", "dollars of a switch"),
    "transceiver_price": ("", "dollars of a transceiver"),
    "switch_power": ("", "watts of a switch"),
    "transceiver_power": ("", "watts of a transceiver"),
}
_DIMENSIONS: dict[str, units.Dimension] = {
    "switch_ports": "count", "switch_price": "count", "transceiver_price": "count", "switch_power": "W",
    "transceiver_power": "W",
}  # fmt: skip
_PAIRS = (("switch_price", "transceiver_price"), ("switch_power", "transceiver_power"))
_MOST_TIERS = 6


class Network(Part):
    """The parts of a network."""

    name: str
    tiers: int  # of switches
    switches: int
    transceivers: int
    usd: float | None  # None: no prices were given
    watts: float | None


class NetworkCost(Result):
    """Networks that join the GPUs of a plan: the fat tree first."""

    ports: int  # of NICs
    domain: int  # GPUs that the fastest link joins: rails
    networks: tuple[Network, ...]
    assumptions: tuple[Assumption, ...]

    @property
    def table(self) -> tuple[Network, ...]:
        return self.networks


@dataclass(frozen=True)
class Parts:
    """The parts of a network."""

    tiers: int
    switches: int
    transceivers: int


def fat_tree(ports: int, radix: int) -> Parts:
    """The parts of a full-bisection tree over so many ports. Raises InputError for more than _MOST_TIERS tiers."""
    tiers = next((t for t in range(1, _MOST_TIERS + 1) if 2 * (radix / 2) ** t >= ports), 0)
    if not tiers:
        raise InputError(f"--assume switch_ports: {_MOST_TIERS} tiers of {radix} ports join "
                         f"{2 * (radix / 2) ** _MOST_TIERS:,.0f}, and there are {ports:,}",
                         hint="switches with more ports")  # fmt: skip
    return Parts(tiers, math.ceil((2 * tiers - 1) * ports / radix), 2 * tiers * ports)


def rail_only(ports: int, radix: int, rails: int) -> Parts:
    """The parts of a tree for each rail; those of one switch share switches."""
    of_rail = fat_tree(math.ceil(ports / rails), radix)
    switches = rails * of_rail.switches
    if of_rail.tiers == 1:
        switches = math.ceil(rails / max(radix // math.ceil(ports / rails), 1))
    return Parts(of_rail.tiers, switches, rails * of_rail.transceivers)


def run(question: Question) -> NetworkCost:
    """Raises InputError for a price or a power without the other of its pair, and for switches of less than 4 ports."""
    base = question.base
    assumed = assumptions(question, _ASSUMED, _DIMENSIONS, optional=[name for pair in _PAIRS for name in pair])
    value = {assumption.name: assumption.value for assumption in assumed}
    for pair in _PAIRS:
        if len(absent := [name for name in pair if name not in value]) == 1:
            given = next(name for name in pair if name in value)
            raise InputError(f"--assume {given}: the network has {pair[0].partition('_')[0]}es and transceivers, and "
                             f"{absent[0]} is not given", hint=f"`--assume {absent[0]}=...`")  # fmt: skip
    radix = value["switch_ports"]
    if radix != int(radix) or radix < 4:
        raise InputError(f"--assume switch_ports: must be a whole number of 4 or more, is {radix:g}")
    ports, rails = base.cluster.num_gpus, max(base.problem.domain, 1)
    if ports <= rails:
        raise InputError(f"the fastest link joins all {ports} GPUs of the plan: there is no network between nodes",
                         hint="a plan of several nodes")  # fmt: skip
    networks = [_priced("fat tree", fat_tree(ports, int(radix)), value),
                _priced("rail-only", rail_only(ports, int(radix), rails), value)]  # fmt: skip
    return NetworkCost(**question.common_fields("network-cost"), ports=ports, domain=rails, networks=tuple(networks),
                       assumptions=assumed)  # fmt: skip


def _priced(name: str, parts: Parts, value: dict[str, float]) -> Network:
    usd, watts = (
        parts.switches * value[switch] + parts.transceivers * value[transceiver] if switch in value else None
        for switch, transceiver in _PAIRS
    )
    return Network(name=name, tiers=parts.tiers, switches=parts.switches, transceivers=parts.transceivers, usd=usd,
                   watts=watts)  # fmt: skip
