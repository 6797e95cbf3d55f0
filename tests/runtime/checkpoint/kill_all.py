"""`make kill-test`: each fault that a run may meet, and what it leaves, as a table. Not collected by `make test`.

After each fault the run goes on with `--resume`; its losses must be those of a run that nobody disturbed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from meshwright.runtime.checkpoint.manifest import Manifest, saved_in

from ..launched import LiveRun, parent_of, workers
from .kills import EVERY, kill_run, saving, words_of, wrong
from .small_disk import SmallDisk

TIMEOUT_S = 10.0  # `--timeout` where other nodes are missing: time for those that come
SLACK_S = 60.0  # to start Python, to end, on a loaded machine; no default time-out of torch is as short

ROWS: list[tuple[str, ...]] = [("fault", "exit code", "on disk", "lost", "verdict")]


@pytest.fixture(scope="module", autouse=True)
def printed() -> Iterator[None]:
    """The table, after the last fault. on disk: step of the newest checkpoint; lost: steps trained since then."""
    yield
    widths = [max(len(row[column]) for row in ROWS) for column in range(len(ROWS[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in ROWS]
    good = sum(row[-1].startswith("good") for row in ROWS)
    print("", *lines, f"good: {good} of {len(ROWS) - 1}; a checkpoint every {EVERY} steps", sep="\n")


@pytest.fixture
def plan(two_ranks: Path, tmp_path: Path) -> Path:
    """A copy of its own, by which its processes are found."""
    return Path(shutil.copy(two_ranks, tmp_path / "plan.json"))


def judge(
    fault: str, runs: Sequence[LiveRun], folder: Path, *, exit_code: int, most_lost: int, says: str = "",
    good: str = "good", inside: Sequence[str] = (), seen: Path | None = None, took_s: float = 0.0,
) -> None:  # fmt: skip
    """Adds the row of a fault that has happened, and fails if it is not as it should be.

    runs: launches of all nodes, which must end with exit_code; most_lost: steps; says: words that all must print; good:
    the verdict, unless something is wrong; inside, seen: of a disk that only processes inside see; took_s: how long
    they waited for others.
    """
    codes, seen = [run.end() for run in runs], seen or folder
    problems = [problem for run in runs for problem in wrong(run, most_lost=most_lost)]
    if any(code != exit_code for code in codes):
        problems.append(f"exit code is not {exit_code}")
    problems += [f"does not print `{says}`" for run in runs if says not in "".join(run.text)]
    if took_s > TIMEOUT_S + SLACK_S:
        problems.append(f"ended after {took_s:.0f} s, --timeout is {TIMEOUT_S:g}")
    on_disk = [Manifest.read(path).step for path in saved_in(seen)][:1]
    # A launcher that is killed may not have printed the last step that is on disk.
    done = max([*(step for run in runs for step, _ in run.steps[-1:]), *on_disk], default=0)
    lost = max([done - sum(on_disk), *(lost for run in runs for lost in run.lost)])
    if not 0 <= lost <= most_lost:
        problems.append(f"{lost} steps lost")
    problems += _resuming(runs[0].plan, folder, on_disk, inside) if on_disk else ["no checkpoint"]
    ROWS.append((fault, ", ".join(map(str, codes)), ", ".join(map(str, on_disk)) or "none", str(lost),
                 "; ".join(problems) or good))  # fmt: skip
    text = "\n".join("".join(run.text[-60:]) for run in runs)
    assert not problems, f"{problems}\n{text}"


def _resuming(plan: Path, folder: Path, on_disk: Sequence[int], inside: Sequence[str]) -> list[str]:
    """What is wrong with a run that goes on from the newest checkpoint for two steps."""
    with LiveRun(plan, "--steps", str(on_disk[0] + 2), "--checkpoint", str(folder), "--resume", inside=inside) as run:
        code = run.end()
    problems = [f"resumed: {problem}" for problem in wrong(run, most_lost=0)]
    if code or run.lives != list(on_disk):
        problems.append(f"does not resume after step {on_disk[0]}: {''.join(run.text[-5:])}")
    return problems


# ---- SIGKILL


@pytest.mark.parametrize(("num_kills", "least_in_save", "behind"), [(20, 6, False), (8, 8, True)])
def test_killed_ranks(plan: Path, tmp_path: Path, num_kills: int, least_in_save: int, behind: bool) -> None:
    folder = tmp_path / "ckpt"
    run, in_save = kill_run(plan, folder, num_kills, seed=1, behind=behind)
    assert len(run.lives) == num_kills
    assert in_save >= least_in_save
    how = "saves behind training" if behind else "training waits for saves"
    # A save behind training may take all steps until the next one.
    judge(f"SIGKILL of a rank, {num_kills} times, {in_save} in a save; {how}; then Ctrl-C", [run], folder,
          exit_code=130, most_lost=2 * EVERY if behind else EVERY,
          good=f"good: {len(run.lives)} of {num_kills} resumed")  # fmt: skip


def test_a_killed_launcher(plan: Path, tmp_path: Path) -> None:
    """Its ranks end with it."""
    folder = tmp_path / "ckpt"
    with LiveRun(plan, *words_of(folder)) as run:
        run.wait(lambda: bool(run.saved))
        since = time.time()
        run.wait(lambda: saving(folder, since), pause_s=0.0005)
        run.process.kill()
    judge("SIGKILL of the launcher, in a save", [run], folder, exit_code=-signal.SIGKILL, most_lost=EVERY)


def test_a_killed_node(plan: Path, tmp_path: Path) -> None:
    """Two nodes of one rank each; the ranks of the other one are gone with its launcher."""
    folder = tmp_path / "ckpt"
    words = [*words_of(folder), "--timeout", "30", "--nnodes", "2", *_address(_free_port())]
    with LiveRun(plan, *words, "--node-rank", "1") as other, LiveRun(plan, *words) as run:
        run.wait(lambda: bool(run.saved))
        other.process.kill()
        run.end()
    judge("SIGKILL of the launcher of node 1 of 2", [run], folder, exit_code=1, most_lost=EVERY,
          says="a rank of another node ended")  # fmt: skip


# ---- SIGTERM


@pytest.mark.parametrize(("to", "behind"), [
    ("the launcher", False), ("one rank", False), ("all processes", False), ("all processes", True),
])  # fmt: skip
def test_sigterm(plan: Path, tmp_path: Path, to: str, behind: bool) -> None:
    folder = tmp_path / "ckpt"
    with LiveRun(plan, *words_of(folder), *(["--checkpoint-async"] if behind else [])) as run:
        run.wait(lambda: run.steps_of_this_life > EVERY)
        rank_1 = next(pid for pid, rank in workers(plan) if rank == 1)
        everyone = [run.process.pid, parent_of(rank_1), *(pid for pid, _ in workers(plan))]
        for pid in {"the launcher": everyone[:1], "one rank": [rank_1], "all processes": everyone}[to]:
            os.kill(pid, signal.SIGTERM)
        run.end()
    judge(f"SIGTERM to {to}{', saves behind training' if behind else ''}", [run], folder, exit_code=143, most_lost=0,
          says="SIGTERM ended the run before its last step")  # fmt: skip


# ---- disks


@pytest.fixture(scope="module")
def saved(two_ranks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of step 4 of a run that went well."""
    folder = tmp_path_factory.mktemp("saved") / "ckpt"
    with LiveRun(two_ranks, "--steps", str(EVERY), "--checkpoint", str(folder)) as run:
        assert run.end() == 0, "".join(run.text)
    return folder


