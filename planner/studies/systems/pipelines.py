"""Figures of systems that fill pipelines in other ways."""

from __future__ import annotations

from .base import Check, chosen, priced, single_gpus


def _gnnpipe(neutral: bool) -> float:
    """Graph parallelism over stages, a step of 16 layers of GCNII on Reddit. The paper's nodes and partitions are not
    known here: links of 100 Gb/s, and vertices dealt at random."""
    asked = {"model": "gcnii-reddit", "cluster": single_gpus(8, 100, "a100-sxm-40gb", "5 us")}
    parted = priced("cp8r-dp1-mbs1-z0-rnone", None, **asked)
    staged = priced("pp8-gpipe-dp1-mbs1-z0-rnone", chosen("gnnpipe", neutral), **asked)
    return parted.step_s / staged.step_s


CHECKS = (
    Check(technique="gnnpipe", of="step of a graph in 8 parts over that of 8 stages",
          published="1.58 in the mean, up to 2.45 (abstract)", low=1.2, high=2.45, value=_gnnpipe),
)  # fmt: skip
