"""Rendezvous of the launchers of all nodes before torchrun, so that a missing node is named. No torch here.

torchrun waits for other nodes silently and does not name the missing ones. Here node 0 listens on the port that
torchrun uses afterwards. Every other node connects, sends one line of JSON (its rank, host and settings), and waits for
one line back: `{"go": true}` or the error. Nodes with other settings are rejected: each rank gets its settings from its
own launcher, and replicas with different settings would diverge unnoticed.

After a failure the launchers meet again. Node 0 then decides with the nodes that are there,
and the line back has its orders.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, NoReturn

from ..errors import InputError, MeshwrightError
from .failures import RunFailed
from .rendezvous_messages import Clock, OnWait, join, line_of, send

_READ_S = 5.0  # a node sends its line at once; a port scanner sends nothing
_DECISION_S = 600.0  # longest wait for the orders of node 0, which may plan anew
_LATE_S = 2.0  # node 0 still answers for this long after an error; nodes started by one command come within it

_HINT_MISSING = "start `meshwright launch` on every node, or give more time with `--timeout`"
_HINT_DIFFERENT = "start the same command on every node, each with its own `--node-rank`"

Held = Mapping[str, Sequence[str]]  # files of each copy of the states that a node has in memory
# Gets the nodes that are there, ascending from 0, and what each has in memory; returns orders for all of them, as JSON,
# or raises MeshwrightError.
Decide = Callable[[Mapping[int, Held]], dict[str, Any]]


class _Present(NamedTuple):
    """A node that has come."""

    host: str
    connection: socket.socket
    held: Held


def meet(
    node_rank: int, num_nodes: int, address: tuple[str, int], run: Mapping[str, Any], timeout_s: float,
    on_wait: OnWait, decide: Decide | None = None, held: Held | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Returns the orders of node 0 when the launchers of all `num_nodes` nodes are present with equal settings.

    address: host and port of node 0. run: flag -> setting that must be equal on all nodes. on_wait: gets a line every
    10 s that names the missing nodes. decide: after a failure; called on node 0, after `timeout_s` seconds also where
    nodes are missing. held: copies of the states in the memory of this node. Raises InputError where two nodes have
    different settings or the same rank, RunFailed where a node is missing after `timeout_s` seconds, and the error of
    `decide` on every node.
    """
    clock = Clock(timeout_s, on_wait, _READ_S if decide is None else _DECISION_S)
    hello = {"node_rank": node_rank, "host": socket.gethostname(), "num_nodes": num_nodes, "run": dict(run),
             "held": dict(held or {})}  # fmt: skip
    return _gather(hello, address, clock, decide) if node_rank == 0 else join(hello, address, clock)


# ---- node 0


def _gather(
    own: Mapping[str, Any], address: tuple[str, int], clock: Clock, decide: Decide | None
) -> dict[str, Any]:  # fmt: skip
    """The orders for all nodes, sent to the others. decide: None: they go on only if all are present."""
    present: dict[int, _Present] = {}
    num_nodes = int(own["num_nodes"])
    with ExitStack() as stack, _listening(address[1]) as server:
        while len(present) < num_nodes - 1:
            present = _still_there(present)
            if clock.left_s <= 0:
                if decide is not None:
                    break
                missing = RunFailed(_missing(present, num_nodes, address, clock.timeout_s), hint=_HINT_MISSING)
                raise _answered(missing, [node.connection for node in present.values()])
            clock.remind(_waiting(present, num_nodes, address))
            server.settimeout(max(min(clock.left_s, 1.0), 0.01))
            with suppress(TimeoutError):
                connection = stack.enter_context(server.accept()[0])
                hello = _hello(connection)
                present = _still_there(present)
                if hello is None:
                    continue
                if problem := _refusal(own, hello, present):
                    error = InputError(problem, hint=_HINT_DIFFERENT)
                    if decide is not None:  # it comes late, perhaps with the plan for more nodes; the others go on
                        _answered(error, [connection])
                        continue
                    _refuse_all(error, hello, present, num_nodes, server, connection, stack)
                present[int(hello["node_rank"])] = _Present(str(hello["host"]), connection, hello["held"])
        connections = [node.connection for node in present.values()]
        try:
            holds = {0: own["held"], **{rank: present[rank].held for rank in sorted(present)}}
            orders = {"go": True, **(decide(holds) if decide is not None else {})}
        except MeshwrightError as error:
            raise _answered(error, connections) from None
        _send_orders(orders, connections)
    return orders


