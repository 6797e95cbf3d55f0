"""AI Flow: a device, an edge and the GPUs each run a part of a vision tower, cut where images are through it first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import Knob, Knobs, PoolNeed, Serves, Technique

if TYPE_CHECKING:
    from ..serving.pool import Pool


def _sees(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.full(pool.tp.shape, pool.images is not None)


def _on_pool(pool: Pool, knobs: Knobs) -> Pool:
    """The user is `uplink` away. The cuts follow from the rates (`cost_models/serving/image_placement.py`)."""
    if not knobs["uplink_mbit_per_s"]:
        return pool
    methods = replace(
        pool.methods, uplink_bytes_per_s=knobs["uplink_mbit_per_s"] * 1e6 / 8,
        backhaul_bytes_per_s=knobs["backhaul_mbit_per_s"] * 1e6 / 8, link_s=knobs["round_trip_ms"] / 1e3,
        device_flops_per_s=knobs["device_tflop_per_s"] * 1e12, edge_flops_per_s=knobs["edge_tflop_per_s"] * 1e12,
        pixel_bits=knobs["pixel_bits"], feature_bits=knobs["feature_bits"],
    )  # fmt: skip
    return replace(pool, methods=methods)


TECHNIQUE = Technique(
    name="ai-flow",
    group="serving: devices",
    title="AI Flow: device, edge and GPUs each run a part of the tower that sees the images",
    paper="Shao and Li 2025, AI Flow at the Network Edge, arXiv 2411.12469",
    bibtex="""@article{shao2025ai,
  title = {{AI} Flow at the Network Edge},
  author = {Shao, Jiawei and Li, Xuelong},
  journal = {IEEE Network},
  year = {2025}
}""",
    knobs=(Knob("uplink_mbit_per_s", 20, 0, 1e6, "from the device of a user to the edge, or to the GPUs (assumed); 0: "
                "images are at the GPUs", whole=False, least_above_0=1e-3),
           Knob("backhaul_mbit_per_s", 1000, 1e-3, 1e6, "from the edge to the GPUs (assumed)", whole=False),
           Knob("round_trip_ms", 20, 0, 1e5, "of each link (assumed)", whole=False),
           Knob("device_tflop_per_s", 2, 0, 1e4, "TFLOP/s that the device reaches (assumed); 0: it computes nothing",
                whole=False, least_above_0=1e-6),
           Knob("edge_tflop_per_s", 0, 0, 1e5, "TFLOP/s that the edge reaches for a request; 0: there is no edge",
                whole=False, least_above_0=1e-6),
           Knob("pixel_bits", 8, 0.01, 8, "of a colour of a pixel on its way; less: compressed", whole=False),
           Knob("feature_bits", 16, 0.01, 16, "of an element of hidden states on its way; less: task-oriented features",
                whole=False)),
    neutral={"uplink_mbit_per_s": 0},
    trains=False,
    serves=Serves(on_pool=_on_pool, needs=(PoolNeed(_sees, "a model that sees images, and some in every request "
                                                    "(`--model gemma-3-12b --images 1`)"),)),
    caveat="the edge serves each request at once, however many come; weights of the tower fit device and edge; the "
           "language model is on the GPUs",
)  # fmt: skip
