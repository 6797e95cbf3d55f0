"""A step of placed calls on the clock: who waits for whom, which models leave the GPUs meanwhile, and their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .graph import Call, Role
from .meshes import Mesh, joint_gpus
from .prices import Option, Prices

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


@dataclass(frozen=True)
class Home:
    """Where a model lies between calls."""

    mesh: Mesh
    num_bytes: float  # of a GPU


def option_of(prices: Prices, graph: Sequence[Call], placement: Placement, call: Call, lag: int) -> Option | None:
    """The option of a placed call. A trained model that scores where it trains keeps its layout there."""
    mesh = placement[call.name]
    if call.kind == "infer" and placement.get(trains(graph, call.role)) == mesh:
        return prices.at_home(call, mesh.gpus)
    return prices.of(call, mesh.gpus, lag)


def trains(graph: Sequence[Call], role: Role) -> str:
    """The call that trains a model; `` where none does."""
    return next((call.name for call in graph if call.kind == "train" and call.role == role), "")


def homes_of(prices: Prices, graph: Sequence[Call], placement: Placement) -> dict[Role, Home]:
    """Trained models lie where they train, others where they score."""
    homes = dict[Role, Home]()
    for call in graph:
        option = prices.of(call, placement[call.name].gpus) if call.kind != "generate" else None
        if option is not None and (call.kind == "train" or not trains(graph, call.role)):
            homes[call.role] = Home(placement[call.name], option.kept_bytes)
    return homes


def schedule(
    prices: Prices, graph: Sequence[Call], placement: Placement, sizes: Sequence[int], memory_bytes: float,
    lag: int = 0,
) -> tuple[Placed, ...] | None:  # fmt: skip
    """The step: calls start in the order of the graph, each when those of `after` are done and its GPUs are free. None
    where a call has no option. sizes: of meshes, rising. lag: of the answers that the engine generates."""
    homes = homes_of(prices, graph, placement)
    on_host: set[Role] = set()
    for _ in range(2):  # the first only finds which models are on the host when a step begins
        placed = list[Placed]()
        for call in graph:
            option = option_of(prices, graph, placement, call, lag)
            if option is None:
                return None
            mesh = placement[call.name]
            option, moves_s = _least_moves(prices, homes, on_host, call, mesh, option, memory_bytes)
            moves_s += _received_s(prices, homes, sizes, call, mesh)
            before = [it.end_s for it in placed if it.call.name in call.after or it.mesh.overlaps(mesh)]
            start_s = max(before, default=0.0)
            placed.append(Placed(
                call=call, mesh=mesh, option=option, start_s=start_s, moves_s=moves_s,
                end_s=start_s + moves_s + option.seconds, resident=_others(homes, on_host, call, mesh)))  # fmt: skip
    return tuple(placed)


def _others(homes: Mapping[Role, Home], on_host: set[Role], call: Call, mesh: Mesh) -> dict[Role, float]:
    """Bytes of a GPU of the other models that lie on the GPUs of a call."""
    return {role: home.num_bytes for role, home in homes.items()
            if role not in on_host and home.mesh.overlaps(mesh) and not _is_home(homes, call, mesh, role)}  # fmt: skip


def _is_home(homes: Mapping[Role, Home], call: Call, mesh: Mesh, role: Role) -> bool:
    return call.kind != "generate" and role == call.role and homes[role].mesh == mesh


def _least_moves(
    prices: Prices, homes: Mapping[Role, Home], on_host: set[Role], call: Call, mesh: Mesh, option: Option,
    memory_bytes: float,
) -> tuple[Option, float]:  # fmt: skip
    """The option of a call that is over first, with the seconds in which models move. Changes `on_host`."""
    tried = []
    for number, each in enumerate((option, option.lean)):
        if each is not None and (number == 0 or call.kind == "train"):
            left = set(on_host)
            moves_s = _moves_s(prices, homes, left, call, mesh, each, memory_bytes)
            tried.append((2.0 * moves_s + each.seconds, number, each, moves_s, left))  # what leaves comes back
    _, _, chosen, moves_s, left = min(tried, key=lambda item: item[:2])
    on_host.clear()
    on_host.update(left)
    return chosen, moves_s


def _moves_s(
    prices: Prices, homes: Mapping[Role, Home], on_host: set[Role], call: Call, mesh: Mesh, option: Option,
    memory_bytes: float,
) -> float:  # fmt: skip
    """Seconds in which the model of a call returns from the host and others leave, the largest first, until it fits. An
    engine takes the whole GPU. Changes `on_host`."""
    moved = 0.0
    if call.role in homes and call.role in on_host and _is_home(homes, call, mesh, call.role):
        on_host.discard(call.role)
        moved += homes[call.role].num_bytes
    there = _others(homes, on_host, call, mesh)
    used = option.peak_bytes + sum(there.values())
    for role, num_bytes in sorted(there.items(), key=lambda item: (-item[1], item[0])):
        if used <= memory_bytes:
            break
        on_host.add(role)
        used -= num_bytes
        moved += num_bytes
    return prices.copied_s(moved)


def _received_s(
    prices: Prices, homes: Mapping[Role, Home], sizes: Sequence[int], call: Call, mesh: Mesh
) -> float:  # fmt: skip
    """Seconds in which a model that trains elsewhere sends its weights to where it scores."""
    home = homes.get(call.role)
    if call.kind != "infer" or home is None or home.mesh == mesh:
        return 0.0
    num_bytes = prices.weights_bytes(call.role)
    return prices.moved_s(num_bytes, joint_gpus(sizes, home.mesh, mesh))


def sync_s(prices: Prices, placed: Sequence[Placed], sizes: Sequence[int]) -> float:
    """Seconds in which every GPU of the engine receives the new weights, over the slowest links between where the
    policy trains and where it generates."""
    engine = next((it for it in placed if it.call.kind == "generate"), None)
    if engine is None:
        return 0.0
    trainer = next(it for it in placed if it.call.name == "train")
    return prices.moved_s(prices.weights_bytes("policy"), joint_gpus(sizes, engine.mesh, trainer.mesh))
