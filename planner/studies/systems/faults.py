"""Checks of techniques that do without replicas that are slow."""

from __future__ import annotations

from typing import Any

from .base import Check, chosen, priced, shown_s, single_gpus

_MANY: dict[str, Any] = {"model": "llama-3.2-1b", "seq_len": 1024, "global_batch": 512,
                         "cluster": single_gpus(256, 400), "stack": "deepspeed"}  # fmt: skip
# A replica's share of the work is 1.4 % of the rest of its step, as on the authors' workers. Their repository
# (mamaj/Sequential-Gradient-Coding-2, 21933da) has 2.2013 s for the work of all 256 (2_find_runtimes/results.ipynb) and
# 78.11 s for 61 steps of the sequential code that never waits for all (tolerated 256, window 2; the file of 60 jobs in
# delay_profiles/sam-gc-cnn_profile_est_desktop_long4_new). Such a step is at most twice the fastest replica, mu = 1. So
# 0.62 s or more are the rest. Here messages are: the link is chosen for that share.
_WORKERS = {**_MANY, "global_batch": 256, "cluster": single_gpus(256, 32)}
_LAYOUT = "dp256-mbs1-z0-rnone"


def _of_step(neutral: bool, term: str | None, asked: dict[str, Any], **knobs: float) -> float:
    """Seconds of a step of 256 replicas, or of one of its terms. asked: the request."""
    candidate = priced(_LAYOUT, chosen("gradient-coding", neutral, **knobs), **asked)
    return shown_s(candidate, term) if term else candidate.step_s


def _work(neutral: bool) -> float:
    """Products of the paper's sequential code (27 slow replicas, a window of 2) over those of its plain one (15)."""
    sequential, plain = (_of_step(neutral, "matmul", _MANY, tolerated=tolerated, window=window)
                         for tolerated, window in ((27, 2), (15, 1)))  # fmt: skip
    return sequential / plain


def _run_time(neutral: bool) -> float:
    """Step of the same two codes, where 5 % of the replicas take three times as long, and others wait mu = 1."""
    sequential, plain = (_of_step(neutral, None, _WORKERS, tolerated=tolerated, window=window, slow=0.05, factor=3,
                                  patience=1) for tolerated, window in ((27, 2), (15, 1)))  # fmt: skip
    return sequential / plain


def _over_waiting(neutral: bool) -> float:
    """Step that waits for all of 256 replicas, 0.5 % of them three times as slow, over one of the sequential code."""
    slow = {"slow": 0.005, "factor": 3.0}
    waiting, coded = (_of_step(neutral, None, _MANY, tolerated=tolerated, window=window, **slow)
                      for tolerated, window in ((0, 1), (27, 2)))  # fmt: skip
    return waiting / coded


CHECKS = (
    Check(
        technique="gradient-coding",
        of="work of the sequential code for 27 slow of 256 replicas over that of the plain one for 15",
        published="28 x 2 / 29 over 16 shares by arithmetic: 0.12 (arXiv 2211.13802)",
        low=0.11,
        high=0.13,
        value=_work,
    ),
    Check(
        technique="gradient-coding",
        of="step of the sequential code over that of the plain one, 5 % of 256 replicas 3 times as slow, little work",
        published="0.84 of the run time on 256 workers of Lambda (arXiv 2211.13802, abstract)",
        low=0.8,
        high=0.9,
        value=_run_time,
    ),
    Check(
        technique="gradient-coding",
        of="step that waits for all of 256 replicas, 0.5 % of them 3 times as slow, over one of the sequential code",
        published="1.25 to 2.42 by arithmetic: 1 + 2 (1 - 0.995^256) over 1 + 2 x 0.0063, and over 1.93 times that "
        "where all of a step is repeated; the paper has no figure of it",
        low=1.25,
        high=2.42,
        value=_over_waiting,
    ),
)
