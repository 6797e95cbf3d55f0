"""The cost of a message to the rank that sends or receives it: threads and copies, where a host computes."""

from __future__ import annotations

import math
import time
from statistics import median

import torch
import torch.distributed as dist

CALLS = 25
LONGER = 8  # times the bytes of a sequence: the longer of two messages, which tell calls from bytes
_PASSED_BYTES = 16 << 20  # that a pass touches between two messages: more than the caches of a core hold


def ends(num_bytes: int, share: float) -> list[float]:
    """CPU seconds over `share`, the part of a core that the quota allows, of one end of a message of `num_bytes` and of
    one LONGER times as long, in turns.

    Messages come between passes, which take the caches, and when threads sleep: one right after the other they take
    half of what they do in training (256 KiB by gloo, 2026-11-30). Every rank of the process group must call it: each
    sends to the one half of all ranks further on, as stages do.
    """
    passed = torch.zeros(_PASSED_BYTES // 4)
    samples = []
    for call in range(2 * CALLS):
        passed.add_(1.0)
        samples.append(_end_s(num_bytes * (LONGER if call % 2 else 1)) / share)
    return samples


def _end_s(num_bytes: int) -> float:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    to, source = (rank + ranks // 2) % ranks, (rank - ranks // 2) % ranks
    sent = torch.zeros(max(num_bytes // 4, 1))
    spent = time.process_time()
    received = torch.empty_like(sent)
    works = [dist.irecv(received, source), dist.isend(sent, to)]
    for work in works:
        if work is not None:
            work.wait()
    return (time.process_time() - spent) / 2


def line(samples: list[float], num_bytes: int) -> tuple[float, float]:
    """Seconds of an end of a message of no bytes, and bytes per second beyond them, by what `ends` measured: of both
    none is less than nothing."""
    short, long = median(samples[::2]), median(samples[1::2])
    per_byte = max((long - short) / ((LONGER - 1) * num_bytes), 0.0)
    return max(short - num_bytes * per_byte, 0.0), 1.0 / per_byte if per_byte else math.inf
