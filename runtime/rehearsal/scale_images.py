"""A small vision tower and small images for `--scale-down`.

Kept: images per sequence up to two, pixels, frames and patches of a token, and the shares of the rotary sections.
Shrunk: layers to one more than taps, width, patches, and taps to as many as the first chunk has layers.
"""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.vision import VisionTower
from ...cost_models.specs.workload import Images

_HEAD_DIM, _PATCH, _SIDE = 16, 4, 4  # elements of a head, pixels, rows of the table of positions
_IMAGES, _GRID = 2, (2, 3)  # of a sequence; tokens of an image


def small_tower(tower: VisionTower, output: int, tp: int, taps: int, pairs: int) -> VisionTower:
    """The tower of a rehearsal. output: width of the small model; tp: ranks that split it; taps: at most so many;
    pairs: rotary pairs of a head of the small model."""
    heads = 2 * tp if tower.sharded else 2
    hidden, kept = heads * _HEAD_DIM, min(tower.deepstack, taps)
    inner = max(round(tower.inner * hidden / tower.hidden / (8 * tp)), 1) * 8 * tp
    return replace(
        tower, layers=min(tower.layers, kept + 1), hidden=hidden, heads=heads, inner=inner, patch=_PATCH,
        positions=_SIDE**2, output=output, taps=tuple(range(kept)), rope_sections=_sections(tower, pairs),
        least_pixels=0, most_pixels=0,
    )  # fmt: skip


def _sections(tower: VisionTower, pairs: int) -> tuple[int, ...]:
    if not tower.rope_sections:
        return ()
    row, column = (round(part * pairs / sum(tower.rope_sections)) for part in tower.rope_sections[1:])
    return pairs - row - column, row, column


def small_images(images: Images, tower: VisionTower) -> Images:
    """Images of so few tokens that a short sequence has text around them. tower: the small one."""
    rows, columns = (side * tower.patch * tower.merge for side in _GRID)
    return replace(images, per_sequence=min(images.per_sequence, _IMAGES), height=rows, width=columns)
