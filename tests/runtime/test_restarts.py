"""Several nodes that go on after a failure: all of them, or those that remain under another plan."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.main import main
from meshwright.planner import api
from meshwright.planner.document.reading import load_plan
from meshwright.runtime import launcher, rendezvous, restarts
from meshwright.runtime.checkpoint.manifest import File, Manifest, folder_name, saved_in
from meshwright.runtime.checkpoint.restore_copies import copies_folder
from meshwright.runtime.failures import RanksFailed, RunFailed
from meshwright.runtime.nodes import Nodes
from meshwright.runtime.settings import Settings

from meshwright.errors import InputError, MeshwrightError

from ..snapshots import ROOT
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
def test_a_torchrun_that_is_killed_is_started_again(two_ranks: Path, tmp_path: Path) -> None:
    """It restarts ranks on one node, and none when it is gone itself."""
    words = ["--checkpoint", str(tmp_path / "ckpt"), "--max-restarts", "1", "--steps", "100000", "--checkpoint-every",
             "5", "--device", "cpu"]  # fmt: skip
    with LiveRun(two_ranks, *words) as run:
        run.wait(lambda: bool(run.saved))
        os.kill(parent_of(next(pid for pid, rank in workers(two_ranks) if rank == 0)), signal.SIGKILL)
        run.wait(lambda: len(run.lives) == 1 and run.steps_of_this_life > 2)
        os.kill(parent_of(next(pid for pid, rank in workers(two_ranks) if rank == 0)), signal.SIGKILL)
        assert run.end() == 1  # one restart is allowed
    assert run.lives[0] in run.saved
    assert "restart 1: a rank had failed" in "".join(run.text)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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


@pytest.mark.slow
def test_a_run_goes_on_from_the_memory_of_the_nodes_that_remain(plan: Path, tmp_path: Path) -> None:
    """A node is lost with its memory, without a checkpoint on disk. Losses are those of a run that loses nothing."""
    folder, report = tmp_path / "ckpt", tmp_path / "run.json"
    words = node_words(folder, "--elastic", "--rejoin-timeout", "2", "--steps", "40", "--checkpoint-every", "1000",
                       "--copy-every", "4", "--report", str(report))  # fmt: skip
    with LiveRun(plan, *words) as run, LiveRun(plan, *words, "--node-rank", "1") as lost:
        run.wait(lambda: any(line.startswith("copy of step 8 in memory") for line in run.text))
        lost.process.kill()
        shutil.rmtree(copies_folder(str(folder.resolve()), 1))
        assert run.end() == 0, "".join(run.text)
    text = "".join(run.text)
    assert "is written to " in text
    assert "one node remains: no further copies" in text
    document = json.loads(report.read_text(encoding="utf-8"))
    begun = document["resumed"][-1]["step"]
    assert begun >= 8
    assert begun % 4 == 0
    planned = load_plan(folder / "plan-1-node.json").candidates[0]
    assert document["layout_id"] == planned.layout_id == document["replanned"][0]["layout_id"]
    assert not copies_folder(str(folder.resolve()), 0).exists()
    whole = node_words(tmp_path / "other", "--steps", "40", "--report", str(tmp_path / "whole.json"))
    with LiveRun(plan, *whole) as first, LiveRun(plan, *whole, "--node-rank", "1") as second:
        assert (first.end(), second.end()) == (0, 0)
    expected = json.loads((tmp_path / "whole.json").read_text(encoding="utf-8"))["steps"]
    # In bf16 the two layouts differ by up to 4e-5 in 40 steps; a step that is left out moves losses by 1e-3 and more.
    assert [step["loss"] for step in document["steps"]] == pytest.approx([s["loss"] for s in expected], rel=2e-4)


@pytest.mark.slow
def test_ranks_start_again_from_memory(plan: Path, tmp_path: Path) -> None:
    """With the same layout a step that is repeated has the loss that it had, as it is printed."""
    words = node_words(tmp_path / "ckpt", "--max-restarts", "1", "--steps", "60", "--checkpoint-every", "1000",
                       "--copy-every", "5", "--report", str(tmp_path / "run.json"))  # fmt: skip
    with LiveRun(plan, *words) as run, LiveRun(plan, *words, "--node-rank", "1") as other:
        run.wait(lambda: any(line.startswith("copy of step 10 in memory") for line in run.text))
        os.kill(next(pid for pid, rank in workers(plan) if rank == 1), signal.SIGKILL)
        assert (run.end(), other.end()) == (0, 0)
    assert run.lives[0] >= 10
    assert run.lives[0] % 5 == 0
    seen = dict[int, set[float]]()
    for step, loss in run.steps:
        seen.setdefault(step, set()).add(loss)
    assert len(seen) == 60
    assert all(len(losses) == 1 for losses in seen.values())


LINGERS = """
import os, sys, threading, time
if "meshwright.runtime.agent" in sys.orig_argv:  # whose fork is a rank
    os.register_at_fork(after_in_child=lambda: threading.Thread(target=time.sleep, args=(600,)).start())
