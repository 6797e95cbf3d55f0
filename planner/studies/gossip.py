"""Gossip: how often replicas exchange over the links of a graph, with a rate for each link, and the step that leaves.

The best rates make the exchanges fewest. Their number is sqrt(2 chi_1 chi_2) sum(rates) (cost_models/quantities/
gossip.py), so for each bound on chi_1, which fixes that on chi_2, they solve a program with a linear goal. Both bounds
are convex: each is as many linear ones as there are vectors and points, which are added as they are needed (Kelley's
cutting planes). For chi_1 that is the semidefinite program of the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import highspy
import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.quantities.gossip import SHAPES, Gossip, Link, complete, of_shape, parts
from ...errors import InputError, UnknownNameError, did_you_mean, nearest
from .base import Part, Question, Result
from .pricing import Priced, price_held

_RATIOS = 2.0 ** np.arange(9)  # of chi_1 over chi_2, whose programs are solved; chi_2 is never the larger
_BESIDE = 2.0 ** np.array([-0.5, -0.25, 0.25, 0.5])  # times the best of them, which are solved next
_ROUNDS, _NEAR = 60, 1e-3  # cuts of a program at most, and how far from a bound its answer may be
_LEAST_RATE = 1e-4  # of a link, so that the graph stays connected
_MOST_LINKS = 64  # whose rates are searched: a program has a variable for each
_ARGUMENT = "graph"


class LinkRates(Part):
    """Exchanges of a link in a step."""

    link: str
    equal: float  # with the same rate for all
    best: float  # with the best rates


class GraphPrice(Part):
    """A graph with rates for its links, and the plan's layout under them."""

    name: str
    chi_1: float  # of rates at which gossip keeps up with gradients
    chi_2: float
    exchanges: float  # of the mean replica in a step
    busiest: float  # of the one with most, which the step is priced with
    held: Priced


class GossipStudy(Result):
    """The graph that was asked for, with equal and with best rates, and the complete one."""

    replicas: tuple[str, ...]
    rows: tuple[GraphPrice, ...]
    links: tuple[LinkRates, ...]

    @property
    def table(self) -> tuple[GraphPrice, ...]:
        return self.rows


def best_rates(replicas: int, links: Sequence[Link]) -> Gossip:
    """The rates with fewest exchanges that were found; equal ones where none are better."""
    equal = Gossip(replicas, links, np.ones(len(links)))
    if len(links) > _MOST_LINKS:
        return equal
    best, at = equal, 1.0
    for ratios in (_RATIOS, _BESIDE):
        for ratio in (at * ratios).tolist():
            fewest = min(_answers(equal, ratio), key=lambda gossip: gossip.exchanges, default=equal)
            if fewest.exchanges < best.exchanges * (1 - _NEAR):
                best, at = fewest, ratio
    return best


def _answers(equal: Gossip, ratio: float) -> Iterator[Gossip]:
    """Answers of the program with chi_1 of sqrt(ratio / 2) and chi_2 of sqrt(1 / (2 ratio)) at most, better and better;
    each is scaled before it is judged."""
    chi_1, chi_2 = np.sqrt(ratio / 2), np.sqrt(1 / (2 * ratio))
    program, here = _Program(len(equal.links)), Gossip(equal.replicas, equal.links, equal.per_step)
    for _ in range(_ROUNDS):
        for row, least in _cuts(here, chi_1, chi_2):
            program.add(row, least)
        here = Gossip(equal.replicas, equal.links, np.maximum(program.rates(), _LEAST_RATE))
        yield here
        if here.chi_1 <= chi_1 * (1 + _NEAR) and here.chi_2 <= chi_2 * (1 + _NEAR):
            return


class _Program:
    """The rates of the least sum within cuts, solved again from where it stands."""

    def __init__(self, links: int) -> None:
        self.solver = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1), ("presolve", "off")):
            self.solver.setOptionValue(option, value)
        none: Ints = np.zeros(0, dtype=np.int32)
        self.solver.addCols(links, np.ones(links), np.zeros(links), np.full(links, highspy.kHighsInf), 0, none, none,
                            np.zeros(0))  # fmt: skip
        self.columns: Ints = np.arange(links, dtype=np.int32)

    def add(self, row: Array, least: float) -> None:
        self.solver.addRow(least, highspy.kHighsInf, len(row), self.columns, row)

    def rates(self) -> Array:
        self.solver.run()
        return np.array(self.solver.getSolution().col_value)


