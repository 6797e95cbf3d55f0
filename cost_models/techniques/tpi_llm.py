"""TPI-LLM: devices at home share every layer, sum by a star, and read layers from their disks in time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import WEIGHTS, Knob, Knobs, PoolNeed, Serves, Technique

if TYPE_CHECKING:
    from ..arrays import Array
    from ..serving.pool import Pool

STAR, RING = 1, 2


def _over_nodes(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray((pool.tp > 1) & (pool.in_node == 0))


def _hops(pool: Pool) -> Array:
    """The hops of the all-reduce that NCCL chooses between nodes: along a ring, or up and down a tree."""
    return np.maximum(np.minimum(2.0 * (pool.tp - 1.0), 2.0 * np.log2(pool.tp)), 1.0)


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    """A star has two hops; its middle takes in and sends out the tensor of every other device."""
    curve, methods = pool.all_reduce, pool.methods
    ring = 2.0 * (pool.tp - 1.0)
    if knobs["allreduce"] == STAR:
        curve = replace(curve, latency_s=curve.latency_s * 2.0 / _hops(pool), s_per_byte=curve.s_per_byte * pool.tp,
                        ramp=np.zeros_like(curve.ramp))  # fmt: skip
    elif knobs["allreduce"] == RING:
        curve = replace(curve, latency_s=curve.latency_s * ring / _hops(pool))
    if not knobs["window"]:
        return replace(pool, all_reduce=curve)
    methods = replace(methods, window_layers=knobs["window"], disk_bytes_per_s=knobs["disk_gb_per_s"] * 1e9,
                      whole_heads=True, head_bytes=knobs["bytes"])  # fmt: skip
    weight_bytes = np.full_like(pool.weight_bytes, knobs["bytes"])
    return replace(pool, all_reduce=curve, methods=methods, weight_bytes=weight_bytes)


TECHNIQUE = Technique(
    name="tpi-llm",
    group="serving: devices",
    title="TPI-LLM: devices share every layer, sum by a star, and read layers from their disks",
    paper="Li et al. 2024, TPI-LLM: Serving 70B-scale LLMs Efficiently on Low-resource Edge Devices, arXiv 2410.00531",
    bibtex="""@article{li2024tpillm,
  title = {TPI-LLM: Serving 70B-scale LLMs Efficiently on Low-resource Edge Devices},
  author = {Li, Zonghang and Feng, Wenjiao and Guizani, Mohsen and Yu, Hongfang},
  journal = {arXiv preprint arXiv:2410.00531},
  year = {2024}
}""",
    knobs=(Knob("window", 2, 0, 1000, "layers in memory at once, the others on the disk; 0: all in memory"),
           Knob("allreduce", STAR, 0, RING, "0: as NCCL would, 1: star, 2: ring"),
           Knob("disk_gb_per_s", 3, 0.01, 100, "GB/s of the disk of a device", whole=False),
           Knob("bytes", 4, 0.5, 4, "of a weight, as its release computes in fp32", whole=False)),
    neutral={"window": 0, "allreduce": 0},
    trains=False,
    serves=Serves(on_pool=_on_pool, across_nodes=True,
                  needs=(PoolNeed(_over_nodes, "tensor parallelism over nodes (`--fix tp=8` of 8 devices)"),)),
    caveat="devices are as fast as one another here; heads dealt by speed are not priced",
    chooses=(WEIGHTS,),
)  # fmt: skip
