"""Messages between the launchers of a run, and the other nodes' side of their rendezvous with node 0. No torch here."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from .failures import RunFailed

_REMIND_S = 10.0  # between two lines that name missing nodes
_RETRY_S = 0.25  # between two attempts to reach node 0
_LONGEST_LINE = 1 << 16  # bytes; a longer line is not from our launcher

OnWait = Callable[[str], None]


@dataclass
class Clock:
    """The remaining time, and the time of the next message."""

    timeout_s: float
    on_wait: OnWait
    answer_s: float  # seconds after the timeout for the answer of node 0
    started: float = field(default_factory=time.monotonic)
    spoken: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.started + self.timeout_s - time.monotonic()

    def remind(self, text: str) -> None:
        """Reports `text` if the last line is `_REMIND_S` old."""
        now = time.monotonic()
        if now - self.spoken >= _REMIND_S:
            self.spoken = now
            self.on_wait(f"{text} ({now - self.started:.0f} s of {self.timeout_s:.0f} s)")


def send(connection: socket.socket, document: Mapping[str, Any]) -> None:
    with suppress(OSError):  # torchrun reports a node that left
        connection.sendall(json.dumps(document).encode() + b"\n")


def line_of(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        piece = connection.recv(4096)
        if not piece or len(data) > _LONGEST_LINE:
            raise ValueError("not a line")
        data += piece
    return data


def join(hello: Mapping[str, Any], address: tuple[str, int], clock: Clock) -> dict[str, Any]:
    """The orders of node 0."""
    host, port = address
    while True:
        orders = _attempt(hello, address, clock)
        if not isinstance(orders, str):
            return orders
        if clock.left_s <= 0:
            raise RunFailed(f"node 0 did not answer at {host}:{port} within {clock.timeout_s:.0f} s: {orders}",
                            hint="check `--master-addr`, the launcher of node 0 and the firewall")  # fmt: skip
        clock.remind(f"waiting for node 0 at {host}:{port}: {orders}")
        time.sleep(min(_RETRY_S, max(clock.left_s, 0.0)))


def _attempt(hello: Mapping[str, Any], address: tuple[str, int], clock: Clock) -> dict[str, Any] | str:
    """The orders when all nodes are present; otherwise why node 0 was not reached. Raises the error of node 0."""
    try:
        with socket.create_connection(address, timeout=max(min(clock.left_s, _REMIND_S), 0.1)) as connection:
            connection.sendall(json.dumps(hello).encode() + b"\n")
            return _reply(connection, address, clock)
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    except (ValueError, KeyError, TypeError):
        return "whoever listens there is not `meshwright launch` of this version"


def _reply(connection: socket.socket, address: tuple[str, int], clock: Clock) -> dict[str, Any] | str:
    """Waits until all nodes have reached node 0. Node 0 keeps the time; the extra seconds here are for its answer."""
    data = b""
    while not data.endswith(b"\n"):
        connection.settimeout(1.0)
        try:
            piece = connection.recv(4096)
        except TimeoutError:
            if clock.left_s < -clock.answer_s:
                return "it is there, but waits for other nodes"
            clock.remind(f"node 0 at {address[0]}:{address[1]} waits for other nodes")
            continue
        if not piece:
            return "it closed the connection"
        data += piece
    reply: dict[str, Any] = json.loads(data)
    if "go" in reply:
        return reply
    kind = InputError if reply["input"] else RunFailed
    raise kind(str(reply["error"]), hint=str(reply["hint"]))