def _cuts(here: Gossip, chi_1: float, chi_2: float) -> Iterator[tuple[Array, float]]:
    """(row, least): of rates within both bounds row @ rates is at least that; all cut off where `here` is not.

    x' L x >= 1 / chi_1 for a unit vector x is linear in the rates. A resistance R_e = b_e' L^+ b_e falls by
    (b_e' L^+ b_f)^2 with the rate of f, and a convex function is above its tangent, which goes through 2 R_e at 0.
    """
    values = here.spectrum[0]
    slow = max(int((values < 1 / chi_1).sum()), 1)
    for seen in here.seen[:, :slow].T:
        yield seen**2, 1 / chi_1
    resistance = here.resistances
    for link in np.argsort(-resistance)[:4]:
        if resistance[link] > 2 * chi_2:
            yield here.across(link) ** 2, 2 * resistance[link] - 2 * chi_2


def run(question: Question) -> GossipStudy:
    """Raises InputError for a plan without replicas, and for a graph that does not join them; UnknownNameError for
    another assumption than `graph`."""
    for name in question.assume:
        if name != _ARGUMENT:
            raise UnknownNameError("assumption", name, (_ARGUMENT,))
    names = _replicas(question)
    asked = question.assume.get(_ARGUMENT, "ring")
    links = of_shape(asked, len(names)) if asked in SHAPES else _links(asked, names)
    _check_joined(names, links)
    equal, best = Gossip(len(names), links, np.ones(len(links))), best_rates(len(names), links)
    chi, exchanges = complete(len(names))
    rates = [LinkRates(link=f"{names[i]}-{names[j]}", equal=before, best=after)
             for (i, j), before, after in zip(links, equal.per_step.tolist(), best.per_step.tolist(),
                                              strict=True)]  # fmt: skip
    return GossipStudy(
        **question.common_fields("gossip", notes=_notes(best)), replicas=names, links=tuple(rates),
        rows=(_of_graph(question, "equal rates", equal), _of_graph(question, "best rates", best),
              _priced(question, "complete", (chi, chi), exchanges, exchanges)),
    )  # fmt: skip


def _notes(best: Gossip) -> tuple[str, ...]:
    notes = [f"Plan with it: `--technique dadao:exchanges={best.busiest:.4g}`. Its theory is of convex losses."]
    if len(best.links) > _MOST_LINKS:
        notes.append(f"Rates of more than {_MOST_LINKS} links are not searched: best rates are equal ones.")
    return tuple(notes)


def _of_graph(question: Question, name: str, gossip: Gossip) -> GraphPrice:
    """Rates at which chi_1 chi_2 is 1/2, and a step with so many exchanges."""
    scaled = Gossip(gossip.replicas, gossip.links, gossip.per_step)
    return _priced(question, name, (scaled.chi_1, scaled.chi_2), gossip.exchanges, gossip.busiest)


def _priced(question: Question, name: str, chi: tuple[float, float], exchanges: float, busiest: float) -> GraphPrice:
    """A step as long as that of the busiest replica: its links are all behind one network interface."""
    changed = question.with_values({"workload.techniques": f"dadao:exchanges={busiest:.9g}"})
    return GraphPrice(name=name, chi_1=chi[0], chi_2=chi[1], exchanges=exchanges, busiest=busiest,
                      held=price_held(question.layout, [changed])[0])  # fmt: skip


def _replicas(question: Question) -> tuple[str, ...]:
    """Names of the plan's replicas: sites or groups of nodes where each is one, else numbers."""
    layout, islands = question.layout.layout, question.base.cluster.islands
    copies = layout.dp // layout.shard if layout.zero else layout.dp
    if copies < 2:
        raise InputError("the plan has one replica, and gossip is between several",
                         hint="a plan made with `--technique noloco`, or one without ZeRO")  # fmt: skip
    if len(islands) == copies:
        return tuple(island.name for island in islands)
    return tuple(map(str, range(copies)))


def _links(text: str, names: Sequence[str]) -> list[Link]:
    """Links of `a-b,b-c`. Raises InputError for one that is not between two of them, or is there twice."""
    links: list[Link] = []
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        ends = [(one, pair[len(one) + 1 :]) for one in names if pair.startswith(f"{one}-")]
        known = [(one, other) for one, other in ends if other in names and one != other]
        if not known:
            wrong = next((end for end in pair.split("-") if end not in names), pair)
            raise InputError(f"--assume graph: `{pair}` joins no two of the {len(names)} replicas",
                             hint=did_you_mean(nearest(wrong, names), otherwise=f"they are {_listed(names)}; "
                                               f"or one of {', '.join(SHAPES)}"))  # fmt: skip
        i, j = sorted(names.index(end) for end in known[0])
        if (i, j) in links:
            raise InputError(f"--assume graph: `{pair}` is there twice", hint="name each link once")
        links.append((i, j))
    return links


def _check_joined(names: Sequence[str], links: Sequence[Link]) -> None:
    apart = parts(len(names), links)
    if len(apart) > 1:
        texts = [_listed([names[i] for i in part]) for part in apart]
        raise InputError(f"--assume graph: it falls into {len(apart)} parts: {'; '.join(texts[:4])}",
                         hint="a part never learns from the others: join them")  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:3])} ... {names[-1]}"