"""


@pytest.mark.slow
def test_a_rank_that_dies_after_its_last_step_ends_no_run(plan: Path, tmp_path: Path) -> None:
    """torchrun of the other node would wait 300 s for a node whose rank failed, and this node would start again."""
    (tmp_path / "sitecustomize.py").write_text(LINGERS, encoding="utf-8")
    words = node_words(tmp_path / "ckpt", "--max-restarts", "1", "--steps", "3", "--checkpoint-every", "3")
    inside = ["env", f"PYTHONPATH={tmp_path}:{ROOT}"]
    with LiveRun(plan, *words) as run, LiveRun(plan, *words, "--node-rank", "1", inside=inside) as other:
        run.wait(lambda: not any(rank == 0 for _, rank in workers(plan)) and bool(run.saved))
        os.kill(next(pid for pid, rank in workers(plan) if rank == 1), signal.SIGKILL)
        assert (run.end(), other.end()) == (0, 0), "".join(run.text + other.text)
    assert run.lives == other.lives == []


def planted(folder: Path, step: int) -> Path:
    """Makes a whole generation of one file in the memory of a node."""
    generation = folder / folder_name(step)
    generation.mkdir(parents=True)
    (generation / "__0_0.distcp").write_bytes(b"states")
    files = {"__0_0.distcp": File.of(generation / "__0_0.distcp")}
    Manifest(step, "small", "dp2", "synthetic", {}, files).write(generation)
    return folder


@pytest.mark.slow
def test_a_run_that_gives_up_leaves_its_newest_copy_on_disk(plan: Path, tmp_path: Path) -> None:
    """A rank dies in the first life of the run and in the second, which is the last."""
    words = node_words(tmp_path / "ckpt", "--max-restarts", "1", "--steps", "100000", "--checkpoint-every", "100000",
                       "--copy-every", "5")  # fmt: skip
    with LiveRun(plan, *words) as run, LiveRun(plan, *words, "--node-rank", "1") as other:
        run.wait(lambda: any(line.startswith("copy of step 10 in memory") for line in run.text))
        os.kill(next(pid for pid, rank in workers(plan) if rank == 1), signal.SIGKILL)
        run.wait(lambda: len(run.lives) == 1 and run.steps_of_this_life > 11)
        os.kill(next(pid for pid, rank in workers(plan) if rank == 1), signal.SIGKILL)
        assert (run.end(), other.end()) == (1, 1)
    newest, older = (Manifest.read(saved).step for saved in saved_in(tmp_path / "ckpt"))
    assert older == run.lives[0]
    assert newest >= older + 10
    assert f"step-{newest:08d} is written to " in "".join(run.text)


@pytest.mark.slow
def test_copies_of_a_killed_launcher_are_not_taken(plan: Path, tmp_path: Path) -> None:
    """Ranks that fail before they remove them leave none: their data is missing."""
    port, stale = free_port(), [planted(tmp_path / f"node-{node}", 999) for node in range(2)]

    def run(node: int) -> None:
        settings = Settings(plan=str(plan), data=str(tmp_path / "none"), copies=str(stale[node]),
                            checkpoint=str(tmp_path / "ckpt"))  # fmt: skip
        with pytest.raises(InputError, match="none"):
            launcher.run(settings, Nodes(2, 1, node, "127.0.0.1", port), print, print, print)

    threads = [threading.Thread(target=run, args=(node,)) for node in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(path.exists() for path in stale)


# ---- what node 0 decides


def meeting(
    ranks: dict[int, dict[str, str]], num_nodes: int, decide: rendezvous.Decide
) -> dict[int, dict[str, Any] | MeshwrightError]:
    """What each of these nodes, with its settings, gets from a meeting of one second."""
    address, ends = ("127.0.0.1", free_port()), dict[int, dict[str, Any] | MeshwrightError]()

    def join(rank: int) -> None:
        try:
            ends[rank] = rendezvous.meet(rank, num_nodes, address, ranks[rank], 1.0, print, decide, {"of": [str(rank)]})
        except MeshwrightError as error:
            ends[rank] = error

    threads = [threading.Thread(target=join, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


def test_orders_reach_the_nodes_that_remain() -> None:
    ends = meeting({0: RUN, 2: RUN}, 4, lambda held: {"nodes": list(held), "held": held})
    orders = {"go": True, "nodes": [0, 2], "held": {"0": {"of": ["0"]}, "2": {"of": ["2"]}}}
    assert ends[2] == orders


def test_a_node_with_another_plan_ends_alone() -> None:
    ends = meeting({0: RUN, 1: {"--seed": "1"}, 2: RUN}, 3, lambda held: {"nodes": list(held)})
    assert isinstance(ends[1], InputError)
    assert ends[0] == ends[2] == {"go": True, "nodes": [0, 2]}


@pytest.mark.parametrize(("present", "end"), [([0, 1], "killed"), ([0], "lost: node 1 of 2")])
def test_a_run_that_gives_up_writes_its_copies_first(present: list[int], end: str, plan: Path, tmp_path: Path) -> None:
    """No restart is left, or a node stays away."""
    port, ends = free_port(), dict[int, RunFailed]()
    disk = tmp_path / "ckpt"
    disk.mkdir()

    def give_up(node: int) -> None:
        settings = Settings(plan=str(plan), checkpoint=str(disk), copies=str(planted(tmp_path / f"node-{node}", 7)))
        nodes = Nodes(2, 1, node, "127.0.0.1", port)
        failure = RanksFailed("killed", hint="look", details={"node": node})
        orders = restarts._orders(settings, nodes, restarts.Recovery(1.0), failure, print)
        try:
            launcher.follow(orders, settings, nodes, print, failure.details)
        except RunFailed as error:
            ends[node] = error

    threads = [threading.Thread(target=give_up, args=(node,)) for node in present]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in saved_in(disk)] == [folder_name(7)]
    assert sorted(ends) == present
    for node, error in ends.items():
        assert end in error.message
        assert error.details == {"node": node}


def test_a_printed_command_makes_no_copies(
    plan: Path, two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dry-run", "--checkpoint", str(tmp_path / "ckpt"), "--max-restarts", "1", "--copy-every", "5"]
    assert main(["launch", str(plan), *words]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("torchrun ")
    assert "--copy-every" not in printed.out
    assert "leaves out `--copy-every`" in printed.err
    assert "`meshwright launch` makes the copies" in printed.err
    assert "on several nodes `meshwright launch` starts the ranks again" in printed.err
    assert main(["launch", str(two_ranks), *words]) == 2
    printed = capsys.readouterr()
    assert "the run has one node" in printed.err
    assert not printed.out


def test_a_printed_command_of_an_elastic_run_is_refused_as_the_run_is(
    plan: Path, two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dry-run", "--checkpoint", str(tmp_path / "ckpt"), "--elastic"]
    assert main(["launch", str(two_ranks), *words]) == 2
    printed = capsys.readouterr()
    assert "--elastic: the run has one node" in printed.err
    assert not printed.out
    assert main(["launch", str(plan), *words]) == 0
    printed = capsys.readouterr()
    assert "--elastic" not in printed.out
    assert "leaves out `--elastic`" in printed.err


def test_a_rehearsal_is_refused_before_it_shows_its_sizes(
    plan_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", str(plan_file), "--scale-down", "--checkpoint", str(tmp_path / "ckpt")]
    checked = [*words, "--check-parity", "--as-trained", "--planned-dtype"]
    for flags in ([*words, "--max-restarts", "1", "--copy-every", "5"], checked):
        assert main(flags) == 2
        assert "scaled down" not in capsys.readouterr().out


def test_an_error_of_node_0_ends_all() -> None:
    def refuse(held: Mapping[int, rendezvous.Held]) -> dict[str, Any]:
        raise RunFailed(f"{len(held)} are too few", hint="more")

    ends = meeting({0: RUN, 1: RUN}, 2, refuse)
    assert {str(end) for end in ends.values()} == {str(RunFailed("2 are too few", hint="more"))}
