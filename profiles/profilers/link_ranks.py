"""The processes of `profile links`: one per GPU. Under torchrun they are there; alone, this one starts the others."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...errors import InputError, MeshwrightError
from ..cluster.link_tests import Test, tests
from ..io import registry
from . import links, timing
from .links import Effort, Job, LostRank

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class LinkFailed(MeshwrightError):
    """A rank that dropped out while links were measured."""

    code, exit_code = "run_failed", 1


@dataclass(frozen=True)
class LinkOptions:
    """The options that every rank gets."""

    device: str  # `auto`, `cuda` or `cpu`
    quick: bool  # fewer repeats and pairs
    limit: int  # bytes of the largest message
    timeout_s: float  # the longest wait for a rank

    @property
    def effort(self) -> Effort:
        return links.QUICK if self.quick else links.FULL


def under_torchrun(environ: Mapping[str, str] = os.environ) -> bool:
    return all(name in environ for name in _VARIABLES)


def default_ranks() -> int:
    """One per GPU of this machine; on CPUs one per core, eight at most."""
    return torch.cuda.device_count() or min(os.cpu_count() or 1, 8)


@contextmanager
def job(options: LinkOptions, num_ranks: int) -> Iterator[Job]:
    """This process's place among the ranks; those that it started are gone at the end, whatever happens."""
    if under_torchrun():
        yield from _joined(options)
        return
    if num_ranks < 2:
        hint = "start it on every node: `torchrun --nnodes N ... -m meshwright profile links`"
        raise InputError(f"links join 2 ranks or more, here is {num_ranks}", hint=hint)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    before = {name: os.environ.get(name) for name in _VARIABLES}
    others = [_start(options, {**common, "RANK": rank, "LOCAL_RANK": rank}) for rank in range(1, num_ranks)]
    os.environ.update({name: str(value) for name, value in {**common, "RANK": 0, "LOCAL_RANK": 0}.items()})
    try:
        yield from _joined(options)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for process in others:
            _end(process)


def _joined(options: LinkOptions) -> Iterator[Job]:
    device = timing.open_device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        timing.as_a_rank()
    joined = links.join(int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]), device, options.timeout_s)
    try:
        yield joined
    except LostRank as error:
        hint = "with `-o` what was measured is kept: `--resume` goes on"
        raise LinkFailed(f"a rank did not answer: {error}", hint=hint) from error
    finally:
        dist.destroy_process_group()


def _start(options: LinkOptions, variables: Mapping[str, object]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, registry.PATH_VARIABLE: registry.search_path()}
    environment |= {name: str(value) for name, value in variables.items()}
    words = [sys.executable, "-m", "meshwright.profiles.profilers.link_ranks", json.dumps(vars(options))]
    return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def follow(options: LinkOptions, job: Job, wanted: Sequence[Test]) -> None:
    """Take part in the tests, as every rank but the first does."""
    links.measure(job, wanted, options.limit, options.effort, None, None)


def main() -> None:
    """A rank that another process started."""
    # Ctrl-C is the first rank's to hear: when it is gone so are its sockets, and this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    options = LinkOptions(**json.loads(sys.argv[1]))
    try:
        with job(options, 0) as mine:
            follow(options, mine, list(tests(mine.ranks, quick=options.quick)))
    except LinkFailed:
        sys.exit(1)  # the first rank reports why


if __name__ == "__main__":
    main()
