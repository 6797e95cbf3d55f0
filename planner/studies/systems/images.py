"""Checks of techniques that denoise images, out of plans as `plan --workload serve` makes. The papers have U-Nets
(SD-Turbo, SDXL), the catalogue has transformers: figures are ratios of the same passes of those, or of the levels of a
U-Net as transformers with as many products and as much attention."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
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


# SDXL's U-Net (configuration of stable-diffusion-xl-base-1.0, UNet2DConditionModel of diffusers 0.42.1): channels of
# the two levels with transformers -> transformer blocks, their groups, and inputs of the convolutional blocks, which
# make as many channels. A token has 16 pixels of a side on level 1, and 32 on level 2.
_BLOCKS = {640: (10, 5, (320, 640, 1920, 1280, 960)), 1280: (60, 6, (640, *3 * (1280,), 2560, 2560, 1920))}
_TOP, _OF_TOP = 320, (320, 320, 960, 640, 640)  # the level above them, without transformers, of 4 times the places
# Convolutions of 3 x 3 between levels, for each token: to level 0 from 1 (at 4 places), to 1 from both, to 2 from 1.
_BETWEEN = {640: 9 * (4 * 640**2 + 320**2 + 1280**2), 1280: 9 * 640**2}
_HALF = 4  # GPUs for each of the two passes of guidance, of 8 (DistriConfig of xiuyuz/pcpp, split_batch)


def _convolved(channels: int, inputs: tuple[int, ...]) -> int:
    """Elements of convolutional blocks: two convolutions of 3 x 3 each, and a product where the inputs are others."""
    return sum(9 * channels * (n + channels) + (n != channels) * n * channels for n in inputs)


def _level(channels: int) -> dict[str, Any]:
    """A level as a transformer that attends to its tokens and to the text, and whose feed-forward blocks have the
    products of its gated ones, of its projections and of its convolutions."""
    layers, groups, inputs = _BLOCKS[channels]
    elements = 12 * channels**2 * layers + 2 * channels**2 * groups + _convolved(channels, inputs) + _BETWEEN[channels]
    if channels == 2 * _TOP:
        elements += 4 * _convolved(_TOP, _OF_TOP)
    # Heads of 80, so that 4 GPUs divide their number: SDXL's have 64.
    return {"_class_name": "WanTransformer3DModel", "num_attention_heads": channels // 80, "attention_head_dim": 80,
            "num_layers": layers, "ffn_dim": round(elements / (2 * channels * layers * 16)) * 16, "in_channels": 4,
            "out_channels": 4, "text_dim": 2048}  # fmt: skip


@cache
def _unet_s(patches: bool, context: float, pixels: int) -> float:
    """Seconds of a pass of SDXL on half of 8 GPUs, in patches that see so much of the others, or by tensor
    parallelism."""
    total = 0.0
    with TemporaryDirectory() as folder:
        for channels, side in ((640, 16), (1280, 32)):
            path, tokens = Path(folder) / f"{channels}.json", (pixels // side) ** 2
            path.write_text(json.dumps(_level(channels)), encoding="utf-8")
            technique = {"pcpp": {"patches": float(patches), "context": context}}
            total += tokens * served(
                technique, model=str(path), cluster=f"{_HALF}xa100-sxm-80gb", input=1, output=tokens, passes=50,
                concurrency=1, fix={"tp": _HALF, "pp": 1, "chunk_tokens": 2048}).tpot_s  # fmt: skip
    return total


def _over_all_patches_of_sdxl(neutral: bool, pixels: int) -> float:
    """The same of SDXL."""
    return _unet_s(True, 1.0, pixels) / _unet_s(not neutral, 0.3, pixels)


CHECKS = (
    Check(
        technique="streamdiffusion",
        of="frames per second of a pass over 4 frames over those of a pass over one, DiT-XL of 256 pixels on a 4090",
        published="about 1.5 of SD-Turbo (arXiv 2312.12491, abstract); 1.48 by arithmetic, where a pass over 4 takes "
        "2.7 times as long",
        low=0.95 * 1.48,
        high=1.05 * 1.5,
        value=_batch,
        missed="a pass over 4 frames takes 2.96 times as long as a pass over one by our prices, and 2.7 times in the "
        "arithmetic of 1.48",
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
        of="the same of SDXL, 2,048 pixels, 4 of the GPUs for each pass of guidance",
        published="1.1 to 1.2 by arithmetic of SDXL; 8.02 over 6.71 (arXiv 2412.02962, abstract)",
        low=1.1,
        high=1.2,
        value=lambda neutral: _over_all_patches_of_sdxl(neutral, 2048),
    ),
)
