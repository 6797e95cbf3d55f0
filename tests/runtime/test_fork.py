"""The forks that ranks of tests are."""

from __future__ import annotations

import threading

import torch

from .fork import fork

THREADS = 4


def _sums(rank: int) -> list[float]:
    """Of a tensor long enough to be split over threads, by threads that begin at once, as autograd's and gloo's do."""
    values = torch.full((100_000,), float(rank))
    begin = threading.Barrier(THREADS)
    sums: list[float] = []

    def one() -> None:
        begin.wait()
        sums.append(float((values * 2).sum()))

    threads = [threading.Thread(target=one) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sums


def test_threads_of_a_fork_begin_at_once() -> None:
    """Where the pool of threads is left as it was forked, half of these ranks lack one of their sums."""
    torch.ones(100_000).sum()  # else there is no pool to fork
    for _ in range(12):
        assert fork(1, _sums) == [[0.0] * THREADS]
