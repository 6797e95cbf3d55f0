"""The best order of the nodes for an OrderProblem: annealing, then branch and bound; deterministic.

Several chains are annealed on C itself (`_anneal`). On many nodes a chain would need too many moves, so many exchanges
are made at once, on a sum over edges that stands for C (`_exchange`). `branch_and_bound` over the slots in turn then
proves the result or improves it, as far as a count of partial orders goes. Beyond it, `least_factors` bounds all
orders. All budgets are counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array, Ints
from .bounds import least_factors, off_diagonal
from .groups import NodeGroups
from .problem import OrderProblem

_CHAINS, _MOVES = 48, 2500  # of annealing, at most
_MOST_LOOKUPS = 150_000_000  # of edges, by all moves of all chains: fewer moves and chains where there are more edges
FEW_NODES = 6  # up to so many nodes, branch and bound goes through all orders
MANY_NODES = 64  # more nodes are ordered by exchanges
_REPAIRS = 100  # steps of the descent after annealing, at most
_ROUNDS = 12_000  # of exchanges
_AT_ONCE = 0.15  # share of the slots that each round exchanges with others
_MOST_PARTIAL_ORDERS = 200_000  # at once in branch and bound; beyond it, there is a bound and no proof
_SHARPNESS = 6.0  # exponent of the mean over rows that ranks orders with the same slowest row
_EQUAL = 1e-9  # relative: values that differ by less are equal


@dataclass(frozen=True)
class Ordered:
    """The best order so far."""

    nodes: tuple[int, ...]  # [slot] the node that sits on it
    seconds: float  # C of the order
    lower_bound_s: float  # no order takes less; equal to `seconds` where proven
    proven: bool  # whether no order is better


def best_order(problem: OrderProblem, seed: int = 0, effort: float = 1.0) -> Ordered:
    """The best order found and how good any can be. Equal arguments give equal results. effort: share of the rounds
    that clusters of many nodes are given."""
    listed = np.arange(problem.num_nodes)
    least = least_factors(problem)
    bound = problem.fixed + float(least @ problem.weights)
    value = float(problem.seconds(listed[None])[0])
    best, proven = listed, value <= bound * (1 + _EQUAL)
    if not proven:
        order, seconds = best, value
        if len(best) > MANY_NODES:
            order, seconds = _exchange(problem, seed, bound, round(effort * _ROUNDS))
        elif len(best) > FEW_NODES:
            order, seconds = _anneal(problem, seed, bound)
        if seconds < value * (1 - _EQUAL):
            best, value = order, seconds
        best, value, proven = branch_and_bound(problem, least, best, value)
    best = _nearest_to_listed(problem, best, value)
    return Ordered(tuple(int(node) for node in best), value, value if proven else bound, proven)


def _nearest_to_listed(problem: OrderProblem, order: Ints, value: float) -> Ints:
    """An order that is as good, with nodes back in their slots of the cluster file where that costs nothing."""
    order = order.copy()
    for slot in range(len(order)):
        if order[slot] == slot:
            continue
        other = order.copy()
        other[slot], other[np.flatnonzero(order == slot)[0]] = slot, order[slot]
        if float(problem.seconds(other[None])[0]) <= value * (1 + _EQUAL):
            order = other
    return order


def _anneal(problem: OrderProblem, seed: int, bound: float) -> tuple[Ints, float]:
    """Simulated annealing of several chains at once: swap two slots, reverse a run of them, or move one elsewhere.

    The energy adds to C a smooth mean of each kind's rows, so that of two orders with the same slowest row the one with
    fewer slow rows is nearer to the next better order. Half of the swaps start at an end of a slowest row.
    """
    rng, n = np.random.default_rng(seed), problem.num_nodes
    edges = max(sum(len(groups.edges) for _, groups in problem.kinds), 1)
    chains = int(np.clip(_MOST_LOOKUPS // (edges * _MOVES), 4, _CHAINS))
    moves = int(np.clip(_MOST_LOOKUPS // (edges * chains), _MOVES // 5, _MOVES))
    now = np.stack([np.arange(n), *(rng.permutation(n) for _ in range(chains - 1))])
    energy, value, worst = _energy(problem, now)
    best, best_value = now[np.argmin(value)].copy(), float(value.min())
    # From a spread of random orders, where most moves pass, down to a thousandth of it, where only better ones do.
    hot = 0.3 * max(float(np.std(energy)), 1e-3 * float(problem.weights.sum()))
    for move in range(moves):
        if best_value <= bound * (1 + _EQUAL):
            break
        heat = hot * (1e-3 ** (move / moves))
        proposed = _moved(now, worst, rng)
        new_energy, new_value, new_worst = _energy(problem, proposed)
        taken = rng.random(chains) < np.exp(np.minimum((energy - new_energy) / heat, 0.0))
        now[taken] = proposed[taken]
        energy[taken] = new_energy[taken]
        worst[taken] = new_worst[taken]
        if float(new_value.min()) < best_value * (1 - _EQUAL):
            best, best_value = proposed[np.argmin(new_value)].copy(), float(new_value.min())
    return _repaired(problem, best)


def _energy(problem: OrderProblem, orders: Ints) -> tuple[Array, Array, Ints]:
    """[order] energy, C, and [order, 2] the slots of an edge of a slowest row, of the kind where that costs most."""
    value = np.full(len(orders), problem.fixed)
    energy, heaviest = np.zeros(len(orders)), np.full(len(orders), -np.inf)
    worst = np.zeros((len(orders), 2), dtype=np.int64)
    for weight, groups in problem.kinds:
        rows = problem.rows(problem.matrix(groups), groups, orders)
        slowest = np.argmax(rows, axis=1)
        top = rows[np.arange(len(orders)), slowest]
        value = value + weight * top
        smooth = top * np.mean((rows / top[:, None]) ** _SHARPNESS, axis=1) ** (1 / _SHARPNESS)
        energy = energy + weight * smooth
        heavier = weight * (top - 1.0) > heaviest
        worst = np.where(heavier[:, None], groups.edges[groups.starts[slowest]], worst)
        heaviest = np.maximum(heaviest, weight * (top - 1.0))
    return value + energy, value, worst


def _repaired(problem: OrderProblem, order: Ints) -> tuple[Ints, float]:
    """The best order by C of a descent: a slot of a slowest row is exchanged with the slot that lowers the energy most,
    as long as it falls."""
    at, n = np.arange(len(order)), len(order)
    energy, value, worst = _energy(problem, order[None])
    best_by_value, least = order, float(value[0])
    for _ in range(_REPAIRS):
        swaps = []
        for slot in worst[0]:
            orders = np.tile(order, (n, 1))
            orders[:, slot], orders[at, at] = order, order[slot]
            swaps.append(orders)
        orders = np.concatenate(swaps)
        energies, values, ends = _energy(problem, orders)
        best = int(np.argmin(energies))
        if energies[best] >= energy[0] * (1 - _EQUAL):
            break
        order, worst = orders[best], ends[best][None]
        energy, value = energies[best : best + 1], values[best : best + 1]
        if value[0] < least:
            best_by_value, least = order, float(value[0])
    return best_by_value, least


def _moved(orders: Ints, worst: Ints, rng: np.random.Generator) -> Ints:
    """One random move of every order."""
    n, chains = orders.shape[1], len(orders)
    at = np.arange(n)
    first, second = rng.integers(0, n, (2, chains))
    first = np.where(rng.random(chains) < 0.5, worst[np.arange(chains), rng.integers(0, 2, chains)], first)
    kind = rng.random(chains)
    low, high = np.minimum(first, second)[:, None], np.maximum(first, second)[:, None]
    inside = (at >= low) & (at <= high)
    turned = np.where(inside, low + high - at, at)
    shifted = np.where(inside, np.where(at == high, low, at + 1), at)
    swapped = np.where(at == low, high, np.where(at == high, low, at))
    chosen = np.where(kind[:, None] < 0.6, swapped, np.where(kind[:, None] < 0.8, turned, shifted))
    return np.take_along_axis(orders, chosen, axis=1)


def _exchange(problem: OrderProblem, seed: int, bound: float, rounds: int) -> tuple[Ints, float]:
    """Annealing of one chain by many exchanges of two slots at once, each judged by the edges of its own slots.

    The energy is a sum over edges that stands for C: V_a times the mean of F_a to the power of _SHARPNESS (rings, where
    one slow edge holds up all) or of _SHARPNESS - 2 (rows that are means themselves).
    """
    rng, n = np.random.default_rng(seed), problem.num_nodes
    tables = [_neighbours(problem, weight, groups) for weight, groups in problem.kinds]
    now, half = np.arange(n), max(int(n * _AT_ONCE), 1)
    best, best_value = now.copy(), float(problem.seconds(now[None])[0])
    for number in range(rounds):
        if best_value <= bound * (1 + _EQUAL):
            break
        heat = 10.0 * 5e-3 ** (number / rounds)
        chosen = rng.permutation(n)
        first, second = chosen[:half], chosen[half : 2 * half]
        change = np.zeros(half)
        for near, cost in tables:
            for slot, partner in ((first, second), (second, first)):
                around = now[near[slot]]
                change -= cost[now[slot][:, None], around].sum(axis=1)
                around = np.where(near[slot] == partner[:, None], now[slot][:, None], around)
                change += cost[now[partner][:, None], around].sum(axis=1)
        taken = rng.random(half) < np.exp(np.minimum(-change / heat, 0.0))
        now[first[taken]], now[second[taken]] = now[second[taken]], now[first[taken]]
        if number % 10 == 0 or number > 0.95 * rounds:
            value = float(problem.seconds(now[None])[0])
            if value < best_value * (1 - _EQUAL):
                best, best_value = now.copy(), value
    return _repaired(problem, best)


def _neighbours(problem: OrderProblem, weight: float, groups: NodeGroups) -> tuple[Ints, Array]:
    """[slot, k] slots that share an edge with a slot (itself where it has fewer), and [node, node] cost of an edge,
    both ways; of all kinds the mean energy of a slot over edges of F = 1 is 2."""
    pairs = np.unique(np.sort(groups.edges[groups.edges[:, 0] != groups.edges[:, 1]], axis=1), axis=0)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    degrees = np.bincount(both[:, 0], minlength=problem.num_nodes)
    near = np.tile(np.arange(problem.num_nodes)[:, None], (1, int(degrees.max())))
    near[both[:, 0], np.arange(len(both)) - np.repeat(np.cumsum([0, *degrees])[:-1], degrees)] = both[:, 1]
    matrix = problem.matrix(groups)
    power = _SHARPNESS if groups.pattern == "ring" else _SHARPNESS - 2
    cost = np.maximum(matrix, matrix.T) ** power * (weight / problem.weights.sum() * problem.num_nodes / len(pairs))
    np.fill_diagonal(cost, 0.0)
    return near, np.asarray(cost)


def branch_and_bound(problem: OrderProblem, least: Array, best: Ints, value: float) -> tuple[Ints, float, bool]:
    """Fill the slots one after another, all partial orders at once; drop those whose bound is not below the best.

    The bound takes the edges between filled slots as they are and the others at the fastest link.
    """
    n = problem.num_nodes
    partial: Ints = np.zeros((1, 0), dtype=np.int64)
    for depth in range(n):
        free = np.ones((len(partial), n), dtype=bool)
        np.put_along_axis(free, partial, False, axis=1)
        parent, node = np.nonzero(free)
        if len(parent) > _MOST_PARTIAL_ORDERS:
            return best, value, False
        partial = np.concatenate([partial[parent], node[:, None]], axis=1)
        bound = problem.fixed + np.maximum(_partial_factors(problem, partial), least) @ problem.weights
        partial = partial[bound < value * (1 - _EQUAL)]
        if not len(partial):
            return best, value, True
        if depth == n - 1:
            exact = problem.seconds(partial)
            return partial[np.argmin(exact)], float(exact.min()), True
    return best, value, True


def _partial_factors(problem: OrderProblem, partial: Ints) -> Array:
    """[order, kind] x_a, at least, of all orders that fill the first slots in the same way."""
    depth = partial.shape[1]
    out = np.ones((len(partial), len(problem.kinds)))
    for column, (_, groups) in enumerate(problem.kinds):
        matrix = problem.matrix(groups)
        filled = (groups.edges < depth).all(axis=1)
        row = np.searchsorted(groups.starts, np.arange(len(groups.edges)), side="right") - 1
        lengths = np.diff([*groups.starts, len(groups.edges)])
        least = float(off_diagonal(matrix).min())
        same = groups.edges[:, 0] == groups.edges[:, 1]
        open_sums = np.bincount(row[~filled], np.where(same[~filled], 1.0, least), minlength=len(lengths))
        at = matrix[partial[:, groups.edges[filled, 0]], partial[:, groups.edges[filled, 1]]]
        sums = np.zeros((len(partial), len(lengths))) + open_sums
        known = np.unique(row[filled])
        if len(known):
            starts = np.searchsorted(row[filled], known)
            sums[:, known] += np.add.reduceat(at, starts, axis=1)
        out[:, column] = (sums / lengths).max(axis=1)
    return out
