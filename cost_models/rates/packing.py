"""Seconds of gathering the runs of a strided tensor into one message: by a kernel, or by a copy for each run.

TEMPI (Pearson et al. 2021, arXiv 2012.14363) packs by kernels what MPI copies run by run. A kernel reads a run that is
shorter than a transaction of its memory as slowly as a whole transaction.
"""

from __future__ import annotations

TRANSACTION_BYTES = 128.0  # of a warp (CUDA C++ Programming Guide, device memory accesses)


def packed_s(num_bytes: float, run_bytes: float, bw_bytes_per_s: float, launch_s: float, kernels: float = 1) -> float:
    """Seconds by kernels: every run is read, and the message is written."""
    used = min(run_bytes / TRANSACTION_BYTES, 1.0)
    return kernels * launch_s + (num_bytes / used + num_bytes) / bw_bytes_per_s


def copied_s(num_bytes: float, run_bytes: float, bw_bytes_per_s: float, launch_s: float) -> float:
    """Seconds by a copy for each run, which the host starts one after another."""
    return num_bytes / run_bytes * launch_s + 2 * num_bytes / bw_bytes_per_s
