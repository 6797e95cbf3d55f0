"""A step of placed calls on the clock: who waits for whom, which models leave the GPUs meanwhile, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array, Ints
from .graph import Call, Role
from .meshes import Mesh, joint_gpus
from .options import Option
from .prices import Prices

Placement = Mapping[str, Mesh]  # call -> mesh


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A call on the clock."""

    call: Call
    mesh: Mesh
    option: Option
    start_s: float
    moves_s: float  # of it, for weights that come and models that leave to the host or return
    end_s: float
    resident: Mapping[Role, float]  # bytes of a GPU of each model that lies there while it runs, without its own


def options_of(
    prices: Prices, graph: Sequence[Call], placement: Placement, call: Call, lag: int
) -> tuple[Option, ...]:  # fmt: skip
    """The options of a placed call, the fastest first; none where nothing fits. A trained model that scores where it
    trains keeps its layout there."""
    mesh = placement[call.name]
    at_home = call.kind == "infer" and placement.get(trains(graph, call.role)) == mesh
    option = prices.at_home(call, mesh.gpus) if at_home else prices.of(call, mesh.gpus, lag)
    return () if option is None else (option, *option.leaner)


def trains(graph: Sequence[Call], role: Role) -> str:
    """The call that trains a model; `` where none does."""
    return next((call.name for call in graph if call.kind == "train" and call.role == role), "")


def owners_of(graph: Sequence[Call]) -> dict[Role, Call]:
    """The call after which a model stays on its GPUs: trained models lie where they train, others where they score."""
    return {call.role: call for call in graph
            if call.kind == "train" or (call.kind == "infer" and not trains(graph, call.role))}  # fmt: skip


def schedule(
    prices: Prices, graph: Sequence[Call], placement: Placement, sizes: Sequence[int], memory_bytes: float,
    lag: int = 0,
) -> tuple[Placed, ...] | None:  # fmt: skip
    """The step: calls start in the order of the graph, each when those of `after` are done and its GPUs are free.
    Models have those of their layouts with which it ends first. None where a call has no option, or host memory has no
    room for the models that leave. sizes: of meshes, rising. lag: of the answers that the engine generates."""
    options = {call.name: options_of(prices, graph, placement, call, lag) for call in graph}
    if not all(options.values()):
        return None
    owners = owners_of(graph)
    free = {role: call for role, call in owners.items() if not prices.by_train(call)}
    each = [np.arange(len(options[call.name])) for call in free.values()]
    columns = dict(zip(free, (grid.ravel() for grid in np.meshgrid(*each, indexing="ij")), strict=True))
    columns |= {role: columns["policy"] for role in owners if role not in free}
    size = int(np.prod([len(numbers) for numbers in each]))
    clock = _Clock(prices, graph, placement, owners, {
        call.name: _Choice(options[call.name], columns[call.role] if _is_home(owners, placement, call)
                           else np.zeros(size, dtype=np.int64)) for call in graph}, sizes, memory_bytes)  # fmt: skip
    return clock.first_to_end()


def _is_home(owners: Mapping[Role, Call], placement: Placement, call: Call) -> bool:
    """Whether a call runs where its model lies, by the same layout."""
    owner = owners.get(call.role)
    return call.kind != "generate" and owner is not None and placement[owner.name] == placement[call.name]


@dataclass(frozen=True)
class _Choice:
    """The options of a call, and which of them each of n ways to lay out all models takes."""

    options: Sequence[Option]
    numbers: Ints  # [n]

    def column(self, name: str) -> Array:
        """[n] a field of the options."""
        return np.array([getattr(option, name) for option in self.options], dtype=float)[self.numbers]