def _send_orders(orders: Mapping[str, Any], connections: Sequence[socket.socket]) -> None:
    """Sends the orders and waits until the others close their connections.

    They close first, because the port stays busy for a minute on the side that closes first.
    """
    for connection in connections:
        send(connection, orders)
    for connection in connections:
        connection.settimeout(_READ_S)
        with suppress(OSError):
            connection.recv(1)


def _refuse_all(
    error: InputError, hello: Mapping[str, Any], present: Mapping[int, _Present], num_nodes: int,
    server: socket.socket, connection: socket.socket, stack: ExitStack,
) -> NoReturn:  # fmt: skip
    """Ends all nodes, since the one that said `hello` would not train the same."""
    _answered(error, [*(node.connection for node in present.values()), connection])
    late = set(range(1, num_nodes)) - {*present, int(hello["node_rank"])}
    _answer_late_nodes(error, server, len(late), stack)
    raise error


def _listening(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise InputError(f"node 0 cannot listen on port {port}: {error.strerror}",
                         hint="choose another `--master-port`") from None  # fmt: skip


def _hello(connection: socket.socket) -> dict[str, Any] | None:
    """The message of a node; None for a connection that is not from our launcher."""
    connection.settimeout(_READ_S)
    try:
        hello = json.loads(line_of(connection))
        known = all(isinstance(hello[name], dict) for name in ("run", "held"))
        known &= int(hello["node_rank"]) > 0 and int(hello["num_nodes"]) > 0
        return hello if known and isinstance(hello["host"], str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _refusal(own: Mapping[str, Any], hello: Mapping[str, Any], present: Mapping[int, Any]) -> str:
    """Why a node cannot take part; empty if it can."""
    rank, host = int(hello["node_rank"]), hello["host"]
    if hello["num_nodes"] != own["num_nodes"]:
        return f"node {rank} ({host}) was started with --nnodes {hello['num_nodes']}, node 0 with {own['num_nodes']}"
    if rank >= int(own["num_nodes"]):
        return f"{host} was started with --node-rank {rank}, but nodes are numbered from 0 to {own['num_nodes'] - 1}"
    if rank in present:
        return f"two nodes were started with --node-rank {rank}: {present[rank].host} and {host}"
    ours, theirs = own["run"], hello["run"]
    differences = [f"{name} is {theirs.get(name)} there, {ours.get(name)} on node 0"
                   for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]  # fmt: skip
    return f"node {rank} ({host}) would not train the same: " + "; ".join(differences) if differences else ""


def _waiting(present: Mapping[int, Any], num_nodes: int, address: tuple[str, int]) -> str:
    missing = [rank for rank in range(1, num_nodes) if rank not in present]
    return f"waiting at {address[0]}:{address[1]} for {_named(missing)} of {num_nodes}"


def _missing(present: Mapping[int, _Present], num_nodes: int, address: tuple[str, int], timeout_s: float) -> str:
    missing = [rank for rank in range(1, num_nodes) if rank not in present]
    there = ", ".join(f"{rank} ({node.host})" for rank, node in sorted(present.items()))
    return (f"{_named(missing)} of {num_nodes} did not come to {address[0]}:{address[1]} within {timeout_s:.0f} s"
            + (f"; there: 0, {there}" if there else "; only node 0 is there"))  # fmt: skip


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"node {shown}" if len(ranks) == 1 else f"nodes {shown}"


def _answered(error: MeshwrightError, connections: Sequence[socket.socket]) -> MeshwrightError:
    """Returns the error after sending it to the other nodes, which end at once with the same message."""
    for connection in connections:
        send(connection, {"error": error.message, "hint": error.hint, "input": isinstance(error, InputError)})
    return error


def _answer_late_nodes(
    error: MeshwrightError, server: socket.socket, num_nodes: int, stack: ExitStack
) -> None:
    """Answers up to `num_nodes` nodes after the error. An unanswered node would retry until its timeout."""
    end = time.monotonic() + _LATE_S
    while num_nodes > 0 and (left_s := end - time.monotonic()) > 0:
        server.settimeout(left_s)
        with suppress(TimeoutError):
            connection = stack.enter_context(server.accept()[0])
            if _hello(connection) is not None:
                _answered(error, [connection])
                num_nodes -= 1


def _still_there(present: Mapping[int, _Present]) -> dict[int, _Present]:
    return {rank: node for rank, node in present.items() if not _has_gone(node.connection)}


def _has_gone(connection: socket.socket) -> bool:
    """Whether a connected node has closed its connection. Its launcher was stopped and may come again."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
