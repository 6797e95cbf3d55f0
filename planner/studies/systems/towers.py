"""Checks of AI Flow, which divides a vision tower over a device, an edge and GPUs, out of plans as `plan --workload
serve` makes."""

from __future__ import annotations

from typing import Any

from ...document.serving_plan import ServingCandidate
from .base import Check
from .serving import ANY_MORE, served

_NAME = "ai-flow"
# A caption of an image of 896 x 896 pixels.
_CAPTION: dict[str, Any] = {"model": "gemma-3-12b", "cluster": "1xh100-sxm-80gb", "input": 300, "output": 50,
                            "images": 1, "concurrency": 1, "fix": {"chunk_tokens": 2048}}  # fmt: skip
_UPLINKS = (10_000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0)  # Mb/s, falling


def _captioned(neutral: bool, **knobs: float) -> ServingCandidate:
    """The best deployment with an edge of 50 TFLOP/s and a device of 10."""
    tiers = {"device_tflop_per_s": 10.0, "edge_tflop_per_s": 50.0, **knobs}
    return served({_NAME: {**tiers, **({"uplink_mbit_per_s": 0.0} if neutral else {})}}, **_CAPTION)


def _on_device(neutral: bool) -> float:
    """Pieces of the tower on the device at 1 Mb/s less those at 10 Gb/s; -1 where a slower uplink leaves fewer."""
    towers = [_captioned(neutral, uplink_mbit_per_s=uplink).pools[0].tower for uplink in _UPLINKS]
    pieces = [it.device if it is not None else 0 for it in towers]
    return float(pieces[-1] - pieces[0]) if sorted(pieces) == pieces else -1.0


def _caption_s(neutral: bool) -> float:
    """Seconds to the first token over 1 Mb/s with all of the tower on the GPU, over those with the best cuts."""
    nothing = {"device_tflop_per_s": 0.0, "edge_tflop_per_s": 0.0}
    whole = _captioned(neutral, uplink_mbit_per_s=1.0, **nothing)
    return whole.ttft_s / _captioned(neutral, uplink_mbit_per_s=1.0).ttft_s


CHECKS = (
    Check(
        technique=_NAME,
        of="pieces of a tower of 29 that move to the device as the uplink falls from 10 Gb/s to 1 Mb/s, none back",
        published="1 or more: a larger part with a lower uplink, and cuts that move one way (arXiv 2411.12469)",
        low=1,
        high=29,
        value=_on_device,
    ),
    Check(
        technique=_NAME,
        of="time to a first token of a caption over 1 Mb/s, images sent whole over best cuts",
        published="lower latency in captioning, no number (arXiv 2411.12469, abstract)",
        low=1.01,
        high=ANY_MORE,
        value=_caption_s,
    ),
)
