"""The time that a message costs the rank that sends or receives it: threads and copies, where a host computes."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

ROUNDS, CALLS = 5, 10


def seconds(num_bytes: int, share: float) -> list[float]:
    """Samples of one message at one of its ends: CPU seconds over `share`, the part of a core that the quota allows.

    Every rank of the process group must call it: each sends to the one half of all ranks further on, as stages do.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    to, source = (rank + ranks // 2) % ranks, (rank - ranks // 2) % ranks
    sent, received = (torch.zeros(max(num_bytes // 4, 1)) for _ in range(2))
    samples = []
    for _ in range(ROUNDS):
        dist.barrier()
        spent = time.process_time()
        for _ in range(CALLS):
            works = [dist.irecv(received, source), dist.isend(sent, to)]
            for work in works:
                if work is not None:
                    work.wait()
        samples.append((time.process_time() - spent) / (2 * CALLS) / share)
    return samples