@dataclass
class _Clock:
    """A placement by n ways to lay out its models at once."""

    prices: Prices
    graph: Sequence[Call]
    placement: Placement
    owners: Mapping[Role, Call]
    choices: Mapping[str, _Choice]
    sizes: Sequence[int]
    memory_bytes: float

    def first_to_end(self) -> tuple[Placed, ...] | None:
        """The calls of the way whose step ends first; None where host memory is too small for all of them."""
        self.kept = {role: self.choices[call.name].column("kept_bytes") for role, call in sorted(self.owners.items())}
        self.on_host = {role: np.zeros(len(kept), dtype=bool) for role, kept in self.kept.items()}
        for _ in range(2):  # the first only finds which models are on the host when a step begins
            self.ends = dict[str, Array]()
            self.most_host_bytes = np.zeros(len(next(iter(self.choices.values())).numbers))
            calls = [self._call(call) for call in self.graph]
        end_s = np.where(self.most_host_bytes <= self.prices.host_bytes, np.max([*self.ends.values()], axis=0), np.inf)
        best = int(np.argmin(end_s))
        if np.isinf(end_s[best]):
            return None
        return tuple(call(best) for call in calls)

    def _call(self, call: Call) -> Callable[[int], Placed]:
        """Runs a call; returns it by the way that is asked for."""
        mesh, choice = self.placement[call.name], self.choices[call.name]
        seconds, copies_s = choice.column("seconds"), self._copies_s(call)
        self.most_host_bytes = np.maximum(self.most_host_bytes, self._host_bytes(mesh))
        moves_s = copies_s + _received_s(self.prices, self.owners, self.placement, self.sizes, call)
        before = [end for name, end in self.ends.items()
                  if name in call.after or self.placement[name].overlaps(mesh)]  # fmt: skip
        start_s = np.max(before, axis=0) if before else np.zeros_like(seconds)
        self.ends[call.name] = end_s = start_s + moves_s + seconds
        lie = {role: ~self.on_host[role] for role in self._others(call)}
        return lambda n: Placed(
            call=call, mesh=mesh, option=choice.options[choice.numbers[n]], start_s=float(start_s[n]),
            moves_s=float(moves_s[n]), end_s=float(end_s[n]),
            resident={role: float(self.kept[role][n]) for role, lies in lie.items() if lies[n]})  # fmt: skip

    def _host_bytes(self, mesh: Mesh) -> Array:
        """[n] of the models with a home on GPUs of a mesh, those that have left them and what their layouts take."""
        there = {role: owner for role, owner in self.owners.items() if self.placement[owner.name].overlaps(mesh)}
        return sum((np.where(self.on_host[role], self.kept[role], 0.0) + self.choices[owner.name].column("host_bytes")
                    for role, owner in there.items()), start=np.zeros_like(self.most_host_bytes))  # fmt: skip

    def _others(self, call: Call) -> list[Role]:
        """Models but its own that have a home on GPUs of a call."""
        home = _is_home(self.owners, self.placement, call)
        mesh = self.placement[call.name]
        return [role for role in self.kept if not (home and role == call.role)
                and self.placement[self.owners[role].name].overlaps(mesh)]  # fmt: skip

    def _copies_s(self, call: Call) -> Array:
        """[n] seconds in which the model of a call returns from the host and others leave, the largest first, until it
        fits. An engine takes the whole GPU. Changes `on_host`."""
        used = self.choices[call.name].column("peak_bytes")
        moved = np.zeros_like(used)
        if _is_home(self.owners, self.placement, call):
            moved += np.where(self.on_host[call.role], self.kept[call.role], 0.0)
            self.on_host[call.role] = np.zeros(len(used), dtype=bool)
        others = self._others(call)
        if not others:
            return self.prices.copied_s(moved)
        kept = np.array([self.kept[role] for role in others])
        lies = ~np.array([self.on_host[role] for role in others])
        used = used + np.where(lies, kept, 0.0).sum(axis=0)
        ways = np.arange(len(used))
        for row in np.argsort(-kept, axis=0, kind="stable"):
            leaves = lies[row, ways] & (used > self.memory_bytes)
            num_bytes = np.where(leaves, kept[row, ways], 0.0)
            used, moved = used - num_bytes, moved + num_bytes
            lies[row, ways] &= ~leaves
        self.on_host |= {role: ~there for role, there in zip(others, lies, strict=True)}
        return self.prices.copied_s(moved)


def _received_s(
    prices: Prices, owners: Mapping[Role, Call], placement: Placement, sizes: Sequence[int], call: Call
) -> float:  # fmt: skip
    """Seconds in which a model that trains elsewhere sends its weights to where it scores."""
    owner = owners.get(call.role)
    if call.kind != "infer" or owner is None or placement[owner.name] == placement[call.name]:
        return 0.0
    num_bytes = prices.weights_bytes(call.role)
    return prices.moved_s(num_bytes, joint_gpus(sizes, placement[owner.name], placement[call.name]))


def sync_s(prices: Prices, placed: Sequence[Placed], sizes: Sequence[int]) -> float:
    """Seconds in which every GPU of the engine receives the new weights, over the slowest links between where the
    policy trains and where it generates."""
    engine = next((it for it in placed if it.call.kind == "generate"), None)
    if engine is None:
        return 0.0
    trainer = next(it for it in placed if it.call.name == "train")
    return new_weights_s(prices, engine.mesh, trainer.mesh, sizes)


def new_weights_s(prices: Prices, engine: Mesh, trainer: Mesh, sizes: Sequence[int]) -> float:
    """Seconds in which every GPU of one mesh receives the weights of the policy from another."""
    return prices.moved_s(prices.weights_bytes("policy"), joint_gpus(sizes, engine, trainer))
