"""`meshwright launch` with real torchrun processes: it ends well, or says who failed where; nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ..sample_plan import unsealed
from ..snapshots import environment, run_here
from .launched import WAIT_S, all_gone, finish, parent_of, start, workers


def after_steps(process: subprocess.Popen[str], plan: Path, rank: int) -> int:
    """Waits for the second step; the pid of `rank`."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 2/"):
            return next(pid for pid, which in workers(plan) if which == rank)
    process.kill()
    raise AssertionError(process.communicate()[1])


@pytest.fixture
def plan(plan_file: Path, tmp_path: Path) -> Path:
    """A copy of its own, by which its processes are found."""
    path = tmp_path / "plan.json"
    path.write_text(plan_file.read_text(encoding="utf-8"), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_rehearsal_agrees_and_reports(plan: Path, tmp_path: Path) -> None:
    """Of a placed plan: its ranks act as others, and train the same."""
    document = json.loads(plan.read_text(encoding="utf-8"))
    document["candidates"][0]["placement"]["logical_of_rank"] = [*range(4, 8), *range(4)]
    plan.write_text(json.dumps(unsealed(document)), encoding="utf-8")
    report = tmp_path / "run.json"
    code, out, err = finish(start(str(plan), "--scale-down", "--steps", "4", "--check-parity", "--report", str(report)))
    assert code == 0, err
    assert "GPUs 8 -> 4" in out
    assert "rank map kept: ranks 0 to 3 act as" in out
    assert "losses and gradient norms agree" in out
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["parity"]["agrees"]
    assert not found["parity"]["as_trained"]
    assert found["parity"]["largest_loss_difference"] <= 1e-12
    assert len(found["steps"]) == 4
    assert len(found["peak_memory_bytes"]) == 4
    assert found["environment"]["backend"] == "gloo"
    for row in found["memory"]:
        assert row["predicted_bytes"] == pytest.approx(row["measured_bytes"], rel=0.1)
    assert all_gone(plan)


@pytest.mark.slow
def test_a_rank_that_dies_is_named(plan: Path) -> None:
    process = start(str(plan), "--scale-down", "--steps", "1000000")
    os.kill(after_steps(process, plan, rank=1), signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 1
    assert "rank 1 was killed by SIGKILL" in err
    assert all_gone(plan)


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_the_collective(plan: Path) -> None:
    process = start(str(plan), "--scale-down", "--steps", "1000000", "--timeout", "4")
    os.kill(after_steps(process, plan, rank=1), signal.SIGSTOP)
    code, _, err = finish(process)
    assert code == 1
    assert "rank 1 did not answer" in err
    assert " over " in err
    assert all_gone(plan)


@pytest.mark.slow
def test_ctrl_c_stops_all_and_keeps_the_report(plan: Path, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    process = start(str(plan), "--scale-down", "--steps", "1000000", "--report", str(report))
    after_steps(process, plan, rank=0)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130, err
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["stopped"] == "interrupted"
    assert len(found["steps"]) >= 2
    assert all_gone(plan)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_for_its_lines_ends_no_training(plan: Path, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    words = ["launch", str(plan), "--scale-down", "--steps", "3", "--report", str(report)]
    command = [sys.executable, "-m", "meshwright", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot write to standard output: no space left on device; going on without it") == 1
    assert len(json.loads(report.read_text(encoding="utf-8"))["steps"]) == 3


@pytest.mark.slow
def test_a_reader_that_leaves_ends_no_training(plan: Path, tmp_path: Path) -> None:
    """As `launch ... 2>&1 | tee log` where tee is killed."""
    report = tmp_path / "run.json"
    words = ["launch", str(plan), "--scale-down", "--steps", "3", "--report", str(report)]
    command = [sys.executable, "-m", "meshwright", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(WAIT_S) == 0
    assert len(json.loads(report.read_text(encoding="utf-8"))["steps"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("to", ["launcher", "rank 1", "all"])
def test_sigterm_ends_after_a_step_and_a_save(to: str, plan: Path, tmp_path: Path) -> None:
    """As a scheduler sends it before it takes the machine away; one rank that gets it stops all."""
    report, folder = tmp_path / "run.json", tmp_path / "ckpt"
    words = (str(plan), "--scale-down", "--checkpoint", str(folder), "--checkpoint-every", "1000000")
    process = start(*words, "--steps", "1000000", "--report", str(report))
    rank_1 = after_steps(process, plan, rank=1)
    processes = {"launcher": process.pid, "torchrun": parent_of(rank_1), "rank 1": rank_1}
    for name, number in processes.items():
        if to in (name, "all"):
            os.kill(number, signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 143, err
    assert "SIGTERM ended the run before its last step" in err
    document = json.loads(report.read_text(encoding="utf-8"))
    last = document["steps"][-1]["step"]
    assert document["stopped"]
    assert [saved["step"] for saved in document["checkpoints"]] == [last]
    assert [path.name for path in folder.glob("[!.]*")] == [f"step-{last:08d}"]
    assert not list(folder.glob(".partial*"))
    assert all_gone(plan)


@pytest.mark.slow
def test_two_nodes_meet_and_train(plan: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = (str(plan), "--scale-down", "--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1",
             "--master-port", port, "--steps", "2")  # fmt: skip
    other = start(*words, "--node-rank", "1")
    code, out, err = finish(start(*words, "--node-rank", "0"))
    assert code == 0, err
    assert "step 2/2" in out
    code, _, err = finish(other)
    assert code == 0, err


def test_an_unreachable_node_0_is_named(plan: Path) -> None:
    words = ("--scale-down", "--nnodes", "2", "--nproc-per-node", "2", "--node-rank", "1", "--master-addr", "127.0.0.1",
             "--timeout", "1")  # fmt: skip
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: whoever connects is refused
        code, _, err = finish(start(str(plan), *words, "--master-port", str(closed.getsockname()[1])))
    assert code == 1
    assert "node 0 did not answer at 127.0.0.1:" in err
    assert "within 1 s: Connection refused" in err


@pytest.mark.slow
def test_a_dead_launcher_leaves_nothing(plan: Path) -> None:
    process = start(str(plan), "--scale-down", "--steps", "1000000")
    after_steps(process, plan, rank=0)
    process.kill()
    finish(process)
    assert all_gone(plan)


def test_missing_data_is_said_before_ranks_start(plan: Path) -> None:
    for flag in ("--data", "--eval-data"):
        refused = run_here("launch", str(plan), "--scale-down", flag, "no-such-file.txt")
        assert refused.code == 2
        assert "no-such-file.txt: no such file or folder" in refused.err
        assert "training" not in refused.out + refused.err


def test_a_port_in_use(plan: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = finish(start(str(plan), "--scale-down", "--master-port", str(port)))
    assert code == 2
    assert f"port {port} is in use" in err
    assert "--master-port" in err


def test_without_torch(plan: Path, tmp_path: Path) -> None:
    code = "import importlib.util as u, sys\nfind = u.find_spec\n"
    code += "u.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
    code += f"from meshwright.cli.main import main; sys.exit(main(['launch', {str(plan)!r}, '--scale-down']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 2
    assert "pip install 'meshwright[runtime]'" in done.stderr


def test_dry_run_prints_the_command(plan: Path) -> None:
    shown = run_here("launch", str(plan), "--dry-run", "--steps", "5", "--choice", "2")
    assert shown.code == 0
    command = "torchrun --nnodes 1 --nproc-per-node 8 --master-addr 127.0.0.1 -m meshwright.runtime.worker"
    assert shown.out.startswith(command)
    assert "--choice 2 --steps 5" in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nproc-per-node", "3"], "runs on 8"),
        (["--choice", "9"], "has no layout 9"),
        (["--check-parity"], "--scale-down"),
        (["--as-trained"], "nothing is checked"),
        (["--scale-down", "--check-parity", "--planned-dtype"], "compares the training as planned"),
        (["--steps", "0"], "nothing to train"),
        (["--device", "tpu"], "none of auto, cuda, cpu"),
    ],
)
def test_bad_flags(plan: Path, words: list[str], message: str) -> None:
    refused = run_here("launch", str(plan), *words)
    assert refused.code == 2
    assert message in refused.err
