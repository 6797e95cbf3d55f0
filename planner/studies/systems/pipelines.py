"""Figures of systems that fill pipelines in other ways."""

from __future__ import annotations

from typing import Any

from .base import Check, chosen, priced, single_gpus


def _gnnpipe(neutral: bool) -> float:
    """Graph parallelism over stages, a step of 16 layers of GCNII on Reddit. The paper's nodes and partitions are not
    known here: links of 100 Gb/s, and vertices dealt at random."""
    asked = {"model": "gcnii-reddit", "cluster": single_gpus(8, 100, "a100-sxm-40gb", "5 us")}
    parted = priced("cp8r-dp1-mbs1-z0-rnone", None, **asked)
    staged = priced("pp8-gpipe-dp1-mbs1-z0-rnone", chosen("gnnpipe", neutral), **asked)
    return parted.step_s / staged.step_s


# The example of its repository: 24 layers of width 1,024 on 6 stages, 6 micro-batches, links between regions.
_REGIONS: dict[str, Any] = {
    "model": {"name": "llama-500m", "hidden": 1024, "layers": 24, "heads": 16, "ffn_hidden": 2816, "vocab": 32000,
              "max_positions": 4096},
    "cluster": single_gpus(6, 1, latency="50 ms"), "seq_len": 4096, "global_batch": 6, "stack": "generic",
}  # fmt: skip


def _skipped_third(neutral: bool) -> float:
    """The share of a step that paths of 4 of 6 stages save."""
    # Both by the closed form: pipelines with a technique are not simulated.
    whole, short = (priced("pp6-dp1-mbs1-z0-rnone", chosen("skippipe", nothing, skipped=1 / 3), **_REGIONS).step_s
                    for nothing in (True, neutral))  # fmt: skip
    return 1 - short / whole


CHECKS = (
    Check(
        technique="skippipe",
        of="step saved by paths of 4 of 6 stages between regions, 6 micro-batches",
        published="0.55 at most (arXiv 2502.19913, abstract); 0.3 to 0.55 by arithmetic",
        low=0.3,
        high=0.55,
        value=_skipped_third,
    ),
    Check(technique="gnnpipe", of="step of a graph in 8 parts over that of 8 stages",
          published="1.58 in the mean, up to 2.45 (abstract)", low=1.2, high=2.45, value=_gnnpipe),
)  # fmt: skip
