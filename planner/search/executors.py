"""Executors of independent searches: this process, processes of this machine, or a Dask or Ray cluster.

A task is plain data for a module-level function of this package. Answers do not depend on the place or the order of
execution: callers pass independent tasks and sort the answers by their index.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

from ..._version import __version__
from ...errors import InputError, MissingExtraError, UnknownNameError, WorkerLostError
from ...profiles.io import registry

Task = TypeVar("Task")
Answer = TypeVar("Answer")
_ANSWERS_S = 60.0  # timeout for the answer of a scheduler


class Executor(Protocol):
    """`run` yields (index of the task, its answer) in the order of completion."""

    def run(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]: ...


class Here:
    """Runs tasks one by one in this process."""

    def run(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        yield from ((index, function(task)) for index, task in enumerate(tasks))


class Processes:
    """`jobs` processes of this machine."""

    def __init__(self, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker,
                                         initargs=(registry.search_path(),))  # fmt: skip

    def run(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        futures = {self._pool.submit(function, task): index for index, task in enumerate(tasks)}
        for done in as_completed(futures):
            yield futures[done], _answered(done.result, (BrokenExecutor,), "this machine", futures[done])

    def close(self, *, at_once: bool) -> None:
        self._pool.shutdown(wait=not at_once, cancel_futures=True)


class Dask:
    """Workers of a Dask cluster."""

    def __init__(self, client: Any, where: str) -> None:
        self._client, self._where = client, f"dask://{where}"

    def run(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        from distributed import CancelledError, KilledWorker
        from distributed import as_completed as completed
        from distributed.comm import CommClosedError

        lost = (KilledWorker, CancelledError, CommClosedError)
        futures = {self._client.submit(function, task, pure=False): index for index, task in enumerate(tasks)}
        for done in completed(list(futures)):
            yield futures[done], _answered(done.result, lost, self._where, futures[done])


class Ray:
    """Workers of a Ray cluster."""

    def __init__(self, ray: Any, where: str) -> None:
        self._ray, self._where = ray, f"ray://{where}"

    def run(self, function: Callable[[Task], Answer], tasks: Sequence[Task]) -> Iterator[tuple[int, Answer]]:
        died = self._ray.exceptions
        lost = (died.WorkerCrashedError, died.NodeDiedError, died.OutOfMemoryError, ConnectionError)
        remote = self._ray.remote(function)
        pending = {remote.remote(task): index for index, task in enumerate(tasks)}
        while pending:
            (done, *_), _ = self._ray.wait(list(pending), num_returns=1)
            index = pending.pop(done)
            yield index, _answered(partial(self._ray.get, done), lost, self._where, index)


def _answered(get: Callable[[], Answer], lost: tuple[type[BaseException], ...], where: str, index: int) -> Answer:
    """The answer of task `index`. Raises WorkerLostError for the cluster's errors `lost`."""
    try:
        return get()
    except lost as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise WorkerLostError(where, index, reason[0]) from None


def opened(jobs: int = 1, address: str | None = None) -> AbstractContextManager[Executor]:
    """The requested executor: `jobs` processes, or the cluster at `address` (`dask://host:port`, `ray://...`).

    Raises InputError for less than one job, both at once, an address that no executor has, a cluster that does not
    answer or has another version of this package; MissingExtraError without the `cluster` extra.
    """
    if jobs < 1:
        raise InputError(f"{jobs} jobs: must be 1 or more", hint="`--jobs 4` takes 4 processes")
    if address is None:
        return nullcontext(Here()) if jobs == 1 else _processes(jobs)
    if jobs > 1:
        raise InputError("--jobs and --executor: both choose the place of the search", hint="leave out `--jobs`")
    scheme, mark, where = address.partition("://")
    if not mark or not where:
        hint = "write `dask://host:8786` or `ray://host:10001`"
        raise InputError(f"--executor `{address}` is no address", hint=hint)
    if scheme not in CLUSTERS:
        error = UnknownNameError("executor", scheme, CLUSTERS, where=f"--executor {address}")
        error.hint = error.hint or "write `dask://host:8786` or `ray://host:10001`"
        raise error
    return CLUSTERS[scheme](where)


@contextmanager
def _processes(jobs: int) -> Iterator[Executor]:
    pool = Processes(jobs)
    try:
        yield pool
    except BaseException:
        pool.close(at_once=True)
        raise
    pool.close(at_once=False)


@contextmanager
def _dask(where: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError("cluster", f"--executor dask://{where}") from None
    _knock("Dask scheduler", where)
    try:
        client = Client(f"tcp://{where}", timeout=_ANSWERS_S)
    except (OSError, ValueError) as error:
        raise _absent("Dask scheduler", where, error) from None
    try:
        if not client.scheduler_info()["workers"]:
            raise InputError(f"the Dask scheduler at {where} has no worker", hint=f"`dask worker {where}` starts one")
        yield _checked(Dask(client, where), where)
    finally:
        client.close()


@contextmanager
def _ray(where: str) -> Iterator[Executor]:
    try:
        import ray
    except ImportError:
        raise MissingExtraError("cluster", f"--executor ray://{where}") from None
    _knock("Ray cluster", where)
    try:
        with warnings.catch_warnings(action="ignore"):
            ray.init(f"ray://{where}", log_to_driver=False, logging_level="ERROR")
    except ConnectionAbortedError as error:  # the server answered, but its process for this client did not start
        reason = str(error).strip().splitlines()
        raise InputError(f"the Ray cluster at {where} could not start its server for this client: {reason[-1]}",
                         hint="try again; a head node that runs with GRPC_ENABLE_FORK_SUPPORT=0 starts them all "
                              "(ray-project/ray#63202)") from None  # fmt: skip
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _absent("Ray cluster", where, error) from None
    try:
        yield _checked(Ray(ray, where), where)
    finally:
        ray.shutdown()


CLUSTERS: dict[str, Callable[[str], AbstractContextManager[Executor]]] = {"dask": _dask, "ray": _ray}


def _knock(what: str, where: str) -> None:
    """Rejects an address without a listener, because the clients would wait half a minute and log."""
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"--executor {where}: no host and port", hint="write `dask://host:8786` or `ray://host:10001`")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_S).close()
    except (OSError, OverflowError) as error:
        raise _absent(what, where, error) from None


def _absent(what: str, where: str, error: Exception) -> InputError:
    reason = str(error).strip().splitlines()
    return InputError(f"no {what} answers at {where}", hint="check host and port, and that it runs",
                      details={"reason": reason[0] if reason else type(error).__name__})  # fmt: skip


def _checked(executor: Executor, where: str) -> Executor:
    """The executor, if its workers run this version. Other versions may price differently."""
    try:
        ((_, version),) = executor.run(_version_there, [None])
    except Exception as error:  # each cluster has its own error for a missing module
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"the workers at {where} cannot run meshwright: {reason[-1]}",
                         hint=f"install meshwright {__version__} where they run") from None  # fmt: skip
    if version != __version__:
        raise InputError(f"the workers at {where} run meshwright {version}, here it is {__version__}",
                         hint=f"install meshwright {__version__} where they run")  # fmt: skip
    return executor


def _version_there(_: None) -> str:
    return __version__


def _start_worker(search_path: str) -> None:
    """Sets one thread per process, because the other processes use the remaining cores.

    search_path: the parent's search path for catalogue entries, which a spawned process does not inherit.
    """
    registry.search_in(search_path)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
