"""Whether the emulated ranks compute side by side as each does alone, and behind a wait as without one."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median

import torch

from .emulated import Emulated, finish

SECONDS = 0.6  # of a run
START_S = 2.0  # until all ranks have started, each in its quota
LEAST = 0.85  # of the products that ranks compute alone: the share that they must reach all at once
TRIES = 3  # before a machine is refused: other programs may have had the cores for a moment
BURSTS = 20  # of a rank
BURST_CPU_S = 0.004
WAIT_S = 0.03  # before a burst
_MATRIX = torch.ones(96, 96)


@dataclass(frozen=True)
class RankSpeeds:
    """Speeds of every rank, relative to the rank alone and without waits."""

    # [ranks] products per second while all ranks compute, over those while it computes alone.
    at_once: tuple[float, ...]
    # [ranks] seconds of products behind a wait, over the seconds without one. Less than 1 means that the rank saved up
    # quota while it waited, which is reported but no reason to refuse the machine.
    behind_waits: tuple[float, ...]
    # Seconds of the tickers' probe while all compute.
    probe_s: float


def run(cluster: Emulated, outputs: Path) -> RankSpeeds:
    """The first of TRIES that refuses nothing, or the last."""
    for number in range(TRIES):
        speeds = _once(cluster, outputs / str(number))
        if not refusal(speeds):
            break
    return speeds


def _once(cluster: Emulated, outputs: Path) -> RankSpeeds:
    outputs.mkdir(parents=True)
    alone = [outputs / f"alone-{rank}.log" for rank in range(cluster.num_ranks)]
    for rank, path in enumerate(alone):
        finish([cluster.start(rank, partial(_compute, 0), path, 0)], [path])
    at = time.perf_counter() + START_S
    cluster.run(lambda rank: _compute(BURSTS, at), outputs, 0)
    probe_s = cluster.tickers.probe_s(at, at + SECONDS)
    together = [json.loads((outputs / f"rank-{rank}.log").read_text()) for rank in range(cluster.num_ranks)]
    rates = [json.loads(path.read_text())["per_s"] for path in alone]
    return RankSpeeds(tuple(rank["per_s"] / rate for rank, rate in zip(together, rates, strict=True)),
                      tuple(rank["behind_a_wait"] for rank in together), probe_s)  # fmt: skip


def _compute(bursts: int, at: float = 0.0) -> int:
    """Prints products per second, and the median time of so many bursts as `RankSpeeds.behind_waits`. It begins at that
    time.perf_counter."""
    _product()  # the first one prepares the library
    time.sleep(max(at - time.perf_counter(), 0.0))
    done = 0
    began, cpu = time.perf_counter(), time.thread_time()
    while (now := time.perf_counter()) < began + SECONDS:
        _product()
        done += 1
    per_s = done / (now - began)
    products = max(round(BURST_CPU_S * done / (time.thread_time() - cpu)), 1)
    behind = median(_behind_a_wait(products) for _ in range(bursts)) * per_s / products if bursts else None
    print(json.dumps({"per_s": per_s, "behind_a_wait": behind}))
    return 0


def _behind_a_wait(products: int) -> float:
    time.sleep(WAIT_S)
    began = time.perf_counter()
    for _ in range(products):
        _product()
    return time.perf_counter() - began


def _product() -> torch.Tensor:
    return _MATRIX @ _MATRIX


def summary(speeds: RankSpeeds) -> str:
    """`8 ranks at once do 7.90 times what one does alone, and behind a wait they take 0.95 of their time`."""
    return (f"{len(speeds.at_once)} ranks at once do {sum(speeds.at_once):.2f} times what one does alone, and behind a "
            f"wait they take {mean(speeds.behind_waits):.2f} of their time")  # fmt: skip


def refusal(speeds: RankSpeeds) -> str:
    """Why this machine cannot emulate the ranks; empty if it can."""
    n = len(speeds.at_once)
    if sum(speeds.at_once) >= LEAST * n:
        return ""
    worst = min(range(n), key=speeds.at_once.__getitem__)
    return (f"{summary(speeds)}: less than {LEAST:g} x {n} = {LEAST * n:.2f} "
            f"(rank {worst}: {speeds.at_once[worst]:.2f}); "
            "other programs take the cores, or the quotas are too large")  # fmt: skip