def bytes_of(folder: Path) -> int:
    """On a tmpfs: whole pages."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


@contextmanager
def disk_for(saved: Path, folder: Path, num_checkpoints: float) -> Iterator[SmallDisk]:
    with SmallDisk(folder, int(num_checkpoints * bytes_of(saved))) as disk:
        yield disk


@pytest.mark.parametrize("behind", [False, True])
def test_a_disk_full_at_the_last_save(plan: Path, saved: Path, tmp_path: Path, behind: bool) -> None:
    """Two checkpoints stay and the third is written beside them: there is room for half of it."""
    flags = ["--checkpoint-async"] if behind else []
    with disk_for(saved, tmp_path / "disk", 2.5) as disk:
        words = [*words_of(disk.folder), *flags, "--steps", str(3 * EVERY)]
        with LiveRun(plan, *words, inside=disk.inside) as run:
            run.end()
        disk.remount("size=1g")
        judge(f"a disk that fills in the last save{', behind training' if behind else ''}", [run], disk.folder,
              exit_code=1, most_lost=EVERY, says=f"the checkpoint of step {3 * EVERY} was not saved: rank ",
              inside=disk.inside, seen=disk.seen_from_outside)  # fmt: skip


def test_a_disk_full_for_a_while(plan: Path, saved: Path, tmp_path: Path) -> None:
    with disk_for(saved, tmp_path / "disk", 2.5) as disk, \
         LiveRun(plan, *words_of(disk.folder), inside=disk.inside) as run:  # fmt: skip
        run.wait(lambda: "No space left on device" in "".join(run.text))
        disk.remount("size=1g")
        before = len(run.saved)
        run.wait(lambda: len(run.saved) > before)
        run.process.send_signal(signal.SIGTERM)
        run.end()
        judge("a disk that is full for a while; then SIGTERM", [run], disk.folder, exit_code=143, most_lost=0,
              says="was not saved: rank ", inside=disk.inside, seen=disk.seen_from_outside)  # fmt: skip


def test_a_disk_that_becomes_read_only(plan: Path, saved: Path, tmp_path: Path) -> None:
    """As after errors of a disk. Nothing can be saved until SIGTERM ends the run."""
    with disk_for(saved, tmp_path / "disk", 100) as disk, \
         LiveRun(plan, *words_of(disk.folder), inside=disk.inside) as run:  # fmt: skip
        run.wait(lambda: bool(run.saved))
        disk.remount("ro")
        run.wait(lambda: "Read-only file system" in "".join(run.text))
        run.process.send_signal(signal.SIGTERM)
        run.end()
        disk.remount("rw")
        judge("a disk that becomes read-only; then SIGTERM", [run], disk.folder, exit_code=1, most_lost=1_000_000,
              says="training since the last checkpoint is lost", inside=disk.inside,
              seen=disk.seen_from_outside)  # fmt: skip


# ---- nodes that do not come


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _address(port: int) -> list[str]:
    return ["--master-addr", "127.0.0.1", "--master-port", str(port)]


def wait_in_vain(
    fault: str, plan: Path, folder: Path, num_nodes: int, ranks: Sequence[int], port: int, says: str
) -> None:
    """The nodes of `ranks` go on from what is saved, and end after `--timeout`; what is saved stays as it is."""
    words = [*words_of(folder), "--resume", "--timeout", f"{TIMEOUT_S:g}", "--nnodes", str(num_nodes), *_address(port)]
    started = time.monotonic()
    runs = [LiveRun(plan, *words, "--node-rank", str(rank)) for rank in ranks]
    for run in runs:
        with run:
            run.end()
    took_s = time.monotonic() - started
    judge(fault, runs, folder, exit_code=1, most_lost=0, says=says, took_s=took_s)


def test_a_master_that_refuses(plan: Path, saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "ckpt"))
    port = _free_port()
    wait_in_vain("an unreachable master: it refuses", plan, folder, 2, [1], port,
                 f"node 0 did not answer at 127.0.0.1:{port} within {TIMEOUT_S:g} s: Connection refused")  # fmt: skip


def test_a_master_that_is_silent(plan: Path, saved: Path, tmp_path: Path) -> None:
    """As behind a firewall: packets to a port whose queue is full are dropped."""
    folder = Path(shutil.copytree(saved, tmp_path / "ckpt"))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        port = int(server.getsockname()[1])
        queue = [socket.socket() for _ in range(8)]
        for each in queue:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        wait_in_vain("an unreachable master: it is silent", plan, folder, 2, [1], port,
                     f"node 0 did not answer at 127.0.0.1:{port} within {TIMEOUT_S:g} s: timed out")  # fmt: skip
        for each in queue:
            each.close()


def test_missing_nodes(four_ranks: Path, saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "ckpt"))
    plan = Path(shutil.copy(four_ranks, tmp_path / "plan.json"))
    wait_in_vain("nodes 1 and 3 of 4 do not come", plan, folder, 4, [0, 2], _free_port(),
                 "nodes 1, 3 of 4 did not come")  # fmt: skip
