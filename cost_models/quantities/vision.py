"""Parameters, tokens and FLOPs of a vision tower.

Symbols: h hidden, f inner, o output, N patches of an image, b = h merge^2 the width of a block. Counts equal those of
transformers' modules, FLOPs those that torch counts (tests/cost_models/quantities/test_vision.py).
"""

from __future__ import annotations

from ..specs.vision import VisionTower


def parameters(tower: VisionTower) -> dict[str, int]:
    """Elements by part, with biases and norms."""
    h, f = tower.hidden, tower.inner
    layer = (3 * h * h + 3 * h) + (h * h + h) + (h * f + f) + (f * h + h) + 4 * h
    counts = {"patches": h * _values_of_patch(tower) + h, "positions": tower.positions * h,
              "layers": tower.layers * layer}  # fmt: skip
    if tower.merger == "mean":
        return {**counts, "final_norm": 2 * h, "merger": h + h * tower.output}
    block = h * tower.merge**2
    products = block * block + block + block * tower.output + tower.output
    # The norm of the last merger is over patches, those of the others over blocks.
    return {**counts, "merger": products + 2 * h, "deepstack": tower.deepstack * (products + 2 * block)}


def tokens(tower: VisionTower, patches: int) -> int:
    """Tokens of the language model that `patches` become."""
    return patches // tower.merge**2


def forward_flops(tower: VisionTower, patches: int) -> float:
    """FLOPs of the forward pass of an image of `patches`, all of which attend to each other: products count 2."""
    n, h, f = patches, tower.hidden, tower.inner
    layer = 2 * n * (4 * h * h + 2 * h * f) + 4 * n * n * h
    block = h * tower.merge**2
    of_token = h * tower.output if tower.merger == "mean" else block * block + block * tower.output
    merged = (1 + tower.deepstack) * 2 * tokens(tower, patches) * of_token
    return 2.0 * n * h * _values_of_patch(tower) + tower.layers * layer + merged


def _values_of_patch(tower: VisionTower) -> int:
    return tower.channels * tower.frames * tower.patch**2
