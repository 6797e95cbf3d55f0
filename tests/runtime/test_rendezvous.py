"""The launchers of several nodes meet, or one line names who is missing or differs. Real sockets on this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from meshwright.runtime import launcher, rendezvous, rendezvous_messages
from meshwright.runtime.failures import RunFailed
from meshwright.runtime.nodes import Nodes
from meshwright.runtime.settings import Settings

from meshwright.errors import InputError, MeshwrightError

RUN = {"--seed": "0"}


@pytest.fixture
def address() -> tuple[str, int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1", int(probe.getsockname()[1])


def meet(
    address: tuple[str, int], runs: list[tuple[int, Mapping[str, str]]], *, num_nodes: int, timeout_s: float = 20.0,
    waits: list[str] | None = None,
) -> list[MeshwrightError | None]:  # fmt: skip
    """What becomes of launchers, given as (node rank, settings), that start at once."""
    ends: list[MeshwrightError | None] = [None] * len(runs)

    def launch(index: int, rank: int, run: Mapping[str, str]) -> None:
        try:
            on_wait = (waits if waits is not None else []).append
            rendezvous.meet(rank, num_nodes, address, run, timeout_s, on_wait)
        except MeshwrightError as error:
            ends[index] = error

    threads = [threading.Thread(target=launch, args=(i, rank, run)) for i, (rank, run) in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
        assert not thread.is_alive()
    return ends


def test_all_nodes_go_on_and_the_port_is_free_again(address: tuple[str, int]) -> None:
    assert meet(address, [(2, RUN), (0, RUN), (1, RUN)], num_nodes=3) == [None] * 3
    with socket.create_server(address):  # where torchrun listens next
        pass


def test_missing_nodes_are_named_on_all(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_messages, "_REMIND_S", 0.1)
    waits: list[str] = []
    ends = meet(address, [(0, RUN), (2, RUN)], num_nodes=4, timeout_s=1.5, waits=waits)
    for error in ends:
        assert isinstance(error, RunFailed)
        assert "nodes 1, 3 of 4 did not come to 127.0.0.1" in error.message
        assert f"there: 0, 2 ({socket.gethostname()})" in error.message
    assert any("for nodes 1, 3 of 4" in line for line in waits)
    assert any("waits for other nodes" in line for line in waits)


@pytest.mark.parametrize(("host", "reason"), [
    ("127.0.0.1", "refused"), ("no-such-host.invalid", "not known|resolution|associated"),
])  # fmt: skip
def test_a_node_0_that_does_not_answer(address: tuple[str, int], host: str, reason: str) -> None:
    began = time.monotonic()
    (error,) = meet((host, address[1]), [(1, RUN)], num_nodes=2, timeout_s=1.0)
    assert isinstance(error, RunFailed)
    assert f"node 0 did not answer at {host}:{address[1]} within 1 s" in error.message
    assert time.monotonic() - began < 15.0
    with pytest.raises(RunFailed, match=f"(?i){reason}"):
        raise error


def test_a_node_that_came_and_went_is_missing(address: tuple[str, int]) -> None:
    def come_and_go() -> None:
        time.sleep(0.5)
        with socket.create_connection(address) as connection:
            connection.sendall(b'{"node_rank": 1, "host": "a", "num_nodes": 3, "run": {"--seed": "0"}}\n')

    visitor = threading.Thread(target=come_and_go)
    visitor.start()
    (error,) = meet(address, [(0, RUN)], num_nodes=3, timeout_s=2.5)
    visitor.join()
    assert isinstance(error, RunFailed)
    assert "nodes 1, 2 of 3 did not come" in error.message


def test_a_port_that_is_taken(address: tuple[str, int]) -> None:
    with socket.create_server(address):
        (error,) = meet(address, [(0, RUN)], num_nodes=2)
    assert isinstance(error, InputError)
    assert f"cannot listen on port {address[1]}" in error.message


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9.2\n", b"{}\n", b"[1]\n"])
def test_another_service_on_the_port(address: tuple[str, int], words: bytes) -> None:
    with socket.create_server(address) as server:

        def greet() -> None:
            with suppress(OSError):  # until it is closed
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(words)
                        connection.recv(100)

        threading.Thread(target=greet, daemon=True).start()
        (error,) = meet(address, [(1, RUN)], num_nodes=2, timeout_s=0.1)
    assert isinstance(error, RunFailed)
    assert "not `meshwright launch`" in error.message


def test_nodes_that_would_train_differently_are_refused(address: tuple[str, int]) -> None:
    ends = meet(address, [(0, RUN), (1, {"--seed": "1"})], num_nodes=2)
    for error in ends:
        assert isinstance(error, InputError)
        assert "would not train the same: --seed is 1 there, 0 on node 0" in error.message


@pytest.mark.parametrize(("ranks", "message"), [
    ([0, 1, 1], "two nodes were started with --node-rank 1"),
    ([0, 1, 5], "numbered from 0 to 3"),
])  # fmt: skip
def test_wrong_ranks_are_refused(address: tuple[str, int], ranks: list[int], message: str) -> None:
    ends = meet(address, [(rank, RUN) for rank in ranks], num_nodes=4)
    assert all(isinstance(error, InputError) and message in error.message for error in ends)


def test_a_node_that_comes_after_the_error_gets_it_too(address: tuple[str, int]) -> None:
    ends: list[MeshwrightError | None] = []

    def come_late() -> None:
        time.sleep(1.0)
        ends.extend(meet(address, [(1, RUN)], num_nodes=3, timeout_s=5.0))

    late = threading.Thread(target=come_late)
    late.start()
    ends.extend(meet(address, [(0, RUN), (2, {"--seed": "1"})], num_nodes=3))
    late.join()
    assert len(ends) == 3
    assert all(isinstance(error, InputError) and "--seed is 1 there" in error.message for error in ends)


def test_strangers_and_launchers_that_come_again(address: tuple[str, int]) -> None:
    """Whoever sends no line of ours is passed over; a launcher that was stopped while it waited may come again."""

    def strange() -> None:
        time.sleep(0.5)
        hello = b'{"node_rank": 1, "host": "a", "num_nodes": 3, "run": {"--seed": "0"}}\n'
        for words in (b"GET / HTTP/1.0\r\n\r\n", hello):
            with socket.create_connection(address) as connection:
                connection.sendall(words)

    stranger = threading.Thread(target=strange)
    stranger.start()
    late = threading.Timer(1.5, lambda: ends.extend(meet(address, [(1, RUN), (2, RUN)], num_nodes=3)))
    ends: list[MeshwrightError | None] = []
    late.start()
    assert meet(address, [(0, RUN)], num_nodes=3) == [None]
    stranger.join()
    late.join()
    assert ends == [None, None]


def test_settings_that_change_the_training_are_compared(tmp_path: Path) -> None:
    plan, order = tmp_path / "plan.json", tmp_path / "order.csv"
    plan.write_text("{}")
    order.write_text("F0")
    usual = Settings(plan=str(plan))
    others: dict[str, Any] = {"data": "tokens", "order": str(order), "checkpoint": "ckpt"}
    of_each_node = {"plan", "device", "timeout_s", "report", "metrics", "tracker", "keep", "run_dir", "events",
                    "restarts", "copies"}
    for field in fields(Settings):
        value = getattr(usual, field.name)
        other: Any = not value if isinstance(value, bool) else others.get(field.name, 7)
        changed = replace(usual, **{field.name: other}) if field.name not in of_each_node else usual
        assert (changed.must_be_equal() != usual.must_be_equal()) == (field.name not in of_each_node), field.name
    elsewhere = tmp_path / "elsewhere.csv"
    elsewhere.write_text("F0")
    same = [replace(usual, order=str(path)).must_be_equal() for path in (order, elsewhere)]
    assert same[0] == same[1]


def test_nodes_meet_once_though_torchrun_finds_the_port_taken(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other nodes have started torchrun by then, and come to no second meeting."""
    meetings, runs = [], iter((True, False))

    class Run:
        tail: tuple[str, ...] = ()

        def __init__(self, *_: object) -> None:
            self.terminating, self.port_was_taken = False, next(runs)

        def follow(self) -> int:
            return int(self.port_was_taken)

    monkeypatch.setattr(launcher, "_Run", Run)
    monkeypatch.setattr(launcher, "PORT_WAIT_S", 0.0)
    def met(*_: object, held: object) -> dict[str, Any]:
        meetings.append(1)
        return {}

    monkeypatch.setattr(rendezvous, "meet", met)
    (tmp_path / "plan.json").write_text("{}")
    nodes = Nodes(nnodes=2, master_addr=address[0], master_port=address[1])
    launcher.run(Settings(plan=str(tmp_path / "plan.json")), nodes, lambda event: None, print, print)
    assert len(meetings) == 1
