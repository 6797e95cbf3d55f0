"""Converts the placement of a plan for launchers: an order of the nodes, and of the GPUs in each node."""

from __future__ import annotations

from ...errors import InputError, UnsupportedError
from .setup import Setup


def place(setup: Setup) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...] | None]:
    """Returns (hosts in the order of the framework's nodes, the GPU order of each; None: the usual order).

    A plan's `logical_of_rank[r]` is the framework's rank on GPU r % n of host r // n. Raises UnsupportedError with the
    field where the ranks of one framework node are on several hosts. Raises InputError for a rank map that lacks hosts
    or ranks.
    """
    hosts, logical = setup.candidate.placement.hosts, setup.candidate.placement.logical_of_rank
    size = setup.gpus_per_node
    if setup.candidate.spread is None and (
        wrong := setup.candidate.placement.problem(setup.num_nodes * size, setup.num_nodes)
    ):
        raise InputError(f"placement.{wrong[0]}: {wrong[1]}", hint="the file was edited; plan again")
    if logical is None:
        return hosts, None
    where = {rank: divmod(physical, size) for physical, rank in enumerate(logical)}
    order, devices = [], []
    for node in range(setup.num_nodes):
        seats = [where[node * size + local] for local in range(size)]
        if len({host for host, _ in seats}) > 1:
            raise UnsupportedError(
                f"placement.logical_of_rank: ranks {node * size} to {(node + 1) * size - 1} are on "
                f"{len({host for host, _ in seats})} hosts; a launcher keeps the ranks of a node together",
                hint="`--to meshwright` accepts any placement; or plan without it",
            )
        order.append(seats[0][0])
        devices.append(tuple(device for _, device in seats))
    usual = all(order_of_node == tuple(range(size)) for order_of_node in devices)
    return tuple(hosts[host] for host in order) if hosts else (), None if usual else tuple(devices)
