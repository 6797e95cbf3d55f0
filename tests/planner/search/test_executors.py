"""Where searches run changes no result; what is done is kept, and a sweep goes on from it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.document.plan import Plan, digest_of
from meshwright.planner.search import executors
from meshwright.planner.search.executors import Processes, opened
from meshwright.planner.studies import parallel

import meshwright as mw
from meshwright.errors import InputError, MissingExtraError, WorkerLostError

from ...snapshots import UNCOMPILED, environment

VARY = ["gpus=2,4,8,16"]
ASKED: dict[str, Any] = {"vary": VARY, "replan": True}


@cache
def plan() -> Plan:
    return mw.evaluate(None, "dp16-mbs1-z1-rnone", model="llama-3.2-1b", cluster="dgx-h100:2", global_batch=64,
                       fix={"cp": 1})  # fmt: skip


@cache
def changed() -> Plan:
    """Of GPUs that are free to vary."""
    request = {**plan().request, "cluster": "dgx-h100", "gpus": 16}
    return plan().model_copy(update={"request": request, "request_sha256": digest_of(request)})


@cache
def expected() -> str:
    return mw.what_if(changed(), **ASKED).model_dump_json()


def test_jobs_change_no_byte() -> None:
    assert mw.what_if(changed(), **ASKED, jobs=2).model_dump_json() == expected()


def test_resumed_sweep_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption keeps what was searched; the second call searches only the rest."""
    path, searched = tmp_path / "part.jsonl", []
    honest = parallel._price
    monkeypatch.setattr(parallel, "_LONGEST", 1)

    def price(run: Any) -> Any:
        searched.append(run)
        return honest(run)

    monkeypatch.setattr(parallel, "_price", price)

    def interrupt(done: float, total: float, note: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mw.what_if(changed(), **ASKED, resume=path, progress=interrupt)
    assert len(searched) == 2
    assert mw.what_if(changed(), **ASKED, resume=path).model_dump_json() == expected()
    assert len(searched) == 4
    assert mw.what_if(changed(), **ASKED, resume=path).model_dump_json() == expected()
    assert len(searched) == 4


def kept(path: Path) -> Path:
    mw.what_if(changed(), **ASKED, resume=path)
    return path


def test_a_line_cut_short_is_searched_again(tmp_path: Path) -> None:
    path = kept(tmp_path / "part.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert mw.what_if(changed(), **ASKED, resume=path).model_dump_json() == expected()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("what", "said"),
    [("other", "another sweep"), ("text", "not a file of points"), ("damaged", "line 2"), ("version", "0.0.0 wrote")],
)
def test_files_of_other_sweeps_are_refused(what: str, said: str, tmp_path: Path) -> None:
    path = kept(tmp_path / "part.jsonl")
    asked = ASKED
    if what == "other":
        asked = {**ASKED, "vary": ["gpus=1,4,8,16"]}
    elif what == "text":
        path.write_text("hello\n")
    elif what == "damaged":
        head, *_ = path.read_text().splitlines(keepends=True)
        path.write_text(f'{head}{{"99": 1}}\n')
    else:
        head, *rest = path.read_text().splitlines(keepends=True)
        path.write_text("".join([json.dumps({**json.loads(head), "version": "0.0.0"}) + "\n", *rest]))
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        mw.what_if(changed(), **asked, resume=path)
    assert said in str(caught.value)
    assert caught.value.hint
    assert path.read_bytes() == before


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """Writing stops at a limit on the size of files, as on a full disk: a message, and a file to go on from."""
    (tmp_path / "plan.json").write_text(changed().to_json())
    whole = kept(tmp_path / "whole.jsonl").stat().st_size
    command = [sys.executable, "-m", "meshwright", "what-if", "plan.json", "--vary", VARY[0], "--replan",
               "--resume", "part.jsonl"]  # fmt: skip

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole - 50, whole - 50))

    run = {"cwd": tmp_path, "env": environment(UNCOMPILED), "capture_output": True, "encoding": "utf-8", "check": False}
    done = subprocess.run(command, preexec_fn=limited, **run)  # type: ignore[call-overload]
    assert done.returncode == 2
    assert "error: cannot write part.jsonl: file too large" in done.stderr
    assert (tmp_path / "part.jsonl").read_text().endswith("\n")
    again = subprocess.run([*command, "--json"], **run)  # type: ignore[call-overload]
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "part.jsonl").stat().st_size == whole


