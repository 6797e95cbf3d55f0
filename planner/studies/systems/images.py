"""Checks of techniques that denoise images, out of plans as `plan --workload serve` makes. The papers have U-Nets
(SD-Turbo, SDXL), the catalogue has transformers: these figures are ratios of the same passes of those."""

from __future__ import annotations

from typing import Any

from .base import Check, Technique, chosen
from .serving import served

# One stream of frames, in four passes each.
_STREAM: dict[str, Any] = {"model": "dit-xl-2-256", "cluster": "1xrtx-4090", "input": 1, "output": 256, "passes": 4,
                           "concurrency": 1, "fix": {"tp": 1, "chunk_tokens": 2048}}  # fmt: skip


def _frame_s(technique: Technique | None) -> float:
    return served(technique, **_STREAM).tpot_s


def _batch(neutral: bool) -> float:
    """Frames per second of passes over four frames over those of passes over one, without guidance as SD-Turbo."""
    one = _frame_s({"streamdiffusion": {"frames": 1.0, "guidance": 0.0}})
    return one / _frame_s({"streamdiffusion": {"frames": 1.0 if neutral else 4.0, "guidance": 0.0}})


def _guidance(neutral: bool) -> float:
    """The same of passes over four frames that run once over those that run twice."""
    twice = {"streamdiffusion": {"frames": 4.0, "guidance": 1.0}}
    return _frame_s(twice) / _frame_s({"streamdiffusion": {"frames": 4.0, "guidance": 1.0 if neutral else 0.0}})


_SLOW: dict[str, Any] = {"groups": [{"name": "slow", "gpu": "a100-sxm-80gb", "gpus_per_node": 8, "count": 1}],
                         "links": {"intra_node": {"bandwidth": "1 Gb/s", "latency": "1 us"}}}  # fmt: skip


def _pass_s(technique: Technique | None, pixels: int, cluster: Any = "8xa100-sxm-80gb") -> float:
    """Seconds per token of an image of Flux on 8 GPUs."""
    return served(technique, model="flux.1-dev", cluster=cluster, input=512, output=(pixels // 16) ** 2, passes=28,
                  concurrency=1, fix={"tp": 8, "pp": 1, "chunk_tokens": 2048}).tpot_s  # fmt: skip


def _sent(neutral: bool) -> float:
    """Messages over those of patches that see all others, where nothing hides them."""
    return _pass_s(chosen("pcpp", neutral), 1024, _SLOW) / _pass_s({"pcpp": {"context": 1.0}}, 1024, _SLOW)


def _over_all_patches(neutral: bool, pixels: int) -> float:
    """Seconds of patches that see all others (DistriFusion) over those that see a part."""
    return _pass_s({"pcpp": {"context": 1.0}}, pixels) / _pass_s(chosen("pcpp", neutral), pixels)


CHECKS = (
    Check(
        technique="streamdiffusion",
        of="frames per second of a pass over 4 frames over those of a pass over one, DiT-XL of 256 pixels on a 4090",
        published="about 1.5 of SD-Turbo (arXiv 2312.12491, abstract); 1.48 by arithmetic, where a pass over 4 takes "
        "2.7 times as long",
        low=0.95 * 1.48,
        high=1.05 * 1.5,
        value=_batch,
    ),
    Check(
        technique="streamdiffusion",
        of="the same with residual guidance over the usual one",
        published="up to 2.05 (arXiv 2312.12491, abstract); 2 by arithmetic",
        low=0.9 * 2.0,
        high=1.05 * 2.05,
        value=_guidance,
    ),
    Check(
        technique="pcpp",
        of="messages over those of patches that see all others, 8 GPUs over 1 Gb/s",
        published="around 0.3 (arXiv 2412.02962, abstract)",
        low=0.27,
        high=0.33,
        value=_sent,
    ),
    Check(
        technique="pcpp",
        of="seconds of patches that see all others over its own, Flux of 1,024 pixels on 8 A100",
        published="1.1 to 1.2 by arithmetic of SDXL; 2.36 over 2.32 to 8.02 over 6.71 (arXiv 2412.02962, abstract)",
        low=1.1,
        high=1.2,
        value=lambda neutral: _over_all_patches(neutral, 1024),
    ),
    Check(
        technique="pcpp",
        of="the same of 2,048 pixels",
        published="1.1 to 1.2 by arithmetic of SDXL",
        low=1.1,
        high=1.2,
        value=lambda neutral: _over_all_patches(neutral, 2048),
        missed="all layers of Flux attend to all 16,384 tokens, which is half of such a pass; the attention of SDXL "
        "is a smaller part: 61 % of it is left out",
    ),
)
