"""Parameters, tokens and FLOPs of a vision tower.

Symbols: h hidden, f inner, o output, N patches of an image, b = h merge^2 the width of a merger. Counts equal those of
transformers' modules, FLOPs those that torch counts (tests/cost_models/quantities/test_vision.py).
"""

from __future__ import annotations

from ..specs.vision import VisionTower


def parameters(tower: VisionTower) -> dict[str, int]:
    """Elements by part, with biases and norms."""
    h, f = tower.hidden, tower.inner
    layer = (3 * h * h + 3 * h) + (h * h + h) + (h * f + f) + (f * h + h) + 4 * h
    return {
        "patches": h * _values_of_patch(tower) + h, "positions": tower.positions * h, "layers": tower.layers * layer,
        "merger": _merger(tower) + 2 * h,
        # The norms of these mergers are over the block.
        "deepstack": tower.deepstack * (_merger(tower) + 2 * _block(tower)),
    }  # fmt: skip


def tokens(tower: VisionTower, patches: int) -> int:
    """Tokens of the language model that `patches` become."""
    return patches // tower.merge**2


def forward_flops(tower: VisionTower, patches: int) -> float:
    """FLOPs of the forward pass of an image of `patches`, all of which attend to each other: products count 2."""
    n, h, f = patches, tower.hidden, tower.inner
    layer = 2 * n * (4 * h * h + 2 * h * f) + 4 * n * n * h
    block = _block(tower)
    merger = 2 * tokens(tower, patches) * (block * block + block * tower.output)
    return 2.0 * n * h * _values_of_patch(tower) + tower.layers * layer + (1 + tower.deepstack) * merger


def _values_of_patch(tower: VisionTower) -> int:
    return tower.channels * tower.frames * tower.patch**2


def _block(tower: VisionTower) -> int:
    return tower.hidden * tower.merge**2


def _merger(tower: VisionTower) -> int:
    """Elements of both products of a merger, without its norm."""
    block = _block(tower)
    return block * block + block + block * tower.output + tower.output