@pytest.mark.parametrize(
    ("jobs", "address", "said"),
    [
        (0, None, "0 jobs"),
        (2, "dask://here:1", "both choose the place"),
        (1, "here:8786", "is no address"),
        (1, "dask://", "is no address"),
        (1, "dsk://here:1", "unknown executor `dsk`"),
    ],
)
def test_addresses_that_are_wrong(jobs: int, address: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        opened(jobs, address)
    assert caught.value.hint


@pytest.mark.parametrize("scheme", ["dask", "ray"])
def test_missing_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("distributed", "ray"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=f"--executor {scheme}://"), opened(1, f"{scheme}://here:1"):
        pass


def test_a_process_that_dies_is_named_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run of the sweep ends its process; the same command then goes on from what the first one found."""
    honest, path = Processes.run, tmp_path / "part.jsonl"

    def dying(pool: Processes, function: Any, tasks: Any) -> Iterator[tuple[int, Any]]:
        yield from honest(pool, function, tasks[:1])
        try:
            yield from honest(pool, os._exit, [3])
        except WorkerLostError as error:
            error.index = 1
            raise

    monkeypatch.setattr(parallel, "_LONGEST", 1)
    monkeypatch.setattr(Processes, "run", dying)
    with pytest.raises(WorkerLostError, match="a worker of this machine died at gpus=4: ") as caught:
        mw.what_if(changed(), **ASKED, jobs=2, resume=path)
    assert caught.value.hint == f"the same command goes on from the 1 of 4 points in {path}"
    monkeypatch.setattr(Processes, "run", honest)
    assert mw.what_if(changed(), **ASKED, resume=path).model_dump_json() == expected()


@pytest.mark.parametrize("asked", [{"vary": VARY}, {"study": "sensitivity"}])
def test_resume_of_what_searches_no_points(asked: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="searches no points"):
        mw.what_if(changed(), **asked, resume=tmp_path / "part.jsonl")


class Background:
    """Python modules that run until the block ends, with what they have started; `log` has what they said."""

    def __init__(self, log: Path, *commands: list[str], **variables: str) -> None:
        self._log = log
        with log.open("w") as out:
            self._started = [
                subprocess.Popen([sys.executable, "-m", *command], env=environment(variables), start_new_session=True,
                                 stdout=out, stderr=out) for command in commands]  # fmt: skip

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_until(self, ready: Callable[[], bool], seconds: float = 180.0) -> None:
        """Fails with the log when one of them ends, or the time does."""
        until = time.monotonic() + seconds
        while not ready():
            ended = [process.args for process in self._started if process.poll() is not None]
            if ended or time.monotonic() > until:
                what = f"{ended} ended" if ended else f"not ready within {seconds} s"
                pytest.fail(f"{what}: {self._log.read_text()[-2000:]}")
            time.sleep(0.25)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


def listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("localhost", port), timeout=1).close()
        return True
    return False


@pytest.fixture(scope="module")
def dask_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler with two worker processes, by hand: LocalCluster cannot close while it replaces a worker."""
    distributed = pytest.importorskip("distributed")
    (port,), folder = free_ports(1), str(tmp_path_factory.mktemp("dask"))
    scheduler = ["distributed.cli.dask_scheduler", "--host", "localhost", "--port", str(port), "--no-dashboard"]
    workers = ["distributed.cli.dask_worker", f"localhost:{port}", "--nworkers", "2", "--nthreads", "1",
               "--no-dashboard", "--local-directory", folder]  # fmt: skip
    with Background(Path(folder, "log"), scheduler, workers) as running:
        running.wait_until(lambda: listens(port))
        with distributed.Client(f"localhost:{port}") as client:
            client.wait_for_workers(2, timeout=60)
        yield f"dask://localhost:{port}"


def test_dask_changes_no_byte(dask_address: str) -> None:
    assert mw.what_if(changed(), **ASKED, executor=dask_address).model_dump_json() == expected()


def test_workers_of_another_version(dask_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "__version__", "99.0")
    with pytest.raises(InputError, match=r"here it is 99\.0"), opened(1, dask_address):
        pass


def test_a_dask_worker_that_dies_is_named(dask_address: str) -> None:
    with pytest.raises(WorkerLostError, match=f"a worker of {dask_address} died in search 1: ") as caught, opened(
            1, dask_address) as pool:
        list(pool.run(os._exit, [3]))
    assert caught.value.hint


@pytest.mark.parametrize(("address", "said"), [
    ("dask://localhost:1", "no Dask scheduler answers at localhost:1"), ("dask://localhost", "no host and port"),
    ("ray://localhost:1", "no Ray cluster answers at localhost:1"), ("ray://localhost:99999", "no Ray cluster answers"),
])  # fmt: skip
def test_a_cluster_that_is_not_there(address: str, said: str) -> None:
    pytest.importorskip("ray" if address.startswith("ray") else "distributed")
    with pytest.raises(InputError, match=said) as caught, opened(1, address):
        pass
    assert caught.value.hint


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A head node that takes clients, in a folder whose sockets have names that are short enough (107 bytes).

    Without GRPC_ENABLE_FORK_SUPPORT=0 about two in five of its servers for a client crash between fork and exec
    (ray-project/ray#63202): 4 of 10 heads did with Ray 2.60 and gRPC 1.85, none of 10 with it.
    """
    pytest.importorskip("ray")
    (gcs, port), host = free_ports(2), "127.0.0.1"
    ray = "ray.scripts.scripts"
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        command = [ray, "start", "--head", "--block", f"--node-ip-address={host}", f"--port={gcs}",
                   f"--ray-client-server-port={port}", "--num-cpus=2", "--include-dashboard=false",
                   "--disable-usage-stats", f"--temp-dir={folder}"]  # fmt: skip
        with Background(Path(folder, "log"), command, GRPC_ENABLE_FORK_SUPPORT="0") as running:
            running.wait_until(lambda: listens(port))
            asked = [sys.executable, "-m", ray, "health-check", f"--address={host}:{gcs}",
                     "--component=ray_client_server"]  # fmt: skip
            running.wait_until(lambda: subprocess.run(asked, capture_output=True, check=False).returncode == 0)
            yield f"ray://localhost:{port}"


def test_ray_changes_no_byte(ray_address: str, tmp_path: Path) -> None:
    """In a process of its own: the client keeps threads and warns of its own code."""
    (tmp_path / "plan.json").write_text(changed().to_json())
    command = [sys.executable, "-m", "meshwright", "what-if", "plan.json", "--vary", VARY[0], "--replan", "--json"]
    run = {"cwd": tmp_path, "env": environment(), "capture_output": True, "encoding": "utf-8", "check": False}
    there = subprocess.run([*command, "--executor", ray_address], **run)  # type: ignore[call-overload]
    here = subprocess.run(command, **run)  # type: ignore[call-overload]
    assert (there.returncode, there.stdout) == (0, here.stdout), there.stderr


def test_a_ray_worker_that_dies_is_named(ray_address: str) -> None:
    script = f"""
import os
from meshwright.errors import WorkerLostError
from meshwright.planner.search.executors import opened

def die(code):
    os._exit(code)

with opened(1, "{ray_address}") as pool:
    try:
        list(pool.run(die, [3]))
    except WorkerLostError as error:
        print(error.index, error, error.hint, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, encoding="utf-8",
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    index, said, hint = done.stdout.splitlines()
    assert index == "0"
    assert said.startswith(f"a worker of {ray_address} died in search 1: ")
    assert hint
