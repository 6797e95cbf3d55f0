"""Several nodes that go on after a failure: all of them, or those that remain under another plan."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner import api
from meshwright.runtime import rendezvous
from meshwright.runtime.failures import RunFailed

from meshwright.errors import InputError, MeshwrightError

from .launched import LiveRun, finish, start, workers

RUN = {"--seed": "0"}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A small model on two nodes of one GPU."""
    sizes = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_hidden": 64, "vocab": 61, "max_positions": 16}
    box = {"name": "box", "gpu": "h100-sxm-80gb", "gpus_per_node": 1, "count": 2, "nics": 1,
           "nic_bandwidth": "400 Gb/s", "network": "roce"}  # fmt: skip
    made = api.plan(model=sizes, cluster={"name": "boxes", "groups": [box]}, fix={"pp": 1, "tp": 1}, seq_len=16,
                    global_batch=8)  # fmt: skip
    path = tmp_path / "plan.json"
    path.write_text(made.to_json(), encoding="utf-8")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def node_words(folder: Path, *more: str) -> list[str]:
    return ["--checkpoint", str(folder), "--master-addr", "127.0.0.1", "--master-port", str(free_port()), *more]


@pytest.mark.slow
def test_a_run_goes_on_without_a_lost_node(plan: Path, tmp_path: Path) -> None:
    """Its losses are those of a run that resumes from the same checkpoint under the new plan."""
    folder, report, other = tmp_path / "ckpt", tmp_path / "run.json", tmp_path / "other"
    words = node_words(folder, "--elastic", "--rejoin-timeout", "2", "--steps", "60", "--checkpoint-every", "4",
                       "--keep", "99")  # fmt: skip
    with LiveRun(plan, *words, "--report", str(report)) as run, LiveRun(plan, *words, "--node-rank", "1") as lost:
        run.wait(lambda: bool(run.saved))
        lost.process.kill()
        assert run.end() == 0, "".join(run.text)
    text = "".join(run.text)
    assert "without one node: " in text
    assert "lost: node 1 of 2" in text
    assert "predicted step" in text
    document = json.loads(report.read_text(encoding="utf-8"))
    assert [event["num_gpus"] for event in document["replanned"]] == [1]
    begun = document["resumed"][-1]["step"]
    assert begun > 0
    other.mkdir()
    shutil.copytree(folder / f"step-{begun:08d}", other / f"step-{begun:08d}")
    code, _, err = finish(start(str(folder / "plan-1-node.json"), "--checkpoint", str(other), "--resume", "--steps",
                                "60", "--report", str(report), "--force"))  # fmt: skip
    assert code == 0, err
    again = json.loads(report.read_text(encoding="utf-8"))
    assert again["layout_id"] == document["layout_id"] == document["replanned"][0]["layout_id"]
    losses = {step["step"]: step["loss"] for step in document["steps"]}
    assert [losses[step["step"]] for step in again["steps"]] == [step["loss"] for step in again["steps"]]
    assert len(again["steps"]) == 60 - begun


@pytest.mark.slow
def test_ranks_on_two_nodes_start_again_without_a_checkpoint(plan: Path, tmp_path: Path) -> None:
    words = node_words(tmp_path / "ckpt", "--max-restarts", "1", "--steps", "100000", "--checkpoint-every", "100000")
    with LiveRun(plan, *words) as run, LiveRun(plan, *words, "--node-rank", "1") as other:
        run.wait(lambda: len(run.steps) > 2)
        os.kill(next(pid for pid, rank in workers(plan) if rank == 1), signal.SIGKILL)
        run.wait(lambda: run.lives == [0] and run.steps_of_this_life > 1)
        os.kill(next(pid for pid, rank in workers(plan) if rank == 1), signal.SIGKILL)  # one restart is allowed
        assert (run.end(), other.end()) == (1, 1)
    assert "no checkpoint yet: starting with step 1" in "".join(run.text)
    assert "rank 1 was killed by SIGKILL" in "".join(other.text)


@pytest.mark.slow
def test_a_launcher_that_died_is_started_again_and_joins(plan: Path, tmp_path: Path) -> None:
    words = node_words(tmp_path / "ckpt", "--max-restarts", "1", "--steps", "100000", "--checkpoint-every", "5")
    with LiveRun(plan, *words) as run:
        with LiveRun(plan, *words, "--node-rank", "1") as lost:
            run.wait(lambda: bool(run.saved))
            lost.process.kill()
        run.wait(lambda: any("waiting for the other nodes" in line for line in run.text))
        with LiveRun(plan, *words, "--node-rank", "1"):
            run.wait(lambda: len(run.lives) == 1 and run.steps_of_this_life > 2)
    assert run.lives[0] in run.saved
    assert "restart 1: a rank had failed" in "".join(run.text)


# ---- what node 0 decides


def meeting(
    ranks: dict[int, dict[str, str]], num_nodes: int, decide: Callable[[list[int]], dict[str, Any]]
) -> dict[int, dict[str, Any] | MeshwrightError]:
    """What each of these nodes, with its settings, gets from a meeting of one second."""
    address, ends = ("127.0.0.1", free_port()), dict[int, dict[str, Any] | MeshwrightError]()

    def join(rank: int) -> None:
        try:
            ends[rank] = rendezvous.meet(rank, num_nodes, address, ranks[rank], 1.0, print, decide)
        except MeshwrightError as error:
            ends[rank] = error

    threads = [threading.Thread(target=join, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def test_orders_reach_the_nodes_that_remain() -> None:
    ends = meeting({0: RUN, 2: RUN}, 4, lambda present: {"nodes": present})
    assert ends == {0: {"go": True, "nodes": [0, 2]}, 2: {"go": True, "nodes": [0, 2]}}


def test_a_node_with_another_plan_ends_alone() -> None:
    ends = meeting({0: RUN, 1: {"--seed": "1"}, 2: RUN}, 3, lambda present: {"nodes": present})
    assert isinstance(ends[1], InputError)
    assert ends[0] == ends[2] == {"go": True, "nodes": [0, 2]}


def test_an_error_of_node_0_ends_all() -> None:
    def refuse(present: list[int]) -> dict[str, Any]:
        raise RunFailed(f"{len(present)} are too few", hint="more")

    ends = meeting({0: RUN, 1: RUN}, 2, refuse)
    assert {str(end) for end in ends.values()} == {str(RunFailed("2 are too few", hint="more"))}
