"""Whether the emulated ranks compute side by side as each does alone."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path

import torch

from .emulated import Emulated, wait_for

SECONDS, LEAST = 0.6, 0.85  # of a run; of what the ranks do in turn, that they must do all at once
_SIZE = 96


def ratios(cluster: Emulated, outputs: Path) -> list[float]:
    """For every rank: products per second while all compute, over those while it computes alone."""
    outputs.mkdir()
    alone = [outputs / f"alone-{rank}.log" for rank in range(cluster.num_ranks)]
    for rank, path in enumerate(alone):
        wait_for([cluster.start(rank, partial(_compute, SECONDS), path, 0)])
    together = [outputs / f"together-{rank}.log" for rank in range(cluster.num_ranks)]
    wait_for([cluster.start(rank, partial(_compute, SECONDS), path, 0) for rank, path in enumerate(together)])
    return [_rate(both) / _rate(one) for both, one in zip(together, alone, strict=True)]


def _rate(path: Path) -> float:
    return float(json.loads(path.read_text()))


def _compute(seconds: float) -> int:
    """Prints products per second."""
    a, b = torch.ones(_SIZE, _SIZE), torch.ones(_SIZE, _SIZE)
    done, started = 0, time.perf_counter()
    while (now := time.perf_counter()) < started + seconds:
        a @ b
        done += 1
    print(json.dumps(done / (now - started)))
    return 0


def told(found: list[float]) -> str:
    """`all at once 7.9 times what one does alone, of 8`."""
    return f"{len(found)} ranks at once do {sum(found):.2f} times what one does alone"


def refusal(found: list[float]) -> str:
    """Why this machine cannot emulate the ranks; empty if it can."""
    if sum(found) >= LEAST * len(found):
        return ""
    worst = min(range(len(found)), key=found.__getitem__)
    return (f"{told(found)}: less than {LEAST:g} x {len(found)} = {LEAST * len(found):.2f} (rank {worst}: "
            f"{found[worst]:.2f}); other programs take the cores, or the quotas are too large")  # fmt: skip
